"""What can go wrong with the test cluster. Each message is one line that a person can act on, then details.

ClusterError
├── PrerequisiteMissing   the machine lacks something; the message says how to install it
├── BuildFailed           a binary, an image or the engine could not be made
├── AlreadyRunning        another cluster holds the address plan of this machine
├── StartFailed           a process of the cluster ended, or did not become ready in time
├── CommandFailed         a command ended with a non-zero exit status, or ran too long
├── WaitTimedOut          a condition did not come true before its deadline
└── TearDownIncomplete    something of the cluster is still there after its take-down
"""


class ClusterError(Exception):
    """Base of all errors of the test cluster."""


class PrerequisiteMissing(ClusterError):
    """The machine lacks something that the cluster needs."""


class BuildFailed(ClusterError):
    """A binary, an image or the engine could not be made."""


class AlreadyRunning(ClusterError):
    """Another cluster of ours lives on this machine."""


class StartFailed(ClusterError):
    """A process of the cluster ended or did not become ready in time."""


class CommandFailed(ClusterError):
    """A command ended with a non-zero exit status, or ran too long."""


class WaitTimedOut(ClusterError):
    """A condition did not come true before its deadline."""


class TearDownIncomplete(ClusterError):
    """Something of the cluster is still there after its take-down."""
