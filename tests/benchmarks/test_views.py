"""Pages of benchmarks: what each role sees and may do, and what the pages say."""

import csv
import io
import json
import re
from typing import Any

import pytest
from django.core import signing
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client

from console.access import share_links
from console.access.models import Team, User
from console.benchmarks import views
from console.benchmarks.models import Benchmark, Dataset
from tests.benchmarks.conftest import Stage
from tests.conftest import person
from tests.factories import Fleet
from workers.contracts import Failure, StepProgress


@pytest.fixture
def as_(client: Client, admin: User, operator: User, viewer: User) -> Any:
    def sign_in(name: str) -> Client:
        client.force_login({"admin": admin, "operator": operator, "viewer": viewer}[name])
        return client

    return sign_in


def form(stage: Stage, **changes: Any) -> dict[str, Any]:
    return {
        "target": "instance", "instance": stage.instance.pk, "profile": "chat", "by": "concurrency", "search": "fixed",
        "values": "1, 4", "requests": "20", "repeats": "2", "warmups": "1", "seed": "0", "ignore_eos": "on",
        "ttft_ms": "500",
    } | changes  # fmt: skip


@pytest.mark.parametrize("role", ["viewer", "operator", "admin"])
def test_everyone_may_look(stage: Stage, as_: Any, role: str) -> None:
    benchmark = stage.whole(title="nightly")
    client = as_(role)
    own = f"/benchmarks/{benchmark.pk}/"
    paths = (
        "/benchmarks/",
        own,
        f"/benchmarks/compare/?id={benchmark.pk}",
        f"{own}export.csv",
        f"{own}runs/concurrency-1-1.json",
    )
    for path in paths:
        assert client.get(path).status_code == 200, path
    assert ("/benchmarks/new/" in client.get("/benchmarks/").content.decode()) == (role != "viewer")


def test_a_viewer_changes_nothing(stage: Stage, as_: Any) -> None:
    benchmark = stage.whole()
    client = as_("viewer")
    assert client.get("/benchmarks/new/").status_code == 403
    assert client.post("/benchmarks/new/", form(stage)).status_code == 403
    assert client.post(f"/benchmarks/{benchmark.pk}/describe/", {"notes": "x"}).status_code == 403
    assert client.post(f"/benchmarks/{benchmark.pk}/delete/", {"reason": "x"}).status_code == 403
    assert Benchmark.objects.count() == 1


def test_other_teams_see_nothing_of_it(stage: Stage, client: Client) -> None:
    benchmark = stage.whole()
    other = person("olga", "admin")  # type: ignore[arg-type]
    other.team = Team.objects.create(name="other")
    other.save()
    client.force_login(other)
    assert client.get(f"/benchmarks/{benchmark.pk}/").status_code == 404
    assert benchmark.title not in client.get("/benchmarks/").content.decode()
    assert benchmark.title not in client.get(f"/benchmarks/compare/?id={benchmark.pk}").content.decode()


def test_an_operator_measures_an_instance(stage: Stage, as_: Any) -> None:
    answer = as_("operator").post("/benchmarks/new/", form(stage, tags="nightly, x", title="mine"))
    benchmark = Benchmark.objects.get()
    assert answer.headers["Location"] == f"/benchmarks/{benchmark.pk}/"
    assert (benchmark.title, benchmark.tags, benchmark.load_plan.values) == ("mine", ["nightly", "x"], [1, 4])
    assert benchmark.goals.ttft_ms == 500


