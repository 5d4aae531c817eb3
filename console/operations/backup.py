"""Backup: one consistent picture of the database, the stored logs and, if asked for, the generated secrets, in one file.

The database is written as JSON lines, one object a line, so that a backup of SQLite can be restored into PostgreSQL and
the other way round. The picture is of one moment while the console goes on: SQLite in WAL mode shows one to every reading
transaction, PostgreSQL to a repeatable-read one.

    manifest.json     format, version, when, how many objects of each kind
    database.jsonl    the objects
    logs/             the engines' logs as far as the console has stored them
    secrets.json      only with secrets: the keys that read what is stored encrypted
"""

import io
import json
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from django.apps import apps
from django.conf import settings
from django.core import serializers
from django.core.serializers.json import DjangoJSONEncoder
from django.db import connection, models, transaction
from django.db.migrations.recorder import MigrationRecorder

from console import env

FORMAT = 1
MANIFEST, DATABASE, LOGS, SECRETS = "manifest.json", "database.jsonl", "logs", "secrets.json"
LEFT_OUT = {"contenttypes", "sessions"}
"""Apps whose rows Django makes again, or that end with a sign-out."""
LEFT_OUT_MODELS = {"auth.permission", "auth.group"}


class _Exact(DjangoJSONEncoder):
    """Keeps microseconds, which Django's own encoder cuts off."""

    def default(self, value: Any) -> Any:
        """Encode a value that JSON has no word for."""
        return value.isoformat() if isinstance(value, datetime) else super().default(value)


def kept_models() -> list[type[models.Model]]:
    """Models whose rows belong into a backup, those that others refer to first."""
    return [
        model
        for model in apps.get_models()
        if model._meta.managed
        and not model._meta.proxy
        and model._meta.app_label not in LEFT_OUT
        and model._meta.label_lower not in LEFT_OUT_MODELS
    ]


def back_up(target: Path, *, with_secrets: bool, say: Callable[[str], None]) -> dict[str, Any]:
    """Write a backup to `target` in one step (an older file is replaced only at the end); returns its manifest."""
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".backup-") as folder:
        draft = Path(folder) / "backup.tar.gz"
        with snapshot():
            counts = _dump(Path(folder) / DATABASE)
            migrations = sorted(f"{app}.{name}" for app, name in MigrationRecorder(connection).applied_migrations())
        manifest: dict[str, Any] = {
            "format": FORMAT,
            "version": version("slipway"),
            "created_at": datetime.now(UTC).isoformat(timespec="seconds"),
            "database": connection.vendor,
            "migrations": migrations,
            "objects": counts,
            "with_secrets": with_secrets,
        }
        with tarfile.open(draft, "w:gz", compresslevel=6) as archive:
            _add_text(archive, MANIFEST, json.dumps(manifest, indent=2))
            archive.add(Path(folder) / DATABASE, DATABASE)
            logs = _add_logs(archive)
            if with_secrets:
                _add_text(archive, SECRETS, _secrets())
        draft.chmod(0o600)
        draft.replace(target)
    say(f"{sum(counts.values()):,} objects and {logs:,} logs are in {target} ({target.stat().st_size:,} bytes)")
    if not with_secrets:
        say("The keys that read stored secrets are not in it. Keep SLIPWAY_ENCRYPTION_KEYS, or use --with-secrets.")
    return manifest


@contextmanager
def snapshot() -> Iterator[None]:
    """Let all reads inside see one moment. Writers are not held up."""
    if connection.vendor == "sqlite":
        # Not `atomic`: it would begin as a writer (settings) and hold up the console for as long as the backup takes.
        with connection.cursor() as cursor:
            cursor.execute("BEGIN DEFERRED")
        try:
            yield
        finally:
            with connection.cursor() as cursor:
                cursor.execute("ROLLBACK")
        return
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        yield


def _dump(path: Path) -> dict[str, int]:
    counts: dict[str, int] = {}
    with path.open("w", encoding="utf-8") as file:
        for model in kept_models():
            rows = model._base_manager.order_by("pk")
            serializers.serialize("jsonl", _counted(rows, counts, model._meta.label_lower), stream=file, cls=_Exact)
    return counts


def _counted(rows: "models.QuerySet[models.Model]", counts: dict[str, int], label: str) -> Iterator[models.Model]:
    counts[label] = 0
    for row in rows.iterator(chunk_size=1000):
        counts[label] += 1
        yield row


def _add_text(archive: tarfile.TarFile, name: str, text: str) -> None:
    data = text.encode()
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode, entry.mtime = len(data), 0o600, int(datetime.now(UTC).timestamp())
    archive.addfile(entry, io.BytesIO(data))


def _add_logs(archive: tarfile.TarFile) -> int:
    """Add the logs as long as they are now; what an engine writes meanwhile is not in the picture."""
    count = 0
    for path in sorted(Path(settings.LOGS_DIR).glob("*/*.log")):
        with path.open("rb") as file:
            entry = archive.gettarinfo(arcname=f"{LOGS}/{path.parent.name}/{path.name}", fileobj=file)
            archive.addfile(entry, file)
        count += 1
    return count


def _secrets() -> str:
    """What reads this installation's stored secrets, wherever it came from."""
    return json.dumps({"secret_key": settings.SECRET_KEY, "encryption_keys": settings.ENCRYPTION_KEYS, **_generated()})


def _generated() -> dict[str, str]:
    path = env.environment().console_dir / "secrets.json"
    return {"generated": path.read_text()} if path.exists() else {}
