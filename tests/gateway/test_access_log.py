"""Lines of the access log become rows and sums, exactly once."""

import json
from datetime import timedelta
from pathlib import Path

import pytest
from django.db import DatabaseError
from django.utils import timezone

from console.access.models import User
from console.deployments.models import Deployment
from console.gateway import access_log, keys, routes, usage
from console.gateway.models import GatewayRequest, Key, LogCursor, Route, UsageDay
from console.gateway.routes import Share
from tests.factories import Fleet
from workers.gateway import config, log_file


@pytest.fixture
def log(tmp_path: Path, fleet: Fleet) -> Path:
    fleet.deploy(name="chat-a")
    routes.save(Route(name="chat"), aliases=[], shares=[Share(Deployment.objects.get(name="chat-a"))], actor=None)
    keys.create(name="app", owner=None, routes=None, expires_at=None, actor=None, team_id=1)
    return tmp_path / "access.log"


def line(number: int, **changes: object) -> str:
    route, key = Route.objects.get(), Key.objects.get()
    fields = dict.fromkeys(config.LOG_FIELDS, "-") | {
        "id": f"req-{number}", "at": f"{timezone.now().timestamp():.3f}", "path": "/v1/chat/completions", "key": f"k{key.pk}",
        "route": f"r{route.pk}", "model": "chat", "backend": f"b{route.targets.get().pk}", "server": "i7", "status": "200",
        "cost": "100", "prompt_tokens": "10", "output_tokens": "5", "finish_reason": "stop", "first_ms": "12",
        "latency_ms": "90", "queue_ms": "0", "end": "--",
    }  # fmt: skip
    return json.dumps(fields | changes) + "\n"


def write(log: Path, *lines: str) -> None:
    with log.open("a") as file:
        file.writelines(lines)


def test_lines_become_requests_and_sums(log: Path) -> None:
    write(log, line(1), "Server b1/i1 is DOWN.\n", line(2, status="500", prompt_tokens="-", output_tokens="-"))
    write(log, line(3, status="429", refusal="key_requests_per_minute", backend="gateway", server="<NOSRV>", cost="-"))
    reader = access_log.Reader(log)
    assert reader.read() == 3
    first = GatewayRequest.objects.get(request_id="req-1")
    assert (first.route, first.deployment, first.instance, first.status) == ("chat", "chat-a", 7, 200)
    assert (first.prompt_tokens, first.output_tokens, first.ttft_ms, first.latency_ms) == (10, 5, 12, 90)
    whole = usage.whole(UsageDay.objects.all())
    assert (whole.requests, whole.refused, whole.errors, whole.prompt_tokens, whole.output_tokens) == (
        3,
        1,
        1,
        30 - 10,
        10,
    )
    assert Key.objects.get().last_used_at
    stored = [
        json.loads(text) for path in log.parent.glob("requests-*.jsonl") for text in path.read_text().splitlines()
    ]
    assert [one["id"] for one in stored] == ["req-1", "req-2", "req-3"]


def test_a_copy_is_stored_and_counts_for_nothing(log: Path) -> None:
    Key.objects.update(last_used_at=None)
    write(log, line(1, shadow="copy", backend=f"b{Route.objects.get().targets.get().pk}n", cost="-"))
    reader = access_log.Reader(log)
    assert reader.read() == 1
    assert not UsageDay.objects.exists()
    assert Key.objects.get().last_used_at is None
    assert reader.corrections.sums(timezone.now().timestamp()) == {}
    stored = GatewayRequest.objects.get()
    assert (stored.shadow, stored.deployment, access_log.as_json(stored)["shadow"]) == ("copy", "chat-a", "copy")
    assert not GatewayRequest.objects.of_clients().exists()
    write(log, line(1, shadow="original"))
    reader.read()
    assert UsageDay.objects.get().requests == GatewayRequest.objects.of_clients().count() == 1


