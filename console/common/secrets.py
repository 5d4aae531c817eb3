"""Encryption of stored secrets: Fernet, newest key first, older keys still read."""

from cryptography.fernet import Fernet, InvalidToken, MultiFernet
from django.conf import settings

from console.common.errors import Refused


def _box() -> MultiFernet:
    return MultiFernet([Fernet(key) for key in settings.ENCRYPTION_KEYS])


def encrypt(text: str) -> str:
    """Encrypt a secret for storage."""
    return _box().encrypt(text.encode()).decode()


def decrypt(stored: str) -> str:
    """Read a stored secret; raises Refused when its key is no longer among SLIPWAY_ENCRYPTION_KEYS."""
    try:
        return _box().decrypt(stored.encode()).decode()
    except InvalidToken:
        raise Refused(
            "A stored secret can't be read: its key is not among SLIPWAY_ENCRYPTION_KEYS. Put the old key back, at the end."
        ) from None
