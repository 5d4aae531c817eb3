"""Decision trees: each leads from facts to one verdict, stops there, and says what could not be known."""

from collections.abc import Mapping
from typing import Any

import pytest
from django.test import Client
from django.urls import resolve, reverse
from django.utils import timezone

from console.access.models import Team, User
from console.deployments.current import Current
from console.deployments.models import Attempt, Deployment, Instance
from console.oncall.tree import Answer, walk
from console.oncall.tree_facts import End, Facts, Requests, gather
from console.oncall.tree_views import ACTS
from console.oncall.trees import TREES
from tests.factories import Fleet
from tests.oncall.test_board import break_, serving
from workers.host_facts import Gpu, GpuProcess, GpuReading, Live

GIB = 2**30


def end(code: str = "memory.out_of_memory", *, ready: float | None = None, exit_code: int = 1) -> End:
    return End(timezone.now(), code, code, "no room", 90, ready, exit_code)


def facts(**given: Any) -> Facts:
    return Facts(**{"name": "chat #1", "state": "crashed", "is_unknown": False, **given})


def gpu(*processes: GpuProcess, used: int = 0) -> Live:
    return Live(
        gpus=GpuReading(gpus=[Gpu(index=0, uuid="GPU-a", name="A", memory_used=used, processes=list(processes))])
    )


FULL = Current(at=0, running=3, waiting=2, kv_usage=0.97, generation_tokens=12.0)
STUCK = Current(at=0, running=3, waiting=2, kv_usage=0.2, generation_tokens=0.0)
LONG = Requests(count=50, failed=4, failed_prompt=9000, sound_prompt=300)


@pytest.mark.parametrize(
    ("tree", "given", "question"),
    [
        ("oom-first", {"end": end("port.in_use")}, "Did it run out of memory?"),
        ("oom-first", {"end": end(), "live": gpu(GpuProcess(pid=4, name="game", memory=GIB))}, "Does somebody else"),
        ("oom-first", {"end": end(), "live": gpu(GpuProcess(pid=4, memory=GIB, instance="gone"))}, "Is memory left over"),
        ("oom-first", {"end": end(), "live": gpu(), "plan": {
            "budget_bytes": 10, "weights_bytes_per_device": 9, "overhead_bytes": 1, "min_kv_bytes_for_one_request": 1,
        }}, "Is it too large"),
        ("oom-first", {"end": end("kv_cache.other"), "live": gpu(), "lines": {"out_of_memory": 1}}, "Do the weights fit"),
        ("oom-first", {"end": end(), "live": gpu(), "lines": {"captured": 2}}, "Does it end while graphs"),
        ("oom-first", {"end": end(), "live": gpu(), "arguments": ["--gpu-memory-utilization", "0.99"]}, "leave too little"),
        ("oom-first", {"end": end(), "live": gpu(), "arguments": ["--max-num-seqs=1024"]}, "very many sequences"),
        ("oom-later", {"end": end(ready=5)}, "Had it been serving"),
        ("oom-later", {"end": end("process.killed_by_oom", ready=900, exit_code=-9)}, "host's RAM"),
        ("oom-later", {"end": end(ready=900), "live": gpu(), "now": FULL}, "Is the KV cache full"),
        ("oom-later", {"end": end(ready=900), "live": gpu(), "requests": LONG}, "longer prompts"),
        ("oom-later", {"end": end(ready=900), "live": gpu(), "xids": 2}, "driver reported"),
        ("oom-later", {"end": end(ready=900), "live": gpu(), "ends_today": 3}, "again and again"),
        ("oom-some", {"requests": LONG}, "prompts that fail longer"),
        ("oom-some", {"lines": {"preempted": 4}}, "KV cache full"),
        ("hang", {"is_unknown": True}, "host silent"),
        ("hang", {"state": "crashed", "end": end()}, "it ended"),
        ("hang", {"state": "crashed", "end": end("engine.hung"), "hung": True}, "found it hung"),
        ("hang", {"state": "loading"}, "coming up"),
        ("hang", {"state": "ready", "now": FULL}, "only busy"),
        ("hang", {"state": "unhealthy", "now": STUCK, "hung": True}, "found it hung"),
        ("hang", {"state": "ready", "now": STUCK, "live": Live(shm_free=1024)}, "shared memory"),
        ("hang", {"state": "ready", "live": Live(shm_free=GIB), "arguments": ["-tp", "2"], "lines": {"nccl": 3}}, "wait for"),
        ("slow-first", {"requests": Requests(first_ttft_ms=200, usual_ttft_ms=190)}, "slower than the others"),
        ("slow-first", {"requests": Requests(first_ttft_ms=9000, usual_ttft_ms=190)}, "warmed up"),
        ("slow-first", {"warmup": {"stable": True, "rounds": [1, 2]}, "now": FULL}, "queue"),
        ("slow-first", {"warmup": {"stable": True}, "lines": {"compiled": 2}}, "compiled at first use"),
        ("inconsistent", {"checks": {"repeats": {"outcome": "ok", "fact": "3 times the same"}}}, "temperature 0"),
        ("inconsistent", {"checks": {"repeats": {"outcome": "warning", "fact": "two"}}}, "explained"),
        ("inconsistent", {"checks": {"golden": {"outcome": "failed", "fact": "Lyon"}}}, "golden answer"),
        ("inconsistent", {"has_good_start": True, "changed": ["driver: 1 → 2"]}, "changed since"),
        ("inconsistent", {"arguments": ["--tensor-parallel-size", "4"]}, "all-reduce"),
        ("inconsistent", {"copy_state": "damaged"}, "files damaged"),
        ("inconsistent", {"control": {"sane": False, "verdict": "the files are at fault"}}, "without the engine"),
        ("leftover", {"live": gpu(GpuProcess(pid=4, memory=GIB, instance="gone"))}, "ours left over"),
        ("leftover", {"live": gpu(used=9 * GIB)}, "held by nobody"),
        ("whose-fault", {"end": end()}, "fail to run"),
        ("whose-fault", {"state": "ready", "copy_state": "damaged"}, "files damaged"),
        ("whose-fault", {"state": "ready", "checks": {"template": {"outcome": "failed"}}}, "tokenizer or template"),
        ("whose-fault", {"state": "ready", "quantised": True, "checks": {"question": {"outcome": "failed"}}}, "quantised"),
        ("whose-fault", {"state": "ready", "checks": {"question": {"outcome": "failed", "fact": "!!!"}},
                         "control": {"sane": True, "verdict": "fine"}}, "test question"),
    ],
)  # fmt: skip
def test_a_tree_ends_at_the_question_that_explains_it(tree: str, given: Mapping[str, Any], question: str) -> None:
    found = walk(TREES[tree], facts(**given))
    last = next(row for row in found.rows if row.is_end)
    assert question in str(last.question)
    assert found.is_found
    assert str(found.next)
    assert all(row.found is None for row in found.rows[last.number :])


