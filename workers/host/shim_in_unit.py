"""First words of a shim in a systemd unit: take the environment from a pipe, then become the shim.

`python -m workers.host.shim_in_unit PIPE DIRECTORY [--stop]`. It is executed anew, so that the environment, with the mark of
its instance in it, is the process's own from its beginning. Standard library only, as the shim.
"""

import json
import os
import sys


def main(arguments: list[str]) -> None:
    """Replace this process by the shim."""
    pipe, *rest = arguments
    with open(pipe, "rb") as reader:  # noqa: PTH123 - no pathlib: every import is a delay of a restart
        environment: dict[str, str] = json.loads(reader.read())
    os.execve(sys.executable, [sys.executable, "-m", "workers.host.shim", *rest], environment)  # noqa: S606


if __name__ == "__main__":
    main(sys.argv[1:])
