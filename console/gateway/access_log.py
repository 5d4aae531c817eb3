"""What went through the gateway: lines of its access log become rows, exactly once.

HAProxy appends to a file, which waits for us like an outbox: lines, sums and the offset up to which they were read are
stored in one transaction. What was read is cut out of the file's beginning, so that it takes no room; offsets stay.
"""

import json
import re
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import structlog
from django.db import transaction
from django.db.models import F, Max

from console.gateway import adapters
from console.gateway.models import GatewayRequest, Key, LogCursor, Route, Target, UsageDay
from console.gateway.sending import Sender
from workers.gateway.config import GENERATING
from workers.gateway.description import ADAPTER, BURST_SECONDS, CANARY
from workers.gateway.log_file import LogFile
from workers.gateway.messages import Piece

log = structlog.get_logger(__name__)

BATCH_BYTES = 2 * 1024 * 1024
KEPT_REQUESTS = 200_000
_BACKEND = re.compile(rf"^b(\d+){CANARY}?(?:{ADAPTER}\d+)?$")


@dataclass
class Names:
    """What numbers in the log stand for. Kept when their rows are gone, for lines that come later."""

    routes: dict[str, str]
    """By their name in HAProxy, adapters' names among them."""
    targets: dict[int, str]
    teams: dict[int, int | None]

    @classmethod
    def read(cls) -> "Names":
        """What the database has now."""
        return cls({}, {}, {}).refreshed()

    def refreshed(self) -> "Names":
        """Look again."""
        self.routes |= {f"r{pk}": name for pk, name in Route.objects.values_list("pk", "name")}
        self.routes |= adapters.names_in_log()
        self.targets |= dict(Target.objects.values_list("pk", "deployment__name"))
        self.teams |= dict(Key.objects.values_list("pk", "team_id"))
        return self


class Corrections:
    """By how much real tokens differ from the estimated ones that HAProxy counted, as far as it still counts them."""

    def __init__(self) -> None:
        self._recent: deque[tuple[float, tuple[str, ...], int]] = deque()

    def add(self, at: float, who: tuple[str, ...], tokens: int) -> None:
        """A request that began at `at` (Unix time) took so many tokens more than estimated."""
        if tokens:
            self._recent.append((at, who, tokens))

    def sums(self, now: float) -> dict[str, int]:
        """What has to be added to each counter now."""
        while self._recent and self._recent[0][0] < now - BURST_SECONDS:
            self._recent.popleft()
        found: dict[str, int] = defaultdict(int)
        for _at, who, tokens in self._recent:
            for name in who:
                found[name] += tokens
        return dict(found)


