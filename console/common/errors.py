"""Errors that a person is meant to read: what, how much, what next."""


class Refused(Exception):
    """A service refused to do what was asked; the message is shown as it is.

    `field` names the form field at which it stands, if there is one.
    """

    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.field = field


class IllegalMove(Exception):
    """A state was asked to move to one that its table doesn't allow: a fault in the code, not of the person."""


class LostRace(Refused):
    """Another process moved the object first."""