def test_only_an_admin_sends_requests_to_other_servers(stage: Stage, as_: Any) -> None:
    given = form(stage, target="remote", url="http://127.0.0.1:9/v1", model="m", key="sk-very-secret",
                 engine=stage.fleet.engine.pk, tokenizer=stage.fleet.copy.pk)  # fmt: skip
    assert as_("operator").post("/benchmarks/new/", given).status_code == 400, "it is no choice of theirs"
    assert as_("admin").post("/benchmarks/new/", given).status_code == 302
    benchmark = Benchmark.objects.get()
    assert benchmark.remote_url == "http://127.0.0.1:9"
    page = as_("admin").get(f"/benchmarks/{benchmark.pk}/").content.decode()
    assert "sk-very-secret" not in page


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"values": "1, many"}, "is no number"),
        ({"values": "1.5"}, "whole number"),
        ({"values": ""}, "at least one load"),
        ({"requests": ""}, "how many requests, or how long"),
        ({"search": "sweep", "first": "8", "most": "4", "budget_minutes": "5"}, "less than where the search begins"),
        ({"instance": ""}, "Say what is measured"),
        ({"profile": "nonsense"}, "nonsense"),
        ({"repeats": "0"}, "greater than or equal to 1"),
        ({"target": "remote", "url": "ftp://x"}, "URL"),
    ],
)
def test_what_makes_no_sense_is_said_at_its_field(stage: Stage, as_: Any, changes: dict[str, str], said: str) -> None:
    answer = as_("admin").post("/benchmarks/new/", form(stage, **changes))
    assert answer.status_code == 400
    assert said in answer.content.decode()
    assert not Benchmark.objects.exists()


def test_a_file_of_prompts_is_kept_and_can_be_used_again(stage: Stage, as_: Any) -> None:
    upload = SimpleUploadedFile("mine.jsonl", b'{"prompt": "hello"}\n')
    assert as_("operator").post("/benchmarks/new/", form(stage, upload=upload)).status_code == 302
    dataset = Dataset.objects.get()
    assert (dataset.name, Benchmark.objects.get().dataset) == ("mine.jsonl", dataset)
    assert "mine.jsonl" in as_("operator").get("/benchmarks/new/").content.decode()


def test_a_file_that_cannot_be_read_is_refused_at_its_field(stage: Stage, as_: Any) -> None:
    answer = as_("operator").post("/benchmarks/new/", form(stage, upload=SimpleUploadedFile("x.json", b"[1")))
    assert answer.status_code == 400
    assert "like JSON" in answer.content.decode()


def test_asking_again_begins_with_what_was_asked(stage: Stage, as_: Any) -> None:
    benchmark = stage.whole()
    page = as_("operator").get(f"/benchmarks/new/?from={benchmark.pk}").content.decode()
    assert 'value="1, 4"' in page
    assert re.search(r'name="ttft_ms" value="500', page)


def test_a_running_one_says_what_it_has_so_far(stage: Stage, as_: Any) -> None:
    from console.jobs import services as jobs

    benchmark = stage.measure()
    stage.report_run(benchmark, 1)
    step = stage.step(benchmark)
    jobs.started(step)
    jobs.progressed(step, StepProgress(step=step.pk, fence=step.fence, done=3, total=20, waiting_for="20 requests",
                                       numbers={"tokens_per_second": 61.5, "ttft_p50_ms": 84.2}))  # fmt: skip
    page = as_("viewer").get(f"/benchmarks/{benchmark.pk}/").content.decode()
    assert "3 of 20" in page
    assert "61.5" in page
    assert "84.2 ms" in page
    assert "1 loads so far" in page


def test_half_a_result_is_never_shown_as_whole(stage: Stage, as_: Any) -> None:
    benchmark = stage.measure(title="half")
    stage.report_run(benchmark, 1)
    stage.end(benchmark, "failed", failure=Failure(code="engine.exited", message="the engine was killed"))
    client = as_("viewer")
    page = client.get(f"/benchmarks/{benchmark.pk}/").content.decode()
    assert "Not whole" in page
    assert "the engine was killed" in page
    assert "-incomplete.csv" in client.get(f"/benchmarks/{benchmark.pk}/export.csv").headers["Content-Disposition"]
    assert json.loads(client.get(f"/benchmarks/{benchmark.pk}/export.json").content)["whole"] is False
    whole = stage.whole(title="whole")
    page = client.get(f"/benchmarks/compare/?id={benchmark.pk}&id={whole.pk}").content.decode()
    assert "“half” is not whole" in page
    assert "“whole” is not whole" not in page


