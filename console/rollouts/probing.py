"""What the console asks both sides itself: the deployment's own question, whose answer it judges, and short ones for the times.

Both sides are asked at the same moment, so that whatever slows the machine slows both. Users' answers are never looked at.
"""

import json
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import httpx2
from django.db import close_old_connections
from django.utils import timezone
from django.utils.translation import gettext as _

from console.deployments import chat
from console.deployments.models import Instance
from console.deployments.services import Endpoint, endpoint_of
from console.rollouts import models, services
from console.rollouts.models import Rollout
from workers.contracts import Probe
from workers.vllm.sanity import judge_answer
from workers.vllm.vectors import EMBEDDINGS_PATH, POOLING_PATH, fault_of, values_of

CONNECT_SECONDS = 2.0
SHORT_TOKENS = 8
QUESTION_TOKENS = 128
HEALTH_EVERY_SECONDS = 0.5
ENOUGH_REQUESTS = 1000
"""Where users make so many requests on the new side in a step, the console asks no short questions."""


@dataclass(frozen=True)
class Answer:
    """What came back. Times in seconds since the question was sent; `trouble` as in `models.Probe`."""

    text: str = ""
    ttft_seconds: float | None = None
    pace_seconds: float | None = None
    finish_reason: str = ""
    trouble: str = ""
    detail: str = ""
    vector: tuple[float, ...] | None = None
    """What came instead of a text; then `ttft_seconds` is the time of the whole answer."""


def ask(endpoint: Endpoint, probe: Probe, *, max_tokens: int, patience_seconds: float) -> Answer:
    """One question, streamed, or one vector. Never raises for anything that a server may do."""
    timeout = httpx2.Timeout(patience_seconds, connect=CONNECT_SECONDS)
    headers = {"Authorization": f"Bearer {endpoint.key}"}
    try:
        with httpx2.Client(base_url=endpoint.url, timeout=timeout, headers=headers, trust_env=False) as client:
            text = None if probe.mode == "embeddings" else _text(client, endpoint, probe, max_tokens, patience_seconds)
            return text or _vector(client, endpoint, probe)
    except (httpx2.ConnectError, httpx2.ConnectTimeout):
        return Answer(trouble="away", detail=_("It does not answer at %(url)s.") % {"url": endpoint.url})
    except httpx2.TimeoutException:
        return Answer(trouble="silent", detail=_("No token within %(seconds)g s.") % {"seconds": patience_seconds})
    except (httpx2.HTTPError, ValueError):
        return Answer(trouble="error", detail=_("The connection broke while it answered."))


def _text(
    client: httpx2.Client, endpoint: Endpoint, probe: Probe, max_tokens: int, patience_seconds: float
) -> Answer | None:
    """None from an engine that makes no text: it has the interfaces of its model's tasks only."""
    path = "/v1/completions" if probe.mode == "completions" else "/v1/chat/completions"
    began = time.monotonic()
    with client.stream("POST", path, json=_body(endpoint, probe, max_tokens)) as response:
        if response.status_code == 200:
            return _read(response.iter_lines(), began, patience_seconds)
        said = response.read().decode("utf-8", "replace")
    if response.status_code == 404 and client.get(path).status_code == 404:
        return None
    return Answer(trouble="error", detail=chat.refusal(response.status_code, said))


def _vector(client: httpx2.Client, endpoint: Endpoint, probe: Probe) -> Answer:
    body = {"model": endpoint.model, "input": probe.prompt, "encoding_format": "float"}
    began = time.monotonic()
    response = client.post(EMBEDDINGS_PATH, json=body)
    if response.status_code == 404:
        began = time.monotonic()
        response = client.post(POOLING_PATH, json=body)
    if response.status_code != 200:
        return Answer(trouble="error", detail=chat.refusal(response.status_code, response.text))
    return Answer(ttft_seconds=time.monotonic() - began, vector=values_of(response.json()))


def _body(endpoint: Endpoint, probe: Probe, max_tokens: int) -> dict[str, Any]:
    asked: dict[str, Any] = {"messages": [{"role": "user", "content": probe.prompt}]}
    if probe.mode == "completions":
        asked = {"prompt": probe.prompt}
    return {"model": endpoint.model, "temperature": 0, "max_tokens": max_tokens, "stream": True, **asked}


def _read(lines: Iterable[str], began: float, patience_seconds: float) -> Answer:
    text, first, last, pieces, reason = "", None, began, 0, ""
    for line in lines:
        if not (content := chat.content_of(line)):
            continue
        chunk = json.loads(content)
        if "error" in chunk:
            return Answer(trouble="error", detail=str(chunk["error"])[:500])
        for choice in chunk.get("choices", []):
            delta = choice.get("delta") or {}
            piece = choice.get("text") or delta.get("content") or delta.get("reasoning") or ""
            reason = choice.get("finish_reason") or reason
            if piece:
                last = time.monotonic()
                first, pieces, text = (
                    first or last,
                    pieces + 1,
                    text + (choice.get("text") or delta.get("content") or ""),
                )
        if first is None and time.monotonic() - began > patience_seconds:
            return Answer(trouble="silent", detail=_("No token within %(seconds)g s.") % {"seconds": patience_seconds})
    pace = (last - first) / (pieces - 1) if first is not None and pieces > 1 else None
    return Answer(text, first - began if first is not None else None, pace, reason)


