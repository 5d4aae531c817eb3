"""Restore: put a backup into a database, and start a new epoch for every host.

What hosts were told after the backup was made is unknown to the restored database. So every host starts a new epoch, in
which the agent's numbers count from the beginning, and no number that was given out since is given out again: an agent that
remembers step 41 must not take a new step for it.
"""

import json
import shutil
import tarfile
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core import serializers
from django.core.management import call_command
from django.core.management.color import no_style
from django.core.serializers.base import DeserializedObject
from django.db import connection, models, transaction
from django.db.migrations.recorder import MigrationRecorder
from django.db.models import F

from console import env
from console.access.models import User
from console.fleet.models import Host, ReportCursor
from console.jobs.models import LIVE_STATES, Job, Step
from console.operations import embedded_broker, up
from console.operations.backup import DATABASE, FORMAT, LOGS, MANIFEST, SECRETS, kept_models

NUMBERS_LEFT_OUT = 1_000_000
"""How many numbers of jobs and steps are skipped: more than were given out between a backup and its restore."""
FENCES_LEFT_OUT = 1000
_BATCH = 500


class RestoreRefused(Exception):
    """The backup can't be restored here and now; the message says why and what to do."""


def restore(source: Path, *, force: bool, say: Callable[[str], None]) -> dict[str, Any]:
    """Restore `source`; returns its manifest. Raises RestoreRefused before anything has been changed."""
    if running := up.running():
        raise RestoreRefused(f"The console runs (pid {running.pid}). Stop it first: Ctrl-C, or `make demo-down`.")
    with tempfile.TemporaryDirectory(dir=env.environment().console_dir, prefix=".restore-") as folder:
        _unpack(source, Path(folder))
        manifest: dict[str, Any] = json.loads((Path(folder) / MANIFEST).read_text())
        call_command("migrate", interactive=False, verbosity=0)
        _check(manifest, force=force)
        with transaction.atomic():
            _empty()
            count = _load(Path(folder) / DATABASE)
            _start_new_epochs()
        _skip_numbers()
        _put_logs(Path(folder) / LOGS)
        _put_secrets(Path(folder) / SECRETS, say)
    _forget_broker(say)
    say(f"{count:,} objects of {manifest['created_at']} are restored; every host starts a new epoch")
    return manifest


def _unpack(source: Path, folder: Path) -> None:
    try:
        with tarfile.open(source, "r:gz") as archive:
            archive.extractall(folder, filter="data")
    except (OSError, tarfile.TarError, EOFError) as error:
        raise RestoreRefused(f"{source} can't be read as a backup: {error}") from None
    for name in (MANIFEST, DATABASE):
        if not (folder / name).is_file():
            raise RestoreRefused(f"{source} is no backup of Slipway: {name} is not in it.")


def _check(manifest: dict[str, Any], *, force: bool) -> None:
    if manifest.get("format") != FORMAT:
        raise RestoreRefused(f"The backup has format {manifest.get('format')}; this version reads format {FORMAT}.")
    here = {f"{app}.{name}" for app, name in MigrationRecorder(connection).applied_migrations()}
    newer = sorted(set(manifest["migrations"]) - here)
    if newer:
        raise RestoreRefused(
            f"The backup was made by version {manifest['version']}, which is newer: {', '.join(newer[:3])} is unknown here. "
            "Install that version, then restore."
        )
    if not force and (User.objects.exists() or Host.objects.exists() or Job.objects.exists()):
        raise RestoreRefused(
            f"The database is not empty: {User.objects.count()} people, {Host.objects.count()} hosts, "
            f"{Job.objects.count()} jobs. With --force all of it is replaced."
        )


def _empty() -> None:
    for model in kept_models():
        rows = model._base_manager.all()
        rows._raw_delete(rows.db)


