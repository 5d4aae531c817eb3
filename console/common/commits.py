"""Doing things once a transaction has committed."""

from collections.abc import Callable
from functools import update_wrapper
from typing import Any

from django.db import transaction


def after_commit(function: Callable[..., Any], *arguments: Any) -> None:
    """Call `function(*arguments)` when the running transaction has committed; at once if there is none.

    What it raises is logged and stops nobody: the change itself is stored, and the reconcile beat makes up for the rest.
    Django names a failed hook by `__qualname__`, which a `functools.partial` lacks: hence the wrapper.
    """

    def hook() -> None:
        function(*arguments)

    transaction.on_commit(update_wrapper(hook, function), robust=True)
