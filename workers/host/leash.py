"""Run a helper program that must not outlive its caller: `python -m workers.host.leash PARENT_PID PROGRAM ARGUMENT…`.

The wish to die with the parent survives the exec, so a step that is killed leaves no installation running behind it.
"""

import os
import sys

from workers.host.processes import die_with_parent


def main(arguments: list[str]) -> None:
    """Become the program named after the parent's pid."""
    die_with_parent(int(arguments[0]))
    os.execv(arguments[1], arguments[1:])  # noqa: S606 - an argv list, no shell


if __name__ == "__main__":
    main(sys.argv[1:])