def test_every_line_is_counted_once_whatever_restarts(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(log, line(1), line(2)[:40])
    assert access_log.Reader(log).read() == 1
    assert access_log.Reader(log).read() == 0
    write(log, line(2)[40:], line(3))
    failing = access_log.Reader(log)
    with monkeypatch.context() as patch:
        patch.setattr(access_log, "_last_used", lambda rows: 1 / 0)
        with pytest.raises((ZeroDivisionError, DatabaseError)):
            failing.read()
    assert GatewayRequest.objects.count() == 1
    assert access_log.Reader(log).read() == 2
    assert usage.whole(UsageDay.objects.all()).requests == 3


def test_what_was_read_takes_no_room_and_offsets_stay(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_file, "PUNCH_BYTES", 10_000)
    write(log, *(line(number) for number in range(200)))
    size = log.stat().st_size
    assert access_log.Reader(log).read() == 200
    assert log.stat().st_size == size
    assert log.stat().st_blocks * 512 < size
    write(log, line(999))
    assert access_log.Reader(log).read() == 1
    assert LogCursor.objects.get().offset == log.stat().st_size


def test_requests_without_a_key_are_kept_nowhere_but_in_the_file(log: Path) -> None:
    write(log, line(1, key="-", route="-", status="401", refusal="missing_api_key"))
    access_log.Reader(log).read()
    assert not GatewayRequest.objects.exists()
    assert not UsageDay.objects.exists()


def test_the_estimate_is_corrected_by_what_was_used_and_forgotten_with_the_window(log: Path) -> None:
    write(log, line(1), line(2, cost="5", output_tokens="95"))
    reader = access_log.Reader(log)
    reader.read()
    now = timezone.now().timestamp()
    key, route = Key.objects.get().pk, Route.objects.get().pk
    assert reader.corrections.sums(now) == {f"k{key}": 15, "t1": 15, f"r{route}": 15}
    assert reader.corrections.sums(now + 101) == {}


@pytest.mark.parametrize(
    ("changes", "tokens", "correction"),
    [
        # Left in the midst: the prompt as it was told or charged, and of the answer what its bytes allow.
        ({"prompt_tokens": "-", "answer_bytes": "90"}, (40, 30, True), 0),
        ({"prompt_tokens": "25", "answer_bytes": "90"}, (25, 30, True), 0),
        ({"prompt_tokens": "25", "answer_bytes": "90000"}, (25, 60, True), 0),
        ({"prompt_tokens": "4000", "answer_bytes": "90"}, (4000, 30, True), 3930),
        # Left before its first byte, which HAProxy tells as a status of its own.
        ({"prompt_tokens": "-", "first_ms": "-", "status": "400", "end": "CH"}, (40, 0, True), 0),
        # An older gateway says less.
        ({"prompt_tokens": "-", "estimate": None}, (None, 100, True), 0),
        # No engine was at work, or it refused.
        ({"prompt_tokens": "-", "server": "<NOSRV>", "end": "CQ", "first_ms": "-"}, (None, None, False), -100),
        ({"prompt_tokens": "-", "status": "400", "end": "--"}, (None, None, False), 0),
        ({"path": "/v1/embeddings", "prompt_tokens": "40", "end": "--"}, (40, None, False), -60),
    ],
)
def test_what_was_never_told_is_estimated_and_not_given_back(
    log: Path, changes: dict[str, str | None], tokens: tuple[int | None, int | None, bool], correction: int
) -> None:
    left = {"path": "/v1/responses", "end": "CD", "output_tokens": "-", "cost": "100", "estimate": "40"}
    fields = json.loads(line(1, **left | changes))
    write(log, json.dumps({name: value for name, value in fields.items() if value is not None}) + "\n")
    reader = access_log.Reader(log)
    reader.read()
    row = GatewayRequest.objects.get()
    assert (row.prompt_tokens, row.output_tokens, row.is_estimate) == tokens
    assert access_log.as_json(row)["is_estimate"] == tokens[2]
    assert usage.whole(UsageDay.objects.all()).tokens == sum(count or 0 for count in tokens[:2])
    assert reader.corrections.sums(timezone.now().timestamp()).get("t1", 0) == correction


def test_old_files_and_requests_are_dropped(log: Path, monkeypatch: pytest.MonkeyPatch, admin: User) -> None:
    monkeypatch.setattr(access_log, "KEPT_REQUESTS", 2)
    write(log, *(line(number) for number in range(5)))
    access_log.Reader(log).read()
    old = timezone.now().date() - timedelta(days=20)
    (log.parent / f"requests-{old}.jsonl").write_text("{}\n")
    access_log.trim(log.parent, today=timezone.now().date())
    assert sorted(GatewayRequest.objects.values_list("request_id", flat=True)) == ["req-3", "req-4"]
    assert len(list(log.parent.glob("requests-*.jsonl"))) == 1
    assert usage.whole(UsageDay.objects.all()).requests == 5
