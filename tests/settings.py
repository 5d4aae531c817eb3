"""Settings of the tests: a throw-away SLIPWAY_HOME and a broker of their own, chosen before the real settings load."""

import atexit
import os
import shutil
import tempfile
from pathlib import Path

from tests.ports import free_port

_home = tempfile.mkdtemp(prefix="slipway-tests-")
atexit.register(shutil.rmtree, _home, ignore_errors=True)
# Where the engine for live tests is cached; SLIPWAY_HOME itself is thrown away after the run.
os.environ.setdefault("SLIPWAY_TEST_CACHE", os.environ.get("SLIPWAY_HOME", ""))
os.environ["SLIPWAY_HOME"] = _home
Path(_home, "console", "static").mkdir(parents=True)
os.environ["REDIS_URL"] = f"redis://127.0.0.1:{free_port()}/0"

from console.settings import *  # noqa: E402, F403

PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]

if DATABASES["default"]["ENGINE"].endswith("sqlite3"):  # noqa: F405
    # A file, as in real life: an in-memory database knows no busy timeout, so that writers at once would fail.
    DATABASES["default"]["TEST"] = {"NAME": f"{_home}/tests.sqlite3"}  # noqa: F405
