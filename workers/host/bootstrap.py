"""Put Slipway onto a machine that has only Python 3.11: served by the console as a script, and used by upgrades.

Standard library only, and nothing of Slipway is imported: the console sends this very file, with a call of `main` behind
it, and the join command refuses it unless its SHA-256 is the one that the page has shown. What the script fetches in turn
(the wheel, the console's certificate authority) is pinned in that call.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

_TIMEOUT_SECONDS = 60
_PIP = ("-m", "pip", "install", "--disable-pip-version-check", "--no-input", "--progress-bar", "off")


class BootstrapError(Exception):
    """Slipway could not be put onto this machine; the message says why and what to do."""


def version_directory(home: Path, version: str) -> Path:
    """Environment of one version of the agent. Versions lie side by side and never change once they are complete."""
    return home / "agent" / version


def is_complete(directory: Path) -> bool:
    """True if the environment was built to its end."""
    return (directory / "complete").exists() and os.access(directory / "bin" / "slipway", os.X_OK)


def pip_arguments(wheel: Path, console_url: str, ca_file: Path | None, *, offline: bool, extra: str = "") -> list[str]:
    """Arguments for an environment's Python that install `wheel` and what it needs.

    Offline, pip takes everything from the console, which serves a folder of wheels; otherwise the site's own settings of
    pip (index, proxy, certificates) count.
    """
    found = ["--no-index", "--find-links", f"{console_url.rstrip('/')}/api/hosts/wheels/"] if offline else []
    if offline and ca_file is not None:
        found += ["--cert", str(ca_file)]
    return [*_PIP, *found, f"{wheel}[{extra}]" if extra else str(wheel)]


def pinned_authority(console_url: str, ca_sha256: str) -> str:
    """Fetch the console's certificate authority (PEM); raises BootstrapError unless its SHA-256 is the given one."""
    # Nothing of this connection is believed: what it brings has to match the pin.
    blind = ssl.create_default_context()
    blind.check_hostname = False
    blind.verify_mode = ssl.CERT_NONE
    pem = fetch(f"{console_url.rstrip('/')}/api/hosts/ca.pem", blind).decode("ascii", "replace")
    try:
        found = hashlib.sha256(ssl.PEM_cert_to_DER_cert(pem)).hexdigest()
    except ValueError:
        found = "no certificate"
    if found != ca_sha256.lower().replace(":", ""):
        raise BootstrapError(
            f"the console at {console_url} has another certificate authority ({found}) than the command says. "
            "Someone may stand in between: make a new command on the host's page and compare."
        )
    return pem


def fetch(url: str, context: ssl.SSLContext | None) -> bytes:
    """Return what lies at `url`; raises BootstrapError with the reason."""
    try:
        with urllib.request.urlopen(url, timeout=_TIMEOUT_SECONDS, context=context) as answer:  # noqa: S310 - the person's URL
            return bytes(answer.read())
    except urllib.error.HTTPError as error:
        raise BootstrapError(f"{url} answered {error.code}. Make a new command on the host's page.") from error
    except (OSError, ValueError) as error:
        raise BootstrapError(f"{url} can't be reached from here: {error}") from error


def main(settings: dict[str, Any], words: list[str] | None = None) -> int:
    """Install the wheel that `settings` pin into an environment of its own, then run `slipway host join` from there.

    With `--gateway` it is `slipway gateway join`, in an environment that has HAProxy, too.
    """
    parser = argparse.ArgumentParser(prog="join")
    parser.add_argument("url")
    parser.add_argument("script_sha256")
    parser.add_argument("--ca-sha256", default="")
    parser.add_argument("--home", type=Path, default=None)
    parser.add_argument("--gateway", action="store_true")
    options, rest = parser.parse_known_args(sys.argv[1:] if words is None else words)
    given = options.home or os.environ.get("SLIPWAY_HOME") or Path.home() / ".local" / "share" / "slipway"
    home = Path(given).expanduser().absolute()
    try:
        program = _install(settings, options.url, options.ca_sha256, home, "gateway" if options.gateway else "")
    except (BootstrapError, OSError) as error:
        sys.stderr.write(f"slipway: {error}\n")
        return 1
    pin = ["--ca-sha256", options.ca_sha256] if options.ca_sha256 else []
    sys.stderr.flush()
    os.environ["SLIPWAY_HOME"] = str(home)
    what = "gateway" if options.gateway else "host"
    return subprocess.run([str(program), what, "join", options.url, *pin, *rest], check=False).returncode


def _install(settings: dict[str, Any], url: str, ca_sha256: str, home: Path, extra: str) -> Path:
    """Build the environment, or find it, and return its `slipway` program."""
    directory = version_directory(home, settings["version"])
    if extra:
        # Apart from the hosts' own, which a host's upgrade tidies up.
        directory = home / f"{extra}-agent" / settings["version"]
    if is_complete(directory):
        _say(f"Slipway {settings['version']} is here already, in {directory}")
        return directory / "bin" / "slipway"
    directory.mkdir(parents=True, exist_ok=True, mode=0o755)
    ca_file, context = None, None
    if ca_sha256:
        ca_file = directory / "ca.pem"
        ca_file.write_text(pinned_authority(url, ca_sha256))
        context = ssl.create_default_context(cafile=str(ca_file))
    wheel = directory / settings["wheel"]
    content = fetch(urljoin(f"{url.rstrip('/')}/", f"api/hosts/wheels/{settings['wheel']}"), context)
    if hashlib.sha256(content).hexdigest() != settings["sha256"]:
        raise BootstrapError("the wheel that came is not the one that the console promised. Try again.")
    wheel.write_bytes(content)
    _say(f"making an environment for Slipway {settings['version']} in {directory}")
    _run([sys.executable, "-m", "venv", str(directory)], "Python's venv module (Debian: apt-get install python3-venv)")
    _say("installing Slipway and what its agent needs: about a minute")
    arguments = pip_arguments(wheel, url, ca_file, offline=settings["offline"], extra=extra)
    _run([str(directory / "bin" / "python"), *arguments, "--quiet"], "pip and its package index (PIP_INDEX_URL)")
    (directory / "complete").touch()
    return directory / "bin" / "slipway"


def _run(argv: list[str], needed: str) -> None:
    left_out = ("PYTHONPATH", "PYTHONHOME", "PIP_TARGET", "PIP_PREFIX", "PIP_USER", "PIP_REQUIRE_VIRTUALENV")
    environment = {name: value for name, value in os.environ.items() if name not in left_out}
    done = subprocess.run(argv, env=environment, stdin=subprocess.DEVNULL, check=False)
    if done.returncode != 0:
        raise BootstrapError(f"this ended with code {done.returncode}: {' '.join(argv)}. It needs {needed}.")


def _say(text: str) -> None:
    sys.stderr.write(f"slipway: {text}\n")
