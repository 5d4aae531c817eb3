"""The TLS front: a real HAProxy before a real broker and a small web server."""

import json
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
import redis

from console import env
from console.common import authority
from console.fleet import joining
from console.operations import tls_front
from tests.conftest import start_broker
from tests.live.harness import wait_for
from tests.ports import free_port
from workers.app import host_app, tls_options
from workers.contracts import RUN_STEP
from workers.host.bootstrap import BootstrapError, fetch, pinned_authority


class Web(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = authority.authority_pem() if self.path == "/api/hosts/ca.pem" else json.dumps(dict(self.headers))
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_words: object) -> None:
        pass


@pytest.fixture
def front(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """HAProxy at 127.0.0.1, before both; yields the console's address for other machines."""
    home = tmp_path / ("longer-than-the-path-of-a-socket-may-be-" * 3)
    settled = env.environment().model_copy(
        update={"slipway_home": home, "slipway_hosts_address": "127.0.0.1", "redis_url": ""}
    )
    monkeypatch.setattr(env, "environment", lambda: settled)
    web = HTTPServer(("127.0.0.1", 0), Web)
    threading.Thread(target=web.serve_forever, daemon=True).start()
    broker_port, ports = free_port(), (free_port(), free_port())
    broker = start_broker(broker_port, tmp_path)
    running = [broker]
    try:
        known = {"console_url": f"http://127.0.0.1:{web.server_port}", "broker_port": broker_port}
        env.runtime_file().parent.mkdir(parents=True, exist_ok=True)
        env.runtime_file().write_text(json.dumps(known))
        env.runtime_file().write_text(json.dumps(known | tls_front.addresses(*ports)))
        program = tls_front.program({})
        running.append(subprocess.Popen(program.argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        assert program.ready
        wait_for("HAProxy listens", program.ready, seconds=60)
        yield env.hosts_url()
    finally:
        for one in running:
            one.terminate()
            one.wait(20)
        web.shutdown()
        web.server_close()


def trusting() -> ssl.SSLContext:
    return ssl.create_default_context(cadata=authority.authority_pem())


def test_the_console_is_reached_by_tls_and_told_so(front: str) -> None:
    headers = {name.lower(): value for name, value in json.loads(fetch(f"{front}/", trusting())).items()}
    assert headers["x-forwarded-proto"] == "https"
    assert headers["x-forwarded-for"] == "127.0.0.1"
    with pytest.raises(BootstrapError, match="certificate verify failed"):
        fetch(f"{front}/", ssl.create_default_context())
    with pytest.raises(BootstrapError):
        fetch(front.replace("https", "http"), None)


def test_an_authority_is_believed_by_its_pin_only(front: str) -> None:
    assert pinned_authority(front, authority.fingerprint()) == authority.authority_pem() == joining.console_authority()
    with pytest.raises(BootstrapError, match="another certificate authority"):
        pinned_authority(front, "0" * 64)


def test_the_broker_is_reached_by_tls_with_the_pinned_authority_and_no_other(front: str) -> None:
    url = env.hosts_redis_url()
    assert url.startswith("rediss://127.0.0.1:")
    with redis.Redis.from_url(url, **tls_options(url, authority.authority_pem())) as client:
        assert client.ping()
    with redis.Redis.from_url(url, **tls_options(url)) as client, pytest.raises(redis.ConnectionError, match="verify"):
        client.ping()
    host_app("a", url, authority.authority_pem()).send_task(RUN_STEP, args=[{}], queue="host.a", retry=False)
    with pytest.raises(Exception, match="verify"):
        host_app("b", url).send_task(RUN_STEP, args=[{}], queue="host.b", retry=False)


def test_a_certificate_is_renewed_without_ending_a_connection(front: str, monkeypatch: pytest.MonkeyPatch) -> None:
    port = int(env.runtime()["hosts_web_port"])
    address = ("127.0.0.1", port)

    def serial() -> bytes:
        with (
            socket.create_connection(address, timeout=30) as plain,
            trusting().wrap_socket(plain, server_hostname="127.0.0.1") as tls,
        ):
            return tls.getpeercert(binary_form=True) or b""

    before = serial()
    url = env.hosts_redis_url()
    options = tls_options(url, authority.authority_pem())
    with redis.Redis.from_url(url, single_connection_client=True, **options) as open_before:
        number = open_before.client_id()
        assert not tls_front.renew()
        make = authority.certificate_for
        later = datetime.now(UTC) + timedelta(days=61)
        monkeypatch.setattr(authority, "certificate_for", lambda names: make(names, now=later))
        assert tls_front.renew()
        assert open_before.client_id() == number
    with socket.create_connection(address, timeout=30) as plain:
        context = ssl.create_default_context(cadata=authority.authority_pem())
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        with context.wrap_socket(plain) as tls:
            assert tls.getpeercert(binary_form=True) != before