@pytest.mark.parametrize("tree", TREES)
def test_without_facts_a_tree_finds_nothing_and_says_so(tree: str) -> None:
    found = walk(TREES[tree], facts(state="ready", lines={"out_of_memory": 1} if tree == "oom-first" else {}))
    if tree == "slow-first":  # an engine that was never warmed up is a finding by itself
        assert "warm" in str(found.next)
    elif tree != "oom-later":  # nothing ended: another tree is meant
        assert not found.is_found
        assert found.unknown > 0
    assert str(found.next)


@pytest.mark.parametrize("tree", TREES)
def test_every_next_step_is_a_button_that_exists(tree: str) -> None:
    assert set(TREES[tree].otherwise_acts) <= set(ACTS)


@pytest.mark.django_db
def test_facts_are_gathered_from_rows_and_the_log(fleet: Fleet, admin: User) -> None:
    instance = serving(fleet, admin)
    attempt = Attempt.objects.get(instance=instance)
    attempt.log_path.parent.mkdir(parents=True, exist_ok=True)
    attempt.log_path.write_text("torch.OutOfMemoryError: CUDA out of memory\nGraph capturing finished\n")
    Attempt.objects.update(
        ended_at=timezone.now(), exit_code=1, diagnosis={"code": "memory.out_of_memory", "title": "Out of memory"},
        validation={"sound": True, "checks": [{"name": "repeats", "outcome": "ok", "fact": "same"}]},
    )  # fmt: skip
    break_(instance, "failed")
    found = gather(
        Instance.objects.select_related("deployment", "host", "spec__copy", "spec__engine").get(pk=instance.pk)
    )
    assert found.end is not None
    assert (found.end.code, found.ends_today, found.check("repeats")) == ("memory.out_of_memory", 1, "ok")
    assert found.lines["out_of_memory"] >= 1
    assert found.lines["captured"] == 1
    assert found.option("--enforce-eager") == ""
    assert walk(TREES["oom-first"], found).rows[0].found.answer is Answer.YES  # type: ignore[union-attr]


@pytest.mark.django_db
@pytest.mark.parametrize("tree", TREES)
def test_a_tree_s_page_shows_each_fact_and_only_the_buttons_that_one_may_press(
    tree: str, fleet: Fleet, admin: User, viewer: User, client: Client
) -> None:
    instance = serving(fleet, admin)
    break_(instance, "failed")
    url = reverse("tree_detail", args=[tree])
    for person in (admin, viewer):
        client.force_login(person)
        assert "Choose an instance" in client.get(url).content.decode()
        page = client.get(url, {"instance": str(instance.pk)}).content.decode()
        assert str(instance) in page
        assert "What to do next" in page or "No question explains it" in page
        if person == viewer:
            assert "hx-get" not in page.split('class="tree"')[1].split("</section>")[0]
            assert reverse("deployment_change", args=[instance.deployment_id]) not in page


@pytest.mark.django_db
def test_instances_of_other_teams_can_t_be_walked(fleet: Fleet, admin: User, viewer: User, client: Client) -> None:
    instance = serving(fleet, admin)
    Deployment.objects.update(team=Team.objects.create(name="others"))
    client.force_login(viewer)
    assert client.get(reverse("tree_detail", args=["hang"]), {"instance": str(instance.pk)}).status_code == 404
    assert client.get(reverse("tree_detail", args=["no-such-tree"])).status_code == 404
    assert "It hangs" in client.get(reverse("tree_list")).content.decode()


@pytest.mark.django_db
def test_every_button_leads_to_a_page(fleet: Fleet, admin: User) -> None:
    instance = serving(fleet, admin)
    for act in ACTS.values():
        resolve(act.url(instance).split("#")[0])
