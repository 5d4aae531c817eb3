"""TLS by a file that is replaced while the gateway runs, and HTTP/2 with it."""

import json
import shutil
import ssl
import subprocess
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from console import env
from console.gateway import plan
from tests.gateway.backend import Engine, Running, key_of, route_of, target_of, wait_until
from workers.gateway.description import Listener

CURL = shutil.which("curl") or ""


def write_certificate(path: Path) -> str:
    """A self-signed one with its key, as the gateway wants them in one file; returns it in PEM."""
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "models.example.com")])
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=1))
        .sign(key, hashes.SHA256())
        .public_bytes(serialization.Encoding.PEM)
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path.write_bytes(made + private)
    return made.decode()


def curl(gateway: Running, **body: object) -> list[str]:
    """A command that asks by HTTP/2, and says last which version of HTTP it was."""
    words = [CURL, "-sSNk", "--http2", "-w", "\n%{http_version}", "-H", "Authorization: Bearer secret"]
    return [*words, "-d", json.dumps({"model": "chat"} | body), f"{gateway.url}/v1/chat/completions"]


@pytest.mark.skipif("HTTP2" not in subprocess.getoutput(f"{CURL or 'false'} -V"), reason="no curl that knows HTTP/2")
def test_a_new_certificate_in_its_file_is_served_by_the_next_application_and_cuts_no_stream(
    haproxy: Running, engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pem = tmp_path / "gateway.pem"
    settled = env.environment().model_copy(update={"slipway_gateway_certificate": str(pem)})
    monkeypatch.setattr(env, "environment", lambda: settled)

    def listener() -> Listener:
        # As the controller describes it in each of its rounds.
        told = plan.listener()
        given = {"certificate": told.certificate, "certificate_sha256": told.certificate_sha256}
        return replace(haproxy.gateway.listener, **given)

    def served() -> str:
        return ssl.get_server_certificate(("127.0.0.1", haproxy.gateway.listener.port))

    first = write_certificate(pem)
    haproxy.url = haproxy.url.replace("http:", "https:")
    haproxy.start(listener=listener(), routes=(route_of(target_of(engine)),), keys=(key_of("secret"),))
    answer, version = subprocess.check_output(curl(haproxy), text=True).rsplit("\n", 1)
    assert (json.loads(answer)["choices"][0]["finish_reason"], version) == ("stop", "2")
    assert served() == first

    engine.pieces, engine.pause_seconds = engine.events(["a"] * 80), 0.05
    stream = subprocess.Popen(curl(haproxy, stream=True), stdout=subprocess.PIPE, text=True)
    wait_until(lambda: engine.sent > 2, seconds=5)
    second = write_certificate(pem)
    assert second != first
    assert haproxy.change(listener=listener()).way == "reload"
    wait_until(lambda: served() == second, seconds=2)
    assert engine.sent < 80
    text, _nothing = stream.communicate(timeout=15)
    assert stream.returncode == 0
    assert text.count("data: ") == 81
    assert text.endswith("data: [DONE]\n\n\n2")
