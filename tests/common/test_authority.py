"""The console's own certificate authority."""

import stat
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import pytest
from cryptography import x509

from console import env
from console.common import authority

NAMES = ["10.77.1.1", "slipway.example.com", "fd00::1"]


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settled = env.environment().model_copy(update={"slipway_home": tmp_path})
    monkeypatch.setattr(env, "environment", lambda: settled)


def shown() -> x509.Certificate:
    return x509.load_pem_x509_certificate(authority.certificate_path().read_bytes())


def test_keys_are_for_their_owner_only_and_the_authority_stays_the_same() -> None:
    assert authority.certificate_for(NAMES)
    assert authority.fingerprint() == authority.fingerprint()
    for name in ("ca.key", "front.pem"):
        assert stat.S_IMODE((authority.directory() / name).stat().st_mode) == 0o600


def test_the_certificate_names_addresses_as_addresses_and_names_as_names() -> None:
    authority.certificate_for(NAMES)
    found = shown().extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert found.get_values_for_type(x509.IPAddress) == [ip_address("10.77.1.1"), ip_address("fd00::1")]
    assert found.get_values_for_type(x509.DNSName) == ["slipway.example.com"]
    shown().verify_directly_issued_by(x509.load_pem_x509_certificate(authority.authority_pem().encode()))


def test_a_certificate_is_renewed_a_month_before_its_end_and_not_sooner() -> None:
    authority.certificate_for(NAMES)
    first = shown().serial_number
    assert not authority.certificate_for(NAMES)
    assert not authority.certificate_for(NAMES, now=datetime.now(UTC) + timedelta(days=59))
    assert authority.certificate_for(NAMES, now=datetime.now(UTC) + timedelta(days=61))
    assert shown().serial_number != first


def test_other_names_and_a_broken_file_make_a_new_certificate() -> None:
    authority.certificate_for(NAMES)
    assert authority.certificate_for(["10.77.2.1"])
    authority.certificate_path().write_text("no certificate")
    assert authority.certificate_for(["10.77.2.1"])


def test_a_certificate_of_another_authority_is_not_shown() -> None:
    authority.certificate_for(NAMES)
    (authority.directory() / "ca.pem").unlink()
    assert authority.certificate_for(NAMES)
