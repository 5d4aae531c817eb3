"""Boards, their data and their sockets: who may look, what is answered, and why a chart is empty."""

import asyncio
import csv
import io
import json
import time
from datetime import timedelta
from typing import Any

import pytest
import redis
from asgiref.sync import sync_to_async
from django.core import signing
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from console.access import share_links
from console.access.models import AuditEntry, Team, User
from console.alerts.models import Alert, Rule
from console.common.states import move
from console.deployments import current
from console.deployments.models import Attempt, Deployment, Instance, Launch
from console.fleet.models import Device, Host
from console.telemetry import fleet_board, host_board, sharing
from console.telemetry.intake import Intake
from console.telemetry.rings import LIVE, STORED, Rings
from console.telemetry.windows import Window
from tests.factories import Fleet
from tests.telemetry.samples import FakeLoad
from tests.telemetry.test_consumers import communicator, receive
from tests.telemetry.test_metrics_flow import entry, play

pytestmark = pytest.mark.django_db(transaction=True)


def signed_in(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client


@pytest.fixture
def instance(broker: redis.Redis, fleet: Fleet) -> Instance:
    broker.delete(STORED, current.KEY, LIVE, fleet_board.STREAM)
    fleet.deploy()
    Instance.objects.update(state="ready", ordered=True)
    Deployment.objects.update(state="serving")
    return Instance.objects.select_related("deployment", "host").get()


@pytest.fixture
def intake(broker: redis.Redis, instance: Instance) -> Intake:
    """An instance with two minutes of metrics, two requests a second."""
    made = Intake(Rings(broker))
    play(
        made, instance, FakeLoad(kv=0.3, running=2), int(time.time()) - 121, 121, each=2
    )  # the second that runs is not over
    made.tell_current(broker)
    return made


def series(client: Client, instance: Instance, **query: Any) -> Any:
    answer = client.get(reverse("deployment_series", args=[instance.deployment_id]), query)
    assert answer.status_code == 200, answer.content
    return answer.json()


BOARD_PAGES = ["deployment_metrics", "deployment_series", "deployment_csv", "deployment_share"]


@pytest.mark.parametrize("name", BOARD_PAGES)
def test_every_role_may_look_and_other_teams_may_not(
    instance: Instance, viewer: User, operator: User, admin: User, name: str
) -> None:
    address = reverse(name, args=[instance.deployment_id])
    for person in (viewer, operator, admin):
        assert signed_in(person).get(address).status_code == 200
    assert Client().get(address).status_code == 302
    viewer.team = Team.objects.create(name="others")
    viewer.save()
    assert signed_in(viewer).get(address).status_code == 404


@pytest.mark.parametrize("name", ["host_metrics", "host_series"])
def test_a_hosts_board_is_for_its_team(instance: Instance, viewer: User, name: str) -> None:
    address = reverse(name, args=[instance.host_id])
    assert signed_in(viewer).get(address).status_code == 200
    assert Client().get(address).status_code == 302
    viewer.team = Team.objects.create(name="others")
    viewer.save()
    assert signed_in(viewer).get(address).status_code == 404


def test_a_hosts_memory_is_shown_by_owner(broker: redis.Redis, instance: Instance, viewer: User) -> None:
    gib = 1 << 30
    Device.objects.create(
        host=instance.host, kind="gpu", index=0, uuid="a", name="H100", memory_total=80 * gib, memory_free=0
    )
    gpu = {
        "index": 0, "uuid": "a", "name": "H100", "memory_total": 80 * gib, "memory_free": 10 * gib,
        "temperature_c": 61, "power_watts": 412.0, "utilization": 0.8,
        "processes": [{"pid": 1, "memory": 50 * gib, "instance": str(instance.uuid)}, {"pid": 2, "memory": 15 * gib}],
    }  # fmt: skip
    vitals = {
        "cpu_used": 0.25, "load_1m": 1.5, "memory_total": 100 * gib, "memory_available": 60 * gib,
        "disk_total": 500 * gib, "disk_free": 100 * gib, "live": {"gpus": {"source": "nvml", "gpus": [gpu]}},
    }  # fmt: skip
    host_board.record(broker, instance.host_id, vitals)
    board = signed_in(viewer).get(reverse("host_series", args=[instance.host_id])).json()
    values = {key: line[-1] for key, line in board["groups"][0]["values"].items()}
    assert (values["gpu0.engines"], values["gpu0.strangers"], values["gpu0.other"]) == (50, 15, 5)
    assert (values["gpu0.temperature"], values["gpu0.power"], values["cpu"], values["disk"]) == (61, 412, 0.25, 400)
    assert list(board["empty"]) == ["network", "gpu0-clock"]
    assert set(board["empty"].values()) == {"This host does not tell that."}


def test_each_part_of_a_divided_gpu_has_charts_of_its_own(instance: Instance) -> None:
    gib = 1 << 30
    gpus = []
    for number in (3, 5):
        mig = {"parent": "GPU-a", "gpu_instance": number, "compute_instance": 0, "profile": "1g.10gb"}
        told = {"index": 0, "uuid": f"MIG-{number}", "name": "A100 MIG", "memory_total": 10 * gib}
        Device.objects.create(host=instance.host, kind="gpu", memory_free=0, details={"mig": mig}, **told)
        gpus.append(told | {"mig": mig, "processes": [{"pid": number, "memory": number * gib}]})
    values = host_board.readings({"live": {"gpus": {"source": "nvml", "gpus": gpus}}})
    assert (values["gpu0-3-0.strangers"], values["gpu0-5-0.strangers"]) == (3, 5)
    charts = {chart.id: str(chart.title) for chart in host_board.charts(instance.host) if chart.id.endswith("-memory")}
    assert charts == {
        "gpu0-3-0-memory": "GPU 0: memory · MIG 0.3.0",
        "gpu0-5-0-memory": "GPU 0: memory · MIG 0.5.0",
    }


@pytest.mark.parametrize("name", ["fleet", "fleet_wall", "fleet_series"])
def test_the_fleet_is_for_everybody_who_is_signed_in(intake: Intake, viewer: User, name: str) -> None:
    assert signed_in(viewer).get(reverse(name)).status_code == 200
    assert Client().get(reverse(name)).status_code == 302


def test_a_boards_data_are_what_was_counted(intake: Intake, instance: Instance, viewer: User) -> None:
    board = series(signed_in(viewer), instance)
    figures = {figure["key"]: figure["number"] for figure in board["totals"]}
    assert figures["requests"] == 240
    assert figures["generation_tokens"] == 4800
    values = board["groups"][0]["values"]
    assert values["requests"][5] == pytest.approx(2)
    assert values["kv_cache_usage"][5] == pytest.approx(0.3)
    assert len(board["t"]) == 120


def test_instances_apart_have_a_group_each(
    intake: Intake, broker: redis.Redis, instance: Instance, viewer: User
) -> None:
    second = Instance.objects.create(
        deployment=instance.deployment,
        spec=instance.spec,
        host=instance.host,
        number=2,
        port=19002,
        state="ready",
        ordered=True,
    )
    play(intake, second, FakeLoad(), int(time.time()) - 60, 60)
    board = series(signed_in(viewer), instance, apart="1")
    assert [group["key"] for group in board["groups"]] == ["1", "2"]
    together = series(signed_in(viewer), instance)["groups"][0]["values"]["requests"]
    assert max(value for value in together if value) == pytest.approx(3)


@pytest.mark.parametrize(
    "query", [{"range": "x"}, {"range": "5"}, {"from": "1", "to": "2"}, {"from": "9"}, {"range": "99999999"}]
)
def test_a_range_that_there_is_not_is_refused_in_words(instance: Instance, viewer: User, query: dict[str, str]) -> None:
    answer = signed_in(viewer).get(reverse("deployment_series", args=[instance.deployment_id]), query)
    assert answer.status_code == 400
    assert "range=SECONDS" in answer.json()["error"]
    answer = signed_in(viewer).get(reverse("deployment_csv", args=[instance.deployment_id]), query)
    assert answer.status_code == 400


def test_the_table_has_what_the_charts_draw(intake: Intake, instance: Instance, viewer: User) -> None:
    answer = signed_in(viewer).get(reverse("deployment_csv", args=[instance.deployment_id]))
    rows = list(csv.DictReader(io.StringIO(answer.content.decode())))
    assert len(rows) == 120
    assert sum(float(row["generation_tokens"]) for row in rows) == pytest.approx(4800, rel=0.01)
    assert rows[0]["time"].endswith("Z")
    assert "attachment" in answer["Content-Disposition"]


def test_an_empty_chart_says_why(intake: Intake, instance: Instance, viewer: User) -> None:
    empty = series(signed_in(viewer), instance)["empty"]
    assert empty["speculation"] == "Speculative decoding is not in use."
    assert empty["rejections"] == "vLLM 0.32.0 has no such metric."
    assert "time_to_first_token" not in empty


def test_a_board_without_requests_says_so(broker: redis.Redis, instance: Instance, viewer: User) -> None:
    play(Intake(Rings(broker)), instance, FakeLoad(), int(time.time()) - 30, 30, each=0)
    empty = series(signed_in(viewer), instance)["empty"]
    assert empty["time_to_first_token"] == "No requests in this range yet."
    assert "load" not in empty


def test_a_silent_host_is_named_with_the_time(instance: Instance, viewer: User) -> None:
    Host.objects.update(last_seen_at=timezone.now() - timedelta(minutes=10))
    empty = series(signed_in(viewer), instance)["empty"]
    assert f"Host {instance.host.name} offline since " in empty["tokens"]


def test_deploys_restarts_and_crashes_are_marked(intake: Intake, instance: Instance, viewer: User) -> None:
    instance.refresh_from_db()
    move(instance, to="restarting", reason="exit code 137")
    marks = series(signed_in(viewer), instance)["marks"]
    assert marks[-1]["kind"] == "restarting"  # after the deploy's own mark
    assert "exit code 137" in marks[-1]["text"]


def test_an_alert_is_marked_when_it_opens_and_when_it_is_over(
    intake: Intake, instance: Instance, viewer: User, operator: User
) -> None:
    now = timezone.now()
    rule = Rule.objects.create(team_id=1, name="KV full", condition="kv_usage", threshold=0.9, severity="critical")
    about = {"team_id": 1, "rule": rule, "severity": "critical", "value": 1, "worst": 1, "opened_at": now}
    mine = Alert.objects.create(**about, subject="instance:1", name="demo #1", deployment=instance.deployment)
    Alert.objects.create(**about, subject="host:1", name="its host", host=instance.host, state="closed", closed_at=now)
    other = Fleet.make()
    other.deploy()
    elsewhere = Deployment.objects.exclude(pk=instance.deployment_id).get()
    Alert.objects.create(**about, subject="instance:2", name="no", deployment=elsewhere, host=instance.host)
    marks = [mark for mark in series(signed_in(viewer), instance)["marks"] if mark["kind"].startswith("alert")]
    told = {(mark["text"], mark["tone"]) for mark in marks}
    assert told == {("KV full: demo #1", "bad"), ("KV full: its host", "bad"), ("Over: KV full: its host", "calm")}
    assert marks[0]["url"].startswith("/alerts/")
    token = share(signed_in(viewer), instance)
    shared = Client().get(reverse("shared_series", args=[token])).json()["marks"]
    assert [(mark["text"], mark["url"]) for mark in shared if mark["kind"] == "alert"] == [
        (f"KV full: {mine.name}", "")
    ]
    for name, args in (("host_series", [instance.host_id]), ("fleet_series", [])):
        texts = [mark["text"] for mark in signed_in(viewer).get(reverse(name, args=args)).json()["marks"]]
        assert "KV full: its host" in texts, name


def test_the_kv_cache_stands_beside_what_was_planned(intake: Intake, instance: Instance, viewer: User) -> None:
    client = signed_in(viewer)
    assert series(client, instance)["empty"]["kv_plan"] == "No start has told the size of its KV cache yet."
    attempt = Attempt.objects.create(instance=instance, number=1)
    Launch.objects.create(
        attempt=attempt, revision=instance.spec.copy.revision, deployment_name="demo", spec_number=1, device="cpu",
        platform="cpu", engine_version="0.32.0", batched_tokens=512, truth={"kv_cache_tokens": 40_000, "seconds": 20.0},
        prediction={"kv_cache_tokens": 42_000},
    )  # fmt: skip
    board = series(client, instance)
    values = {
        key: board["groups"][0]["values"][key][5] for key in ("kv_used_tokens", "kv_pool_tokens", "kv_planned_tokens")
    }
    assert values == {"kv_used_tokens": 12_000, "kv_pool_tokens": 40_000, "kv_planned_tokens": 42_000}
    (figure,) = [one for one in board["totals"] if one["key"] == "kv_cache_usage.max"]
    assert (figure["value"], figure["note"]) == ("30 %", "of 40,000 tokens; planned 42,000")


def test_a_hosts_network_is_growth_by_its_own_clock(broker: redis.Redis, instance: Instance, viewer: User) -> None:
    broker.delete(host_board.stream(instance.host_id))
    for at, received, sent in ((100.0, 5000, 100), (105.0, 15000, 600), (3.0, 10, 10), (8.0, 510, 20)):
        network = {"at": at, "received": received, "sent": sent}
        host_board.record(broker, instance.host_id, {"network": network})
    window = Window.last(900)
    entries = [content for _moment, content in host_board._entries(instance.host, window)]
    found = [(one.get("network.received"), one.get("network.sent")) for one in entries]
    assert found == [(None, None), (2000, 100), (None, None), (100, 2)]
    board = signed_in(viewer).get(reverse("host_series", args=[instance.host_id])).json()
    assert "network" not in board["empty"]


def test_a_zoomed_board_of_a_host_or_the_fleet_shows_that_range_only(
    broker: redis.Redis, intake: Intake, instance: Instance, viewer: User
) -> None:
    host_board.record(broker, instance.host_id, {"cpu_used": 0.5})
    now = int(time.time() * 1000)
    for name, args in (("host_series", [instance.host_id]), ("fleet_series", [])):
        address, client = reverse(name, args=args), signed_in(viewer)
        assert client.get(address, {"from": now - 60_000, "to": now + 1000}).json()["t"]
        assert not client.get(address, {"from": now - 600_000, "to": now - 300_000}).json()["t"]
        assert client.get(address, {"range": "172800"}).status_code == 400


@pytest.mark.parametrize("name", ["host_csv", "fleet_csv"])
def test_hosts_and_the_fleet_have_tables_too(
    broker: redis.Redis, intake: Intake, instance: Instance, viewer: User, name: str
) -> None:
    host_board.record(broker, instance.host_id, {"cpu_used": 0.5})
    address = reverse(name, args=[instance.host_id] if name == "host_csv" else [])
    answer = signed_in(viewer).get(address)
    (row,) = csv.DictReader(io.StringIO(answer.content.decode()))
    assert (row.get("cpu") or row.get("requests")) in ("0.5", "2", "2.0")
    assert Client().get(address).status_code == 302


def test_a_comparison_is_moved_onto_the_range(intake: Intake, instance: Instance, viewer: User) -> None:
    client = signed_in(viewer)
    board = series(client, instance, compare="week")
    assert board["compared"]["name"] == "a week earlier"
    assert board["compared"]["empty"] == "Nothing is stored of a week earlier."
    other = Fleet.make()
    other.deploy()
    second = Instance.objects.get(host=other.host)
    play(intake, second, FakeLoad(), int(time.time()) - 60, 60)
    board = series(client, instance, compare=str(second.deployment_id))
    assert board["compared"]["name"] == second.deployment.name
    assert len(board["compared"]["t"]) == 59
    assert board["compared"]["empty"] == ""


# -- shared ------------------------------------------------------------------------------------------------------------


def share(client: Client, instance: Instance, hours: str = "24") -> str:
    answer = client.post(reverse("deployment_share", args=[instance.deployment_id]), {"hours": hours})
    assert answer.status_code == 200, answer.content
    return str(answer.context["link"]).partition("/shared/")[2].strip("/")


def test_a_link_shows_the_board_without_an_account_and_nothing_else(
    intake: Intake, instance: Instance, viewer: User
) -> None:
    token = share(signed_in(viewer), instance)
    stranger = Client()
    page = stranger.get(reverse("shared_metrics", args=[token]))
    assert page.status_code == 200
    assert page["Referrer-Policy"] == "no-referrer"
    assert "csrfmiddlewaretoken" not in page.content.decode()
    assert "/account/" not in page.content.decode()
    data = stranger.get(reverse("shared_series", args=[token]))
    assert len(data.json()["t"]) == 120
    assert stranger.get(reverse("shared_csv", args=[token])).status_code == 200
    assert stranger.get(reverse("deployment_detail", args=[instance.deployment_id])).status_code == 302
    assert AuditEntry.objects.filter(action="metrics.share", actor=viewer).exists()


def test_a_link_compares_with_no_other_deployment(intake: Intake, instance: Instance, viewer: User) -> None:
    other = Fleet.make()
    other.deploy()
    key = Deployment.objects.exclude(pk=instance.deployment_id).get().pk
    token = share(signed_in(viewer), instance)
    data = Client().get(reverse("shared_series", args=[token]), {"compare": str(key)}).json()
    assert data["compared"] is None


def test_a_link_ends_and_can_not_be_forged(instance: Instance, viewer: User, monkeypatch: pytest.MonkeyPatch) -> None:
    token = share(signed_in(viewer), instance, "1")
    assert Client().get(reverse("shared_metrics", args=[token])).status_code == 200
    assert Client().get(reverse("shared_metrics", args=[f"{token}x"])).status_code == 404
    forged = signing.dumps(
        {"d": instance.deployment_id, "u": time.time() + 99, "p": viewer.pk}, key="other", salt=sharing.SALT
    )
    assert Client().get(reverse("shared_metrics", args=[forged])).status_code == 404
    later = time.time() + 3700
    monkeypatch.setattr(share_links.time, "time", lambda: later)
    assert Client().get(reverse("shared_series", args=[token])).status_code == 404


def test_a_link_of_a_person_who_was_disabled_is_no_longer_good(instance: Instance, viewer: User) -> None:
    token = share(signed_in(viewer), instance)
    viewer.is_active = False
    viewer.save()
    assert Client().get(reverse("shared_metrics", args=[token])).status_code == 404


@pytest.mark.parametrize("hours", ["", "x", "5000"])
def test_a_link_for_an_odd_time_is_refused(instance: Instance, viewer: User, hours: str) -> None:
    client = signed_in(viewer)
    answer = client.post(reverse("deployment_share", args=[instance.deployment_id]), {"hours": hours})
    assert answer.status_code == 400
    assert not answer.context["link"]


# -- live --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("who", ["anonymous", "other team"])
async def test_a_socket_is_only_for_those_who_may_look(instance: Instance, viewer: User, who: str) -> None:
    if who == "other team":
        viewer.team = await Team.objects.acreate(name="others")
        await viewer.asave()
    person = None if who == "anonymous" else viewer
    socket = await sync_to_async(communicator)(f"/ws/deployments/{instance.deployment_id}/metrics/", person)
    assert not await socket.connect()


async def test_a_new_sample_is_a_point_on_open_boards_within_a_second(
    intake: Intake, instance: Instance, viewer: User
) -> None:
    socket = await sync_to_async(communicator)(f"/ws/deployments/{instance.deployment_id}/metrics/", viewer)
    assert await socket.connect()
    await receive(socket, lambda message: "points" in message)
    load = FakeLoad(started_at=5.0)
    load.answer(7, tokens=30)
    now = time.time() + 1
    before = asyncio.get_running_loop().time()
    await sync_to_async(intake.take)(instance.host, [(entry(now), load.batch(instance.uuid, int(now) + 1))])
    message = await receive(
        socket, lambda message: any(point["t"] == int(now) * 1000 for point in message.get("points", []))
    )
    assert message["points"][-1]["groups"]["all"]["generation_tokens"] > 0
    assert asyncio.get_running_loop().time() - before < 3  # measured in the bench; here only that it comes by itself
    assert message["points"][-1]["t"] % 1000 == 0
    await socket.leave()


async def test_a_shared_boards_socket_needs_its_token_only(intake: Intake, instance: Instance, viewer: User) -> None:
    token = await sync_to_async(sharing.share)(instance.deployment, hours=1, actor=viewer)
    socket = await sync_to_async(communicator)(f"/ws/shared/{token}/metrics/")
    assert await socket.connect()
    assert (await receive(socket, lambda message: "points" in message))["points"]
    await socket.leave()
    socket = await sync_to_async(communicator)("/ws/shared/nonsense/metrics/")
    assert not await socket.connect()


# -- numbers of lists --------------------------------------------------------------------------------------------------


def test_lists_and_the_fleet_show_what_deployments_do_right_now(
    intake: Intake, instance: Instance, viewer: User
) -> None:
    client = signed_in(viewer)
    for name in ("deployment_list", "overview", "fleet"):
        page = client.get(reverse(name)).content.decode()
        assert "40.0" in page, name  # tokens a second
        assert "30 %" in page, name  # of the KV cache
    lines = client.get(reverse("fleet_series")).json()["groups"][0]["values"]
    assert lines["generation_tokens"][-1] == pytest.approx(40, rel=0.05)


def test_one_deployment_is_counted_in_a_language_without_a_singular(viewer: User, instance: Instance) -> None:
    client = signed_in(viewer)
    assert "The one deployment serves." in client.get(reverse("fleet")).content.decode()
    client.post(reverse("set_language"), {"language": "zh-hans"})
    assert "所有 1 个部署都在提供服务。" in client.get(reverse("fleet")).content.decode()


def test_the_fleets_lines_break_where_nobody_listened(broker: redis.Redis, instance: Instance, viewer: User) -> None:
    now = int(time.time())
    for ago in (200, 195, 100, 95):
        content = json.dumps({str(instance.deployment_id): [1.0] * len(fleet_board._FIELDS)})
        broker.xadd(fleet_board.STREAM, {"d": content}, id=f"{(now - ago) * 1000}-0")
    board = signed_in(viewer).get(reverse("fleet_series")).json()
    values = board["groups"][0]["values"]["running"]
    assert [value is None for value in values].count(True) == 1
    assert values[0] is not None
    assert values[-1] is not None


def test_the_fleets_lines_hold_ones_own_deployments_only(intake: Intake, instance: Instance, viewer: User) -> None:
    viewer.team = Team.objects.create(name="others")
    viewer.save()
    board = signed_in(viewer).get(reverse("fleet_series")).json()
    assert board["empty"]["tokens"]
    assert signed_in(viewer).get(reverse("fleet_series"), {"range": "7"}).status_code == 400
