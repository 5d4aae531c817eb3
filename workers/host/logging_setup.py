"""Log lines of the agent and its worker: one per line on stdout, short, with the process they come from."""

import logging
import sys


def set_up_logging(process: str) -> None:
    """Send the log of this process to stdout. Libraries speak from warnings on."""
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(logging.Formatter(f"%(asctime)s %(levelname)-7s {process}: %(message)s", "%H:%M:%S"))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("workers").setLevel(logging.INFO)