class Reader:
    """Stores lines of one access log, from where the database says that it is stored.

    `path`: the file, or where it would lie: the daily files are written beside it. `gateway`: the machine that it is of.
    """

    def __init__(self, path: Path, senders: Sequence[Sender] = (), *, gateway: str = "") -> None:
        self._path = path
        self._log = LogFile(path)
        self._gateway = gateway
        self._senders = senders
        self._names = Names.read()
        self.corrections = Corrections()

    def read(self) -> int:
        """Store what is new in the file; returns how many requests that were."""
        count, end = self._keep(self._path.name, self._from_file)
        if count:
            self._log.forget(end)
        return count

    def take(self, piece: Piece) -> int:
        """Store a piece that another machine sent, if it is the next one; returns up to where its log is stored."""
        data = piece.text.encode()

        def next_lines(offset: int) -> tuple[bytes, int]:
            # What lies between was given back there already: the database was restored to a time before.
            return (data, piece.end) if piece.offset >= offset else (b"", offset)

        return self._keep(cursor_of(self._gateway, piece.file), next_lines)[1]

    def _from_file(self, offset: int) -> tuple[bytes, int]:
        data, _begin, end = self._log.read(offset, BATCH_BYTES)
        return data, end

    def _keep(self, name: str, next_lines: Callable[[int], tuple[bytes, int]]) -> tuple[int, int]:
        with transaction.atomic():
            cursor, _created = LogCursor.objects.select_for_update().get_or_create(file=name)
            data, end = next_lines(cursor.offset)
            if end == cursor.offset:
                return 0, end
            rows = [row for line in data.splitlines() if (row := self._row(line))]
            self._store(rows)
            LogCursor.objects.filter(pk=cursor.pk).update(offset=end)
        self._append(rows)
        self._send(rows)
        return len(rows), end

    def _row(self, line: bytes) -> GatewayRequest | None:
        try:
            fields: dict[str, str] = json.loads(line)
            row = self._request({name: "" if value == "-" else value for name, value in fields.items()})
        except (ValueError, KeyError, TypeError):
            # HAProxy writes its own messages here, too.
            log.info("the gateway says", text=line.decode(errors="replace")[:500])
            return None
        return row

    def _request(self, fields: Mapping[str, str]) -> GatewayRequest:
        key, route, target = _number(fields["key"]), fields["route"], _target(fields["backend"])
        if route not in self._names.routes or key not in self._names.teams or target not in self._names.targets:
            self._names.refreshed()
        prompt_tokens, output_tokens, is_estimate = _tokens(fields)
        return GatewayRequest(
            request_id=fields["id"][:64],
            at=datetime.fromtimestamp(float(fields["at"]), tz=UTC),
            team_id=self._names.teams.get(key or 0),
            key_id=key if key in self._names.teams else None,
            path=fields["path"][:200],
            route=self._names.routes.get(route, ""),
            model=fields["model"][:200],
            deployment=self._names.targets.get(target or 0, ""),
            instance=_number(fields["server"], "i"),
            status=int(fields["status"]),
            refusal=fields["refusal"][:60],
            fallback=fields["fallback"][:62],
            cost=_whole(fields["cost"]),
            prompt_tokens=prompt_tokens,
            output_tokens=output_tokens,
            is_estimate=is_estimate,
            ttft_ms=_whole(fields["first_ms"]),
            latency_ms=_whole(fields["latency_ms"]),
            queue_ms=_whole(fields["queue_ms"]),
            finish_reason=fields["finish_reason"][:40],
            end=fields["end"][:4],
            # Lines that an older gateway wrote have none.
            shadow=fields.get("shadow", "")[:8],
            gateway=self._gateway,
        )

    def _store(self, rows: list[GatewayRequest]) -> None:
        known = [row for row in rows if row.key_id]
        # Requests without a key are counted by nobody, and whoever sends many must not push others' out.
        GatewayRequest.objects.bulk_create(known, batch_size=500)
        # A copy was asked for by nobody: it is found by its id, and counts for nothing.
        asked = [row for row in known if row.shadow != GatewayRequest.COPY]
        _add_up(asked)
        for key, at in _last_used(asked).items():
            Key.objects.filter(pk=key).update(last_used_at=at)
        routes = {name: key for key, name in self._names.routes.items()}
        for row in asked:
            if row.cost is not None and row.status < 400:
                who = (f"k{row.key_id}", f"t{row.team_id}", routes.get(row.route, ""))
                real = (row.prompt_tokens or 0) + (row.output_tokens or 0)
                # Nothing is given back for an estimate: whoever left early would pay nothing for what engines did.
                more = max(0, real - row.cost) if row.is_estimate else real - row.cost
                self.corrections.add(row.at.timestamp(), who, more)

    def _append(self, rows: Iterable[GatewayRequest]) -> None:
        """The same as JSON lines, one file a day, for whoever reads files."""
        by_day: dict[date, list[str]] = defaultdict(list)
        for row in rows:
            by_day[row.at.date()].append(json.dumps(as_json(row), ensure_ascii=False, separators=(",", ":")))
        for day, lines in by_day.items():
            with (self._path.parent / f"requests-{day}.jsonl").open("a") as file:
                file.write("\n".join(lines) + "\n")

    def _send(self, rows: Iterable[GatewayRequest]) -> None:
        if self._senders:
            lines = [as_json(row) | {"at_ns": round(row.at.timestamp() * 1000) * 1_000_000} for row in rows]
            for sender in self._senders:
                sender.add(lines)


def cursor_of(gateway: str, file: str) -> str:
    """Name of the cursor of a log on another machine."""
    return f"{gateway}/{file}"[:80]