def test_exports_hold_every_run(stage: Stage, as_: Any) -> None:
    benchmark = stage.whole(title="=1+1")
    client = as_("viewer")
    rows = list(csv.DictReader(io.StringIO(client.get(f"/benchmarks/{benchmark.pk}/export.csv").content.decode())))
    assert [(row["load"], row["repeat"]) for row in rows] == [("1.0", "1"), ("1.0", "2"), ("4.0", "1"), ("4.0", "2")]
    assert rows[0]["benchmark"] == "'=1+1", "a spreadsheet must not read it as a formula"
    assert float(rows[0]["ttft_p95"]) == 150
    told = json.loads(client.get(f"/benchmarks/{benchmark.pk}/export.json").content)
    assert told["runs"][0]["raw"] == {"duration": 10.0, "ttfts": [0.1]}
    html = client.get(f"/benchmarks/{benchmark.pk}/export.html").content.decode()
    assert "<script" not in html
    assert "vLLM 0.32.0" in html
    assert client.get(f"/benchmarks/{benchmark.pk}/export.exe").status_code == 404


def test_a_comparison_says_whether_a_difference_is_real(stage: Stage, as_: Any) -> None:
    slow, fast = stage.whole(title="before", ttft=1200.0), stage.whole(title="after", ttft=80.0)
    page = as_("viewer").get(f"/benchmarks/compare/?id={slow.pk}&id={fast.pk}").content.decode()
    assert "-93 % better" in page
    assert "the same" in page, "throughput didn't change"


def test_lists_cost_the_same_however_long(stage: Stage, as_: Any, django_assert_max_num_queries: Any) -> None:
    for number in range(6):
        stage.whole(title=f"run {number}")
    client = as_("viewer")
    with django_assert_max_num_queries(16):
        page = client.get("/benchmarks/").content.decode()
    assert "run 5" in page


def test_filters_narrow_the_list(stage: Stage, as_: Any) -> None:
    stage.whole(title="nightly")
    client = as_("viewer")
    assert "nightly" in client.get("/benchmarks/?profile=chat&state=succeeded&q=night").content.decode()
    page = client.get("/benchmarks/?profile=long_prompt").content.decode()
    assert "No benchmark matches" in page


def test_an_empty_list_says_what_would_be_there(fleet: Fleet, as_: Any) -> None:
    assert "Nothing was measured yet" in as_("viewer").get("/benchmarks/").content.decode()


def test_a_link_shows_one_benchmark_without_an_account_until_it_is_over(
    stage: Stage, as_: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    benchmark = stage.whole(title="shared one")
    made = as_("viewer").post(f"/benchmarks/{benchmark.pk}/share/", {"hours": "1"}).content.decode()
    path = re.search(r"/shared/benchmarks/[^/]+/", made)
    assert path
    stranger = Client()
    page = stranger.get(path[0])
    assert page.status_code == 200
    assert "shared one" in page.content.decode()
    assert page.headers["Cache-Control"] == "no-store"
    assert stranger.get(f"/benchmarks/{benchmark.pk}/").status_code == 302
    now = share_links.time.time()
    monkeypatch.setattr(share_links.time, "time", lambda: now + 3700)
    assert stranger.get(path[0]).status_code == 404


def test_a_link_of_another_kind_or_forged_opens_nothing(stage: Stage, viewer: User) -> None:
    benchmark = stage.whole()
    for salt, key in (("slipway.telemetry.share", None), (views.SHARE_SALT, "another key")):
        token = signing.dumps({"d": benchmark.pk, "u": 9e9, "p": viewer.pk}, salt=salt, key=key, compress=True)
        assert Client().get(f"/shared/benchmarks/{token}/").status_code == 404


def test_a_link_for_no_offered_time_is_refused(stage: Stage, as_: Any) -> None:
    benchmark = stage.whole()
    answer = as_("viewer").post(f"/benchmarks/{benchmark.pk}/share/", {"hours": "9999"})
    assert answer.status_code == 400


def test_an_admin_deletes_one_that_has_ended(stage: Stage, as_: Any) -> None:
    running, ended = stage.measure(), stage.whole()
    client = as_("admin")
    assert client.post(f"/benchmarks/{running.pk}/delete/", {"reason": "x"}).status_code == 400
    assert client.post(f"/benchmarks/{ended.pk}/delete/", {"reason": "x"}).status_code == 302
    assert list(Benchmark.objects.all()) == [running]


def test_notes_and_tags_can_be_written(stage: Stage, as_: Any) -> None:
    benchmark = stage.whole()
    as_("operator").post(f"/benchmarks/{benchmark.pk}/describe/", {"notes": "after the patch", "tags": "a, b, a"})
    benchmark.refresh_from_db()
    assert (benchmark.notes, benchmark.tags) == ("after the patch", ["a", "b"])
