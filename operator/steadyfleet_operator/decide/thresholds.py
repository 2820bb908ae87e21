"""Every number that a decision depends on, in one table. Each says why it is what it is."""

from __future__ import annotations

from fractions import Fraction

MIN_VOTERS = 3
"""Fewer nodes than this can't outvote a bad one: without an accepted variant they are NotComparable."""

FIRST_VOTE_SHARE = Fraction(3, 4)
"""More than this is asked of a vote while nodes are still to be tried; more than half when all were."""

UNREPEATABLE_SHARE = Fraction(1, 20)
"""More nodes than this (and two) whose repeats differ make it the version's doing."""

TWINS_LOOKED_AT = 64
"""Consistent GPUs whose surroundings are compared with a suspect's. If none of them is a twin, nobody is accused."""

FIRST_VOTE_NODES = 20
"""A first baseline waits until this many nodes were measured, or all selected ones were tried."""

EXPIRY_INTERVALS = 2
"""A node whose newest result is older than this many intervals is Unknown: it says nothing of today. By node, since
a visit meets one GPU of a node that has eight."""

RETRY_SECONDS = 60
"""Wait after a visit without a result; doubled for each further one in a row, never longer than the interval."""

LEARN_FROM_GPUS = 4
"""Other GPUs whose visits are looked at for keys that each process draws anew."""

MAX_EXTRA_VISITS = 6
"""Confirming and control visits of one node in one interval: GPUs that flap must not keep each other busy for ever."""

LOST_JOB_SECONDS = 120
"""A slot whose Job never appeared for this long has lost it; before, the Job is created (again)."""

DEADLINE_MARGIN_SECONDS = 120
"""On top of the launches' own deadlines: injecting the probe, posting the reports."""

ACTIVE_REQUEUE_SECONDS = 5
"""Pass interval while Jobs exist: their watch may be broken."""

IDLE_REQUEUE_SECONDS = 30
"""Pass interval otherwise."""

MAX_LISTED_GPUS = 16
"""GPUs listed in one entry of a NodeConsistency."""

MAX_LISTED_DIVERGENT = 10
"""GPUs listed in the status of a check."""

MAX_VARIANTS = 32
"""Variants listed in a ConsistencyBaseline."""

MAX_MESSAGE = 1024
"""Length of a message in a condition or an entry."""
