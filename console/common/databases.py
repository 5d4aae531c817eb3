"""What a database that is away looks like from here."""

from django.db.utils import InterfaceError, OperationalError

DATABASE_AWAY = (OperationalError, InterfaceError)
"""It can't be reached, is busy, or its connection died: what was asked is asked again, and nothing counts as done."""