def _load(path: Path) -> int:
    """Insert all objects; constraints between them are checked when the transaction commits."""
    known = {model._meta.label_lower for model in kept_models()}
    count = 0
    with path.open(encoding="utf-8") as file, connection.constraint_checks_disabled():
        waiting: dict[type[models.Model], list[models.Model]] = defaultdict(list)
        for one in _objects(file):
            label = one.object._meta.label_lower
            if label not in known:
                raise RestoreRefused(f"The backup holds {label}, which does not belong into one.")
            rows = waiting[type(one.object)]
            rows.append(one.object)
            count += 1
            if len(rows) >= _BATCH:
                _insert(rows)
        for rows in waiting.values():
            _insert(rows)
    connection.check_constraints()
    return count


def _objects(file: Any) -> Iterator[DeserializedObject]:
    # Fields that a later version has dropped are skipped; fields that it has added take their defaults.
    yield from serializers.deserialize("jsonl", file, ignorenonexistent=True)


def _insert(rows: list[models.Model]) -> None:
    if rows:
        type(rows[0])._base_manager.bulk_create(rows)
        rows.clear()


def _start_new_epochs() -> None:
    Host.objects.update(
        epoch=F("epoch") + 1,
        generation=0,
        reflected_epoch=0,
        reflected_generation=0,
        last_seen_at=None,
        agent_boot=None,
    )
    # The outboxes have gone on counting; without a cursor the next report that comes is taken as the first one.
    ReportCursor.objects.all().delete()
    Step.objects.filter(state__in=LIVE_STATES).update(fence=F("fence") + FENCES_LEFT_OUT)


def _skip_numbers() -> None:
    """Let new jobs and steps have numbers that no host has ever seen."""
    with connection.cursor() as cursor:
        for statement in connection.ops.sequence_reset_sql(no_style(), kept_models()):
            cursor.execute(statement)
    for model in (Job, Step):
        last = model._base_manager.aggregate(last=models.Max("pk"))["last"] or 0
        _set_sequence(model, last + NUMBERS_LEFT_OUT)


def _set_sequence(model: type[models.Model], last: int) -> None:
    table = model._meta.db_table
    with connection.cursor() as cursor:
        if connection.vendor == "sqlite":
            cursor.execute("UPDATE sqlite_sequence SET seq = %s WHERE name = %s", [last, table])
            if cursor.rowcount == 0:
                cursor.execute("INSERT INTO sqlite_sequence (name, seq) VALUES (%s, %s)", [table, last])
        else:
            cursor.execute("SELECT setval(pg_get_serial_sequence(%s, 'id'), %s)", [table, last])


def _put_logs(source: Path) -> None:
    target = Path(settings.LOGS_DIR)
    if target.exists():
        shutil.rmtree(target)
    if source.exists():
        shutil.move(source, target)


def _put_secrets(source: Path, say: Callable[[str], None]) -> None:
    if not source.exists():
        return
    stored = json.loads(source.read_text())
    if env.environment().slipway_encryption_keys:
        say(
            "The backup's secrets were not put back: SLIPWAY_ENCRYPTION_KEYS is set and counts. Add its keys at the end:"
        )
        say(",".join(stored["encryption_keys"]))
        return
    target = env.environment().console_dir / "secrets.json"
    values = json.loads(target.read_text()) if target.exists() else json.loads(stored.get("generated", "{}"))
    values |= {"secret_key": stored["secret_key"], "encryption_key": stored["encryption_keys"][0]}
    draft = target.with_suffix(".restored")
    draft.touch(mode=0o600)
    draft.write_text(json.dumps(values))
    draft.replace(target)


def _forget_broker(say: Callable[[str], None]) -> None:
    """What stands in the broker belongs to the database that was replaced; the console writes it anew."""
    if env.environment().redis_url:
        say("In the Redis of REDIS_URL, delete the keys `h:*` and the users `host_*`: the console makes them again.")
        return
    directory = embedded_broker.directory()
    if directory.exists():
        directory.rename(directory.with_name(f"broker.before-restore-{datetime.now(UTC):%Y%m%dT%H%M%S}"))
