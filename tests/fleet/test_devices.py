"""Devices and environment: what an agent tells, and what a person sees of it."""

import json
import re
import time
from datetime import timedelta
from typing import Any

import pytest
import redis
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from console.access.models import Role, User
from console.fleet import devices, environment
from console.fleet.models import Device, Engine, Host
from console.telemetry.ingest import take_reports, take_samples
from tests.conftest import person
from tests.factories import Fleet
from workers.contracts import Heartbeat
from workers.host_facts import GpuReading, Live

pytestmark = pytest.mark.django_db

GIB = 1024**3
INSTANCE = "0f6c5a0e-0000-4000-8000-000000000001"


def signed_in(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client


def gpu(index: int, **changes: Any) -> dict[str, Any]:
    return {
        "index": index, "uuid": f"GPU-{index}", "name": "NVIDIA H100 80GB HBM3", "capability": "9.0",
        "memory_total": 80 * GIB, "memory_used": 10 * GIB, "memory_free": 70 * GIB, "utilization": 0.5,
        "temperature_c": 51, "power_watts": 300.4, "power_limit_watts": 700.0,
    } | changes  # fmt: skip


def live(*gpus: dict[str, Any], strangers: list[dict[str, Any]] | None = None, **reading: Any) -> dict[str, Any]:
    said = {"source": "nvml", "driver": "570.124.06", "cuda": "12.8", "gpus": list(gpus)} | reading
    told = Live.model_validate({"gpus": said, "strangers": strangers or []})
    return {
        "memory_total": 512 * GIB, "memory_available": 400 * GIB, "cpu_used": 0.1, "load_1m": 1.0, "disk_free": 1,
        "disk_total": 2, "live": told.model_dump(mode="json", exclude_defaults=True),
    }  # fmt: skip


def beat(fleet: Fleet, vitals: dict[str, Any]) -> None:
    heartbeat = Heartbeat(
        agent_version="1", agent_pid=1, agent_boot=fleet.outbox, at=time.time(), generation=None, vitals=vitals
    )
    take_samples(fleet.host, [("1-0", heartbeat.model_dump_json())])
    fleet.host.refresh_from_db()


def facts(**changes: Any) -> dict[str, Any]:
    return {
        "system": {"machine": "x86_64", "kernel": "6.8", "glibc": "2.39"},
        "cpu": {"name": "AMD EPYC 9654", "cores": 96, "threads": 192, "usable": 192.0, "features": ["avx2", "avx512f"]},
        "limits": {"open_files": 65536, "shm_total": 64 * GIB},
        "memory": {"total": 512 * GIB, "available": 400 * GIB},
        **changes,
    }


def report(
    fleet: Fleet,
    broker: redis.Redis,
    *found: dict[str, Any],
    known: bool = True,
    engines: Any = (),
    told_engines: Any = (),
    **told: Any,
) -> None:
    rows = [
        {"kind": "cpu", "index": 0, "uuid": "cpu", "name": "AMD EPYC 9654", "memory_total": 512 * GIB, "memory_free": 1}
    ]
    rows += [
        {"kind": "gpu", "index": one["index"], "uuid": one["uuid"], "name": one["name"],
         "memory_total": one["memory_total"], "memory_free": one["memory_free"]} for one in found
    ]  # fmt: skip
    body = {
        "kind": "host.inventory", "agent_version": "1", "contract": 1, "devices": rows, "devices_known": known,
        "engines": [{"key": one.key, "distribution": one.distribution, "version": one.version, "platform": one.platform,
                     "path": one.path} for one in engines],
        "facts": {"hostname": "h", "host": facts(engines=list(told_engines), **told)},
    }  # fmt: skip
    take_reports(broker, fleet.host, [fleet.report(**body)])
    fleet.host.refresh_from_db()


def page(user: User, host: Host) -> str:
    return str(signed_in(user).get(reverse("host_detail", args=[host.pk])).content.decode())


def test_a_heartbeat_carries_the_devices_into_what_lists_read(fleet: Fleet) -> None:
    beat(fleet, live(gpu(0), gpu(1, memory_free=20 * GIB)))
    assert fleet.host.gpu_count == 2
    assert fleet.host.memory_free == 90 * GIB
    assert [(one["kind"], one["count"], one["used"]) for one in fleet.host.device_groups] == [
        ("gpu", 2, 70 * GIB),
        ("cpu", 1, 112 * GIB),
    ]


def test_a_divided_gpu_counts_by_its_parts_only(fleet: Fleet) -> None:
    part = gpu(0, uuid="MIG-1", mig={"parent": "GPU-0", "gpu_instance": 2, "compute_instance": 0, "profile": "3g.40gb"})
    beat(fleet, live(gpu(0, mig_enabled=True), part | {"memory_total": 40 * GIB, "memory_free": 39 * GIB}))
    assert (fleet.host.gpu_count, fleet.host.memory_free) == (1, 39 * GIB)


def test_a_device_that_vanishes_is_lost_not_deleted_and_comes_back(
    fleet: Fleet, viewer: User, broker: redis.Redis
) -> None:
    report(fleet, broker, gpu(0), gpu(1))
    report(fleet, broker, gpu(0), gpus={"code": "lost", "problem": "GPU 1: GPU is lost"})
    lost = Device.objects.get(host=fleet.host, uuid="GPU-1")
    assert lost.lost_at is not None
    assert fleet.host.lost_devices == 1
    shown = page(viewer, fleet.host)
    assert "GPU 1: GPU is lost" in shown
    assert "1 device lost" in signed_in(viewer).get(reverse("host_list")).content.decode()
    report(fleet, broker, gpu(0), gpu(1))
    lost.refresh_from_db()
    assert (lost.lost_at, fleet.host.lost_devices) == (None, 0)


def test_a_host_that_has_not_looked_yet_loses_nothing(fleet: Fleet, broker: redis.Redis) -> None:
    report(fleet, broker, gpu(0))
    report(fleet, broker, known=False)
    assert Device.objects.get(host=fleet.host, uuid="GPU-0").lost_at is None


def test_an_older_agent_that_tells_rows_only_is_still_summed_up(
    fleet: Fleet, broker: redis.Redis, viewer: User
) -> None:
    report(fleet, broker, gpu(0))
    beat(fleet, {"memory_total": 512 * GIB, "memory_available": 1 * GIB, "gpus": []})
    assert (fleet.host.gpu_count, fleet.host.memory_free) == (1, 70 * GIB)
    assert "NVIDIA H100" in page(viewer, fleet.host)


@pytest.mark.parametrize("vitals", [{"live": {"gpus": {"gpus": "no"}}}, {"live": 7}, {"live": {"gpus": []}}, {}])
def test_vitals_that_are_no_vitals_break_nothing(fleet: Fleet, viewer: User, vitals: dict[str, Any]) -> None:
    beat(fleet, vitals)
    assert fleet.host.vitals == vitals
    assert page(viewer, fleet.host)


@pytest.mark.parametrize("state", ["ready", "stopped"])
def test_memory_is_shown_by_its_owners_ours_by_name_strangers_by_command(
    fleet: Fleet, viewer: User, state: str
) -> None:
    """Also of one that has ended since the heartbeat."""
    fleet.deploy()
    instance = fleet.host.instances.get()  # type: ignore[attr-defined]
    type(instance).objects.filter(pk=instance.pk).update(uuid=INSTANCE, state=state)
    processes = [
        {"pid": 7, "memory": 6 * GIB, "instance": INSTANCE, "name": "VLLM::EngineCore"},
        {"pid": 8, "memory": 3 * GIB, "name": "/usr/bin/python3 train.py --api-key ***"},
        {"pid": 9, "memory": None, "name": ""},
        {"pid": 10, "memory": GIB, "instance": "no uuid at all", "name": "x"},
    ]
    beat(fleet, live(gpu(0, processes=processes)))
    shown = page(viewer, fleet.host)
    assert "an instance of another Slipway" in shown
    assert f'<a href="{reverse("instance_detail", args=[instance.pk])}">{instance.deployment.name} #1</a>' in shown
    assert "python3 train.py" in shown
    assert "a process of another user" in shown
    widths = [int(one) for one in re.findall(r'<rect class="owner-\S+" x="\d+" y="0" width="(\d+)"', shown)]
    assert widths[:2] == [75, 38]
    assert "300 / 700 W" in shown
    assert "51 °C" in shown


def test_a_reading_that_hangs_or_is_old_is_said_on_the_page(fleet: Fleet, viewer: User) -> None:
    vitals = live(gpu(0), code="hangs", problem="devices and processes have not answered for 70 s")
    vitals["live"]["age_seconds"] = 70
    beat(fleet, vitals)
    shown = page(viewer, fleet.host)
    assert "have not answered for 70 s" in shown
    assert "numbers are 1 min 10 s old" in shown


def test_names_from_a_host_can_not_bring_markup(fleet: Fleet, viewer: User) -> None:
    nasty = "<script>alert(1)</script>"
    stranger = {"pid": 5, "command": f"vllm serve '{nasty}'", "model": nasty, "python": nasty, "user": nasty}
    beat(
        fleet, live(gpu(0, name=nasty, processes=[{"pid": 1, "name": nasty, "memory": 2 * GIB}]), strangers=[stranger])
    )
    shown = page(viewer, fleet.host)
    assert nasty not in shown
    assert "&lt;script&gt;alert" in shown


def test_a_vllm_started_by_hand_is_shown_and_becomes_a_deployment_of_an_admin(
    fleet: Fleet, admin: User, operator: User, viewer: User
) -> None:
    stranger = {
        "pid": 4711, "user": "ada", "command": "vllm serve /m/q --api-key '***' --max-model-len 4096", "port": 8000,
        "model": "/m/q", "devices": ["GPU-0"], "memory": 40 * GIB, "started_at": time.time() - 60,
    }  # fmt: skip
    beat(fleet, live(gpu(0), strangers=[stranger]))
    for user in (admin, operator, viewer):
        shown = page(user, fleet.host)
        assert "A vLLM that somebody started by hand" in shown
        assert "4711" in shown
        assert ("command=vllm+serve+%2Fm%2Fq" in shown) is (user.role == Role.ADMIN)


def test_the_environment_card_judges_host_and_each_engine_failures_first(
    fleet: Fleet, viewer: User, broker: redis.Redis
) -> None:
    Engine.objects.filter(pk=fleet.engine.pk).update(key="vllm-0.32.0", distribution="vllm", platform="cuda")
    fleet.engine.refresh_from_db()
    told = [
        {"key": "vllm-0.32.0", "version": "0.32.0", "platform": "cuda", "torch": "2.13.0+cpu", "torch_build": "cpu"}
    ]
    hub = {"endpoint": "https://h", "reachable": False, "problem": "refused"}
    report(fleet, broker, gpu(0), engines=[fleet.engine], told_engines=told, hub=hub)
    beat(fleet, live(gpu(0)))
    card = environment.card(fleet.host, [fleet.engine])
    assert card is not None
    assert next(line.code for _engines, line in card.troubles) == "environment.torch"
    assert fleet.host.environment_failures == card.number("failure") == 1
    shown = page(viewer, fleet.host)
    assert shown.index("CPU only") < shown.index("refused")
    assert "install the engine again" in shown


def test_the_list_filters_and_sorts_by_devices_memory_and_environment(viewer: User) -> None:
    now = timezone.now()
    for name, gpus, free, failures in (("big", 8, 600 * GIB, 0), ("small", 1, 10 * GIB, 2), ("plain", 0, 50 * GIB, 0)):
        host = Host.objects.create(
            name=name, public_key="x", last_seen_at=now, gpu_count=gpus, memory_free=free, environment_failures=failures
        )
        if gpus:
            Device.objects.create(
                host=host, kind="gpu", index=0, uuid=name, name=f"NVIDIA {name}", memory_total=1, memory_free=1
            )
    client = signed_in(viewer)

    def found(**query: Any) -> list[str]:
        return [host.name for host in client.get(reverse("host_list"), query).context["page"]]

    assert found(sort="-memory_free") == ["big", "plain", "small"]
    assert found(devices="gpu") == ["big", "small"]
    assert found(devices="cpu") == ["plain"]
    assert found(state="failing") == ["small"]
    assert found(state="sound") == ["big", "plain"]
    assert found(q="nvidia small") == ["small"]
    assert found(devices="NVIDIA small") == ["small"]
    totals = client.get(reverse("host_list")).context["totals"]
    assert (totals["online"], totals["gpus"], totals["memory_free"], totals["failing"]) == (3, 9, 610 * GIB, 1)


def test_the_list_filters_by_label_and_by_what_people_want_of_a_host_and_leaves_removed_ones_out(viewer: User) -> None:
    for name, values in (
        ("a", {"labels": {"zone": "a", "old": ""}}),
        ("b", {"labels": {"zone": "b"}, "state": "paused"}),
        ("c", {"state": "draining"}),
    ):
        Host.objects.create(name=name, public_key="x", last_seen_at=timezone.now(), **values)
    Host.objects.create(name="gone")
    client = signed_in(viewer)

    def found(**query: Any) -> list[str]:
        return [row.name for row in client.get(reverse("host_list"), query).context["rows"]]

    assert found() == ["a", "b", "c"]
    assert found(presence="removed") == ["gone"]
    assert found(label="zone=b") == ["b"]
    assert found(label="old") == ["a"]
    assert found(presence="paused") == ["b"]
    assert found(presence="draining", label="zone=a") == []
    shown = client.get(reverse("host_list"), {"label": "zone=b"}).content.decode()
    assert '<option value="zone=b" selected>' in shown
    assert "paused" in shown


def _many(count: int) -> None:
    vitals = live(*(gpu(index) for index in range(8)))
    now = timezone.now()
    hosts = []
    for number in range(count):
        host = Host(
            name=f"gpu-{number:04}", public_key="x", last_seen_at=now, online_since=now, facts={"host": facts()}
        )
        devices.note_vitals(host, vitals)
        hosts.append(host)
    Host.objects.bulk_create(hosts)
    Device.objects.bulk_create(
        Device(host=host, kind="gpu", index=index, uuid=f"GPU-{index}", name="NVIDIA H100 80GB HBM3",
               memory_total=80 * GIB, memory_free=70 * GIB)
        for host in hosts for index in range(8)
    )  # fmt: skip
    Engine.objects.bulk_create(
        Engine(host=host, key="vllm-1", distribution="vllm", version="1", platform="cuda", path="/e") for host in hosts
    )


def _best(client: Client, tries: int = 4) -> float:
    """The processor's own time for the list, in seconds: other work on the machine is not counted."""
    taken = []
    for _number in range(tries):
        began = time.process_time()
        client.get(reverse("host_list"), {"sort": "-memory_free"})
        taken.append(time.process_time() - began)
    return min(taken)


def test_a_thousand_hosts_of_8_gpus_cost_the_queries_and_about_the_time_of_sixty(
    viewer: User, django_assert_num_queries: Any
) -> None:
    client = signed_in(viewer)
    _many(60)
    client.get(reverse("host_list"))
    with CaptureQueriesContext(connection) as few:
        client.get(reverse("host_list"))
    queries = len(few)
    sixty = _best(client)
    Host.objects.all().delete()
    _many(1000)
    with django_assert_num_queries(queries):
        answer = client.get(reverse("host_list"))
    assert queries <= 9
    assert answer.content.decode().count("8 × NVIDIA H100") == 50
    assert _best(client) < 2 * sixty


def test_the_overview_counts_gpus_and_reads_no_devices(viewer: User, django_assert_max_num_queries: Any) -> None:
    _many(20)
    client = signed_in(viewer)
    with django_assert_max_num_queries(20):
        answer = client.get(reverse("overview"))
    assert answer.context["numbers"]["devices"] == 160


def test_hosts_of_another_team_are_in_no_total(admin: User) -> None:
    from console.access.models import Team

    Host.objects.create(
        name="foreign",
        team=Team.objects.create(name="others"),
        public_key="x",
        last_seen_at=timezone.now(),
        gpu_count=8,
    )
    assert signed_in(admin).get(reverse("host_list")).context["totals"]["all"] == 0


def test_a_silent_hosts_devices_are_shown_as_last_known(fleet: Fleet, viewer: User, broker: redis.Redis) -> None:
    report(fleet, broker, gpu(0))
    beat(fleet, live(gpu(0, processes=[{"pid": 3, "name": "gone", "memory": GIB}])))
    Host.objects.filter(pk=fleet.host.pk).update(last_seen_at=timezone.now() - timedelta(minutes=3))
    shown = page(viewer, fleet.host)
    assert "NVIDIA H100" in shown
    assert "Processes on GPUs" not in shown


def test_a_reading_survives_being_stored(fleet: Fleet) -> None:
    beat(fleet, live(gpu(0)))
    stored = json.loads(json.dumps(fleet.host.vitals))["live"]["gpus"]
    assert GpuReading.model_validate(stored).gpus[0].memory_free == 70 * GIB


def test_someone_without_a_role_sees_nothing(db: None, fleet: Fleet) -> None:
    stranger = person("nobody", "none")  # type: ignore[arg-type]
    assert signed_in(stranger).get(reverse("host_detail", args=[fleet.host.pk])).status_code == 403
