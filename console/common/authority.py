"""The console's own certificate authority: other machines pin its fingerprint, so nobody has to buy or trust anything.

The authority lives ten years. What the TLS front shows lives ninety days and is made anew a month before its end, or
when the console is to be reached under other names.
"""

import ipaddress
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from console import env

AUTHORITY_DAYS = 3650
CERTIFICATE_DAYS = 90
RENEW_DAYS = 30
"""A certificate with fewer days left than this is made anew."""


def directory() -> Path:
    """Where the authority, its key and the front's certificate lie."""
    return env.environment().console_dir / "tls"


def certificate_path() -> Path:
    """The front's certificate and key, as HAProxy reads them."""
    return directory() / "front.pem"


def authority_pem() -> str:
    """The authority's certificate; made on first use."""
    path = directory() / "ca.pem"
    if not path.exists():
        _create()
    return path.read_text()


def fingerprint() -> str:
    """SHA-256 of the authority's certificate (DER), in hexadecimal: what join commands pin."""
    return x509.load_pem_x509_certificate(authority_pem().encode()).fingerprint(hashes.SHA256()).hex()


def certificate_for(names: list[str], *, now: datetime | None = None) -> bool:
    """Make sure that the front has a certificate for these names and addresses; returns whether it is a new one."""
    now = now or datetime.now(UTC)
    authority = x509.load_pem_x509_certificate(authority_pem().encode())
    if _still_good(authority, names, now):
        return False
    key = ec.generate_private_key(ec.SECP256R1())
    signer = serialization.load_pem_private_key((directory() / "ca.key").read_bytes(), password=None)
    if not isinstance(signer, ec.EllipticCurvePrivateKey):
        raise TypeError(f"{directory() / 'ca.key'} is no key of this authority")
    certificate = (
        _builder(names[0], authority.subject, key.public_key(), now, CERTIFICATE_DAYS)
        .add_extension(x509.SubjectAlternativeName([_general_name(name) for name in names]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(signer, hashes.SHA256())
    )
    _write(certificate_path(), _pem(certificate) + _key_pem(key))
    return True


def _still_good(authority: x509.Certificate, names: list[str], now: datetime) -> bool:
    try:
        known = x509.load_pem_x509_certificate(certificate_path().read_bytes())
        known.verify_directly_issued_by(authority)
        alternatives = known.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (OSError, ValueError, TypeError, x509.ExtensionNotFound):
        return False
    except Exception:
        return False
    same_names = list(alternatives) == [_general_name(name) for name in names]
    return same_names and known.not_valid_after_utc - now > timedelta(days=RENEW_DAYS)


def _create() -> None:
    directory().mkdir(parents=True, exist_ok=True, mode=0o700)
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Slipway console")])
    certificate = (
        _builder("Slipway console", name, key.public_key(), datetime.now(UTC), AUTHORITY_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    _write(directory() / "ca.key", _key_pem(key))
    _write(directory() / "ca.pem", _pem(certificate))


def _builder(
    name: str, issuer: x509.Name, key: ec.EllipticCurvePublicKey, now: datetime, days: int
) -> x509.CertificateBuilder:
    # A host's clock may be behind ours: the certificate is good from yesterday on.
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])]))
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _write(path: Path, content: bytes) -> None:
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
    draft.replace(path)