def trim(directory: Path, *, today: date, days: int = 14) -> None:
    """Drop requests beyond what is kept for searching, and daily files older than that."""
    newest = GatewayRequest.objects.aggregate(newest=Max("pk"))["newest"] or 0
    GatewayRequest.objects.filter(pk__lte=newest - KEPT_REQUESTS).delete()
    for path in sorted(directory.glob("requests-*.jsonl")):
        if (today - date.fromisoformat(path.stem.removeprefix("requests-"))).days > days:
            path.unlink()


def as_json(row: GatewayRequest) -> dict[str, Any]:
    """A request as it stands in the JSON lines."""
    return {
        "id": row.request_id,
        "at": row.at.isoformat(timespec="milliseconds"),
        "key": row.key_id,
        "path": row.path,
        "route": row.route,
        "model": row.model,
        "deployment": row.deployment,
        "instance": row.instance,
        "status": row.status,
        "refusal": row.refusal,
        "fallback": row.fallback,
        "cost": row.cost,
        "prompt_tokens": row.prompt_tokens,
        "output_tokens": row.output_tokens,
        "is_estimate": row.is_estimate,
        "ttft_ms": row.ttft_ms,
        "latency_ms": row.latency_ms,
        "queue_ms": row.queue_ms,
        "finish_reason": row.finish_reason,
        "end": row.end,
        "shadow": row.shadow,
        "gateway": row.gateway,
    }


def _add_up(rows: Iterable[GatewayRequest]) -> None:
    sums: dict[tuple[Any, ...], dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for row in rows:
        if not row.route:
            continue
        counts = sums[row.at.date(), row.team_id, row.key_id, row.route, row.deployment]
        counts["requests"] += 1
        counts["refused"] += bool(row.refusal)
        counts["errors"] += row.status >= 500
        counts["prompt_tokens"] += row.prompt_tokens or 0
        counts["output_tokens"] += row.output_tokens or 0
    for (day, team, key, route, deployment), counts in sums.items():
        of_day, _created = UsageDay.objects.get_or_create(
            day=day, key_id=key, route=route, deployment=deployment, defaults={"team_id": team}
        )
        added = {name: F(name) + count for name, count in counts.items()}
        UsageDay.objects.filter(pk=of_day.pk).update(**added)


def _last_used(rows: Iterable[GatewayRequest]) -> dict[int, datetime]:
    found: dict[int, datetime] = {}
    for row in rows:
        if row.key_id:
            found[row.key_id] = max(row.at, found.get(row.key_id, row.at))
    return found


def _tokens(fields: Mapping[str, str]) -> tuple[int | None, int | None, bool]:
    """What a request took: tokens of its prompt and its answer, as its engine told them, and False.

    Where an engine was at work but its usage was never told, since the client left before its end, they are estimated and
    it is True: the prompt as it was charged, and of the answer what was charged, but no more than the bytes that came allow.
    """
    prompt, output = _whole(fields["prompt_tokens"]), _whole(fields["output_tokens"])
    cost = _whole(fields["cost"])
    was_at_work = _number(fields["server"], "i") is not None
    was_left = fields["end"].startswith(("C", "c"))
    if (
        (prompt is not None and output is not None)
        or cost is None
        or not was_at_work
        or fields["path"] not in GENERATING
        or (int(fields["status"]) >= 400 and not was_left)
    ):
        return prompt, output, False
    # Lines that an older gateway wrote have neither of these.
    charged_prompt, answer_bytes = _whole(fields.get("estimate", "")), _whole(fields.get("answer_bytes", ""))
    answer = max(0, cost - (charged_prompt or 0))
    if not fields["first_ms"]:
        answer = 0
    elif answer_bytes is not None:
        answer = min(answer, (answer_bytes + 2) // 3)
    return charged_prompt if prompt is None else prompt, max(output or 0, answer), True


def _target(backend: str) -> int | None:
    """Number of the target that a backend stands for, be it its canary's or an adapter's."""
    found = _BACKEND.match(backend)
    return int(found[1]) if found else None


def _number(name: str, prefix: str = "") -> int | None:
    digits = name.removeprefix(prefix) if prefix else name[1:]
    return int(digits) if digits.isdigit() else None


def _whole(text: str) -> int | None:
    return int(text) if text.isdigit() else None