def judged(answer: Answer, probe: Probe) -> Answer:
    """The answer to the deployment's own question, with what is wrong with its text."""
    if answer.trouble:
        return answer
    if answer.vector is not None:
        return _judged_vector(answer, answer.vector)
    found = judge_answer(
        answer.text, finish_reason=answer.finish_reason or None, expected=probe.expected or None,
        language=probe.language or None,
    )  # fmt: skip
    # An answer that was cut by our own limit is no nonsense.
    wrong = [finding for finding in found.findings if finding.code != "not_stopped"]
    if not wrong:
        return answer
    detail = _("%(what)s. It said: %(text)s") % {"what": wrong[0].message, "text": answer.text.strip()[:200] or "–"}
    return replace(answer, trouble="garbage", detail=detail)


def _judged_vector(answer: Answer, vector: tuple[float, ...]) -> Answer:
    if not (fault := fault_of(vector)):
        return answer
    detail = {
        "empty": _("Its answer holds no vector."),
        "not_finite": _("Its vector has numbers that are not finite."),
        "zeros": _("Its vector is zeros only."),
    }[fault]
    return replace(answer, trouble="garbage", detail=detail)


def ask_both(rollout: Rollout, *, is_validation: bool, turn: int = 0) -> list[models.Probe]:
    """Ask one instance of each side at the same moment, each time another one, and store what came of it."""
    chosen = {side: some[turn % len(some)] for side in ("old", "new") if (some := _reachable(rollout, side))}
    if "new" not in chosen:
        return []
    with ThreadPoolExecutor(max_workers=len(chosen)) as pool:
        asked = {side: pool.submit(_ask_one, rollout, one, is_validation) for side, one in chosen.items()}
        return [_store(rollout, side, chosen[side], answer.result(), is_validation) for side, answer in asked.items()]


def _reachable(rollout: Rollout, side: str) -> list[Instance]:
    return [one for one in services.instances_of(rollout, side) if one.port is not None and one.state == "ready"]


def _ask_one(rollout: Rollout, instance: Instance, is_validation: bool) -> Answer:  # noqa: FBT001 - handed to a pool
    spec = rollout.new_spec if instance.spec_id == rollout.new_spec_id else rollout.old_spec
    probe = Probe.model_validate(spec.probe)
    patience, endpoint = rollout.chosen.hang_seconds, endpoint_of(instance)
    if not is_validation:
        return ask(endpoint, probe, max_tokens=SHORT_TOKENS, patience_seconds=patience)
    answer = judged(ask(endpoint, probe, max_tokens=QUESTION_TOKENS, patience_seconds=patience), probe)
    if answer.trouble == "garbage":
        # Once may be chance; twice in a row is the engine.
        answer = judged(ask(endpoint, probe, max_tokens=QUESTION_TOKENS, patience_seconds=patience), probe)
    return answer


def _store(rollout: Rollout, side: str, instance: Instance, answer: Answer, is_validation: bool) -> models.Probe:  # noqa: FBT001
    def ms(seconds: float | None) -> float | None:
        return None if seconds is None else round(seconds * 1000, 3)

    return models.Probe.objects.create(
        rollout=rollout, side=side, instance=instance, is_validation=is_validation, at=timezone.now(),
        ttft_ms=ms(answer.ttft_seconds), pace_ms=ms(answer.pace_seconds), finish_reason=answer.finish_reason[:40],
        trouble=answer.trouble, detail=answer.detail[:2000],
    )  # fmt: skip


def is_alive(instance: Instance) -> bool:
    """False if nothing listens there, or it says itself that it is dead. Slow is not dead."""
    try:
        answer = httpx2.get(f"{endpoint_of(instance).url}/health", timeout=CONNECT_SECONDS, trust_env=False)
    except (httpx2.ConnectError, httpx2.ReadError, httpx2.RemoteProtocolError):
        return False
    except httpx2.HTTPError:
        return True
    return answer.status_code != 503


class Prober:
    """Asks for one rollout, in threads of its own: a side that hangs keeps nobody else waiting."""

    def __init__(self, rollout: Rollout) -> None:
        self._rollout = rollout
        self._pool = ThreadPoolExecutor(max_workers=3, thread_name_prefix=f"rollout-{rollout.pk}")
        self._busy: dict[str, Future[None]] = {}
        self._due: dict[str, float] = {}
        self._turn = 0
        self._deaths = 0
        self.dead = ""
        """What was found dead, in words."""

    def poke(self, *, users: int, may_top_up: bool) -> None:
        """Begin what is due. `users`: requests that users made on the new side in this step."""
        plan = self._rollout.chosen
        self._begin("health", HEALTH_EVERY_SECONDS, self._health)
        self._begin("question", plan.probe_seconds, lambda: self._question(is_validation=True))
        if may_top_up and plan.top_up and users < ENOUGH_REQUESTS:
            self._begin("short", 0.1, lambda: self._question(is_validation=False))

    def close(self) -> None:
        """Ask nothing any more."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _begin(self, name: str, every_seconds: float, work: Callable[[], None]) -> None:
        running = self._busy.get(name)
        if (running is None or running.done()) and time.monotonic() >= self._due.get(name, 0):
            self._busy[name] = self._pool.submit(self._run, name, every_seconds, work)

    def _run(self, name: str, every_seconds: float, work: Callable[[], None]) -> None:
        began = time.monotonic()
        try:
            close_old_connections()
            work()
        finally:
            took = time.monotonic() - began
            # At most half of the time is spent on asking, so that the machine has the other half for people.
            self._due[name] = time.monotonic() + max(every_seconds - took, took if name == "short" else 0.0)

    def _question(self, *, is_validation: bool) -> None:
        self._turn += 1
        ask_both(self._rollout, is_validation=is_validation, turn=self._turn)

    def _health(self) -> None:
        dead = [one for one in _reachable(self._rollout, "new") if not is_alive(one)]
        self._deaths = self._deaths + 1 if dead else 0
        if self._deaths >= 2:
            self.dead = _("%(name)s is dead: nothing answers on its port.") % {"name": dead[0]}
