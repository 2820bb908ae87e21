"""`__main__` of the zip: checks the Python that the launcher found, then runs the probe.

Kept to what any Python 3.6 understands, so that an old one can say what is wrong with it. It reads the one variable
itself, because nothing of the probe can be imported yet.
"""

import os
import sys


def why_unusable() -> str:
    """Empty if the probe runs on this Python."""
    if sys.version_info < (3, 10):  # noqa: UP036  that is the question here
        return f"it is Python {sys.version_info[0]}.{sys.version_info[1]}, 3.10 or newer is needed"
    try:
        import numpy  # noqa: F401
        from pydantic import TypeAdapter  # noqa: F401
    except ImportError as error:
        return f"it can not import numpy and pydantic 2 ({error})"
    return ""


def refuse(why: str) -> int:
    """Tell the log and the termination message."""
    message = f"engine.python: {sys.executable}: {why}; set engine.python to the Python of the image that has vLLM"
    sys.stderr.write(f"steadyfleet-probe: {message}\n")
    path = os.environ.get("STEADYFLEET_TERMINATION_MESSAGE_FILE") or "/dev/termination-log"
    quoted = message.replace("\\", "/").replace('"', "'")[:256]
    try:
        with open(path, "w") as file:
            file.write(f'{{"message":"{quoted}"}}')
    except OSError as error:
        sys.stderr.write(f"steadyfleet-probe: {path}: {error}\n")
    return 2


if __name__ == "__main__":
    why = why_unusable()
    if why:
        sys.exit(refuse(why))
    from steadyfleet_probe.__main__ import main

    sys.exit(main())
