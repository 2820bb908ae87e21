"""`__main__` of the zip: checks the Python that the launcher found, then runs the probe.

Written for any Python 3, so that an old one can say what is wrong with it. Reads the one variable itself, for the same
reason: nothing of the probe can be imported yet.
"""

import os
import sys

REMEDY = "set engine.python to the Python of the image that has vLLM"


def why_unusable():
    # type: () -> str
    """Empty if the probe runs on this Python."""
    if sys.version_info < (3, 10):
        return "it is Python %d.%d, 3.10 or newer is needed" % sys.version_info[:2]
    try:
        import numpy  # noqa: F401
        from pydantic import TypeAdapter  # noqa: F401
    except ImportError as error:
        return "it can not import numpy and pydantic 2 (%s)" % error
    return ""


def refuse(why):
    # type: (str) -> int
    """Tell the log and the termination message."""
    message = "engine.python: %s: %s; %s" % (sys.executable, why, REMEDY)
    sys.stderr.write("steadyfleet-probe: %s\n" % message)
    path = os.environ.get("STEADYFLEET_TERMINATION_MESSAGE_FILE") or "/dev/termination-log"
    try:
        with open(path, "w") as file:
            file.write('{"message":"%s"}' % message.replace("\\", "/").replace('"', "'")[:256])
    except OSError:
        pass  # outside a pod there is no such file
    return 2


if __name__ == "__main__":
    why = why_unusable()
    if why:
        sys.exit(refuse(why))
    from steadyfleet_probe.__main__ import main

    sys.exit(main())
