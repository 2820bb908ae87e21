"""Only its text is read, to learn which arguments this version knows."""

ARGUMENTS = ("--enable-flashinfer-autotune",)
