import json
import tarfile
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.core.management import CommandError, call_command

from console.access.models import User
from console.common.models import StateChange
from console.common.secrets import decrypt
from console.deployments.models import Attempt, Deployment, Instance
from console.fleet.models import Host, ReportCursor
from console.jobs.models import Event, Job, Step
from console.operations import backup as backups
from tests import factories

pytestmark = pytest.mark.django_db(transaction=True)


def pictured() -> dict[str, list[dict[str, Any]]]:
    """Every row of every kept model, as plain values."""
    return {
        model._meta.label: list(model._base_manager.order_by("pk").values())
        for model in backups.kept_models()
        if model is not ReportCursor
    }


@pytest.fixture
def full(tmp_path: Path) -> factories.Fleet:
    """A ledger with a running job, an attempt with its log, and a person."""
    User.objects.create_user("ada", password="correct horse battery", role="admin")
    fleet = factories.Fleet.make()
    job = fleet.deploy()
    instance = Instance.objects.get(pk=job.payload["instance"])
    attempt = Attempt.objects.create(instance=instance, number=1, argv=["vllm", "serve"], log_bytes=6)
    attempt.log_path.parent.mkdir(parents=True, exist_ok=True)
    attempt.log_path.write_bytes(b"hello\n")
    ReportCursor.objects.create(host=fleet.host, outbox=fleet.outbox, number=41)
    return fleet


def archive(tmp_path: Path, *options: str) -> Path:
    target = tmp_path / "slipway.tar.gz"
    call_command("backup", str(target), *options)
    return target


def test_a_backup_comes_back_as_it_was(full: factories.Fleet, tmp_path: Path) -> None:
    before = pictured()
    key = decrypt(Deployment.objects.get().api_key)
    target = archive(tmp_path)
    Event.objects.all().delete()
    User.objects.create_user("later")
    attempt = Attempt.objects.get()
    attempt.log_path.unlink()

    call_command("restore", str(target), "--force")

    after = pictured()
    for label, rows in before.items():
        if label not in ("fleet.Host", "jobs.Step"):
            assert after[label] == rows, label
    assert len(after["fleet.Host"]) == 1
    assert len(after["jobs.Step"]) == 6
    assert attempt.log_path.read_bytes() == b"hello\n"
    assert decrypt(Deployment.objects.get().api_key) == key
    assert StateChange.objects.exists()


def test_a_restore_starts_a_new_epoch_and_forgets_what_hosts_have_counted(
    full: factories.Fleet, tmp_path: Path
) -> None:
    Host.objects.update(epoch=3, generation=17)
    fence = Step.objects.order_by("position").values_list("fence", flat=True)[0]
    target = archive(tmp_path)

    call_command("restore", str(target), "--force")

    host = Host.objects.get()
    assert (host.epoch, host.generation) == (4, 0)
    assert not ReportCursor.objects.exists()
    assert Step.objects.order_by("position").values_list("fence", flat=True)[0] >= fence + 1000


def test_numbers_of_jobs_and_steps_are_never_given_out_again(full: factories.Fleet, tmp_path: Path) -> None:
    target = archive(tmp_path)
    lost = full.deploy()
    lost_steps = set(lost.steps.values_list("pk", flat=True))

    call_command("restore", str(target), "--force")

    again = full.deploy()
    assert again.pk > lost.pk + 1000
    assert min(again.steps.values_list("pk", flat=True)) > max(lost_steps) + 1000


def test_a_database_that_is_not_empty_is_only_replaced_by_force(full: factories.Fleet, tmp_path: Path) -> None:
    target = archive(tmp_path)
    with pytest.raises(CommandError, match="not empty: 1 people, 1 hosts, 1 jobs"):
        call_command("restore", str(target))
    assert Job.objects.count() == 1


def test_a_backup_of_a_newer_version_is_refused_before_anything_changes(full: factories.Fleet, tmp_path: Path) -> None:
    target = archive(tmp_path)
    changed = tmp_path / "newer.tar.gz"
    with tarfile.open(target) as old, tarfile.open(changed, "w:gz") as new:
        old.extractall(tmp_path / "x", filter="data")
        manifest = json.loads((tmp_path / "x" / "manifest.json").read_text())
        manifest["migrations"].append("jobs.9999_from_the_future")
        (tmp_path / "x" / "manifest.json").write_text(json.dumps(manifest))
        for name in ("manifest.json", "database.jsonl"):
            new.add(tmp_path / "x" / name, name)
    with pytest.raises(CommandError, match="9999_from_the_future is unknown here"):
        call_command("restore", str(changed), "--force")
    assert Job.objects.count() == 1


def test_a_damaged_backup_changes_nothing(full: factories.Fleet, tmp_path: Path) -> None:
    target = archive(tmp_path)
    whole = target.read_bytes()
    target.write_bytes(whole[: len(whole) // 2])
    before = pictured()
    with pytest.raises(CommandError, match="can't be read as a backup"):
        call_command("restore", str(target), "--force")
    assert pictured() == before


def test_secrets_are_only_in_a_backup_that_was_asked_to_hold_them(full: factories.Fleet, tmp_path: Path) -> None:
    with tarfile.open(archive(tmp_path)) as plain:
        assert plain.getnames()[:2] == ["manifest.json", "database.jsonl"]
        assert "secrets.json" not in plain.getnames()
        assert settings.ENCRYPTION_KEYS[0].encode() not in plain.extractfile("database.jsonl").read()  # type: ignore[union-attr]
    with tarfile.open(archive(tmp_path, "--with-secrets")) as with_secrets:
        kept = json.load(with_secrets.extractfile("secrets.json"))  # type: ignore[arg-type]
    assert kept["encryption_keys"] == settings.ENCRYPTION_KEYS
