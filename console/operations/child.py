"""Start a program that ends with its parent: `python child.py PARENT_PID PROGRAM ARGUMENTS…`.

Runs as a script with the standard library only, so that it costs a few milliseconds. The kernel's request to be killed
when the parent ends (PR_SET_PDEATHSIG) survives the exec, and can't be set by the parent itself without running Python
between fork and exec, which is not safe beside threads.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def end_with_parent(parent: int) -> None:
    """Have this process killed when `parent`, its parent, ends. Exits at once if that has happened already."""
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        sys.exit(f"prctl: {os.strerror(ctypes.get_errno())}")
    if os.getppid() != parent:
        sys.exit(f"the parent process {parent} has ended")


if __name__ == "__main__":
    end_with_parent(int(sys.argv[1]))
    os.execvp(sys.argv[2], sys.argv[2:])  # noqa: S606 - an argv list, no shell
