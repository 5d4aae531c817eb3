"""Secrets for one host, readable only there: libsodium sealed boxes in base64.

The host makes a key pair when it joins and keeps the private half in its configuration file. The console encrypts each
secret to the public half, so that Redis, tasks, reports, files and logs carry ciphertext only.
"""

import base64
import binascii
from collections.abc import Sequence

from nacl.exceptions import CryptoError
from nacl.public import PrivateKey, PublicKey, SealedBox


class SealingError(ValueError):
    """A key is malformed, or a sealed text was not made for this key."""


def generate_key_pair() -> tuple[str, str]:
    """Return a new (private key, public key), each as base64 of 32 bytes."""
    private = PrivateKey.generate()
    return _encode(bytes(private)), _encode(bytes(private.public_key))


def public_key_of(private_key: str) -> str:
    """Return the public half (base64) that belongs to `private_key`; raises `SealingError` for a malformed key."""
    return _encode(bytes(_private(private_key).public_key))


def seal(public_key: str, text: str) -> str:
    """Encrypt `text` so that only the owner of `public_key`'s private half can read it; returns base64."""
    try:
        recipient = PublicKey(_decode(public_key))
    except (CryptoError, ValueError, TypeError) as error:
        raise SealingError("the public key is not base64 of 32 bytes") from error
    return _encode(SealedBox(recipient).encrypt(text.encode()))


def unseal(private_key: str, sealed: str) -> str:
    """Decrypt what `seal` made. Raises `SealingError` when it was sealed to another key or was altered."""
    box = SealedBox(_private(private_key))
    try:
        return box.decrypt(_decode(sealed)).decode()
    except (CryptoError, ValueError, TypeError) as error:
        raise SealingError("the secret was sealed to another key, or was altered on its way") from error


def unseal_any(private_keys: Sequence[str], sealed: str) -> str:
    """Decrypt with the first of `private_keys` (newest first) that fits. Raises `SealingError` when none does."""
    for key in private_keys[:-1]:
        try:
            return unseal(key, sealed)
        except SealingError:
            continue
    return unseal(private_keys[-1], sealed)


def _private(private_key: str) -> PrivateKey:
    try:
        return PrivateKey(_decode(private_key))
    except (CryptoError, ValueError, TypeError) as error:
        raise SealingError("the private key is not base64 of 32 bytes") from error


def _encode(raw: bytes) -> str:
    return base64.b64encode(raw).decode("ascii")


def _decode(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise SealingError("not valid base64") from error
