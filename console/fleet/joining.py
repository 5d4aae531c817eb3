"""What lets another machine join: the command to paste, and what it may believe."""

import shlex
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from console import env
from console.common import authority
from console.fleet import host_wheel

# One line of Python that needs nothing but Python: it fetches the script and runs it only if it is the promised one.
_FETCH = (
    "import hashlib,ssl,sys,urllib.request as r;"
    'sys.version_info<(3,11) and sys.exit("Slipway needs Python 3.11 or later; this is "+sys.version.split()[0]);'
    's=r.urlopen(sys.argv[1]+"/api/hosts/bootstrap.py",context=ssl._create_unverified_context()).read();'
    'hashlib.sha256(s).hexdigest()==sys.argv[2] or sys.exit("The script differs from what the page promised: reload it.");'
    "exec(s)"
)


def command_for_bare_machine(token: str, *more: str) -> str:
    """The one command for a machine that has only Python 3.11; the shell takes it as it is. `more`: `--gateway`."""
    words = ["python3", "-c", _FETCH, env.hosts_url(), host_wheel.script_sha256(), *more, "--token", token, *_pin()]
    return shlex.join(words)


def command_with_slipway(token: str, what: str = "host") -> str:
    """The command for a machine that has Slipway already. `what`: `host` or `gateway`."""
    return shlex.join(["slipway", what, "join", env.hosts_url(), "--token", token, *_pin()])


def console_authority() -> str:
    """Certificate authority (PEM) that hosts believe for the console; empty where its certificate is not ours."""
    return authority.authority_pem() if "hosts_url" in env.runtime() else ""


def broker_authority() -> str:
    """Certificate authority (PEM) that hosts believe for the broker: ours in front of the embedded one, else the one that
    REDIS_URL names by `ssl_ca_certs`; empty where the broker has none of its own.
    """
    if not env.environment().redis_url:
        return authority.authority_pem() if "hosts_redis_url" in env.runtime() else ""
    files = parse_qs(urlsplit(env.environment().redis_url).query).get("ssl_ca_certs")
    return Path(files[0]).read_text() if files else ""


def fingerprint() -> str:
    """SHA-256 of the certificate authority that join commands pin; empty where there is none of ours."""
    return authority.fingerprint() if console_authority() else ""


def _pin() -> list[str]:
    return ["--ca-sha256", fingerprint()] if fingerprint() else []
