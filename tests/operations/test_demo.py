"""The demo's own parts: the person, the waiting, the line for scripts. The whole of it is a live test."""

import json
import re
from pathlib import Path

import pytest

from console import env
from console.access.models import User
from console.deployments.models import Deployment
from console.gateway import keys
from console.gateway.models import Key
from console.jobs import services as jobs
from console.jobs.models import Job, Step
from console.operations.demo import ADMIN, CHANGED, Demo, DemoFailed, Ready, secrets_path
from console.operations.following import Interrupted, JobFailed, follow, progress
from tests import factories
from workers.contracts import Failure, StepFinished

pytestmark = pytest.mark.django_db


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def demo(said: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Demo:
    monkeypatch.setattr(env.environment(), "slipway_home", tmp_path)
    (tmp_path / "console").mkdir()
    return Demo(say=said.append, alive=lambda: True)


def test_the_first_run_makes_an_admin_and_shows_the_password_once(demo: Demo, said: list[str]) -> None:
    user, password = demo.admin()
    person = User.objects.get()
    assert (user, person.role, person.must_change_password) == (ADMIN, "admin", False)
    assert person.check_password(password)
    assert secrets_path().stat().st_mode & 0o777 == 0o600
    assert sum(password in line for line in said) == 1
    assert demo.admin() == (user, password)
    assert sum(password in line for line in said) == 1


def test_a_changed_password_is_not_repeated(demo: Demo) -> None:
    demo.admin()
    person = User.objects.get()
    person.set_password("something else entirely")
    person.save()
    assert demo.admin() == (ADMIN, CHANGED)


def test_no_second_admin_is_made_where_people_exist(demo: Demo) -> None:
    User.objects.create_user("ada", password="correct horse battery", role="admin")
    assert demo.admin() == ("ada", CHANGED)
    assert User.objects.count() == 1


def test_the_line_for_scripts_is_one_line_of_words() -> None:
    line = Ready("http://127.0.0.1:8400", "http://127.0.0.1:18000", "m", "sk-1", "admin", "pw", "Paris.").line()
    assert line == (
        "SLIPWAY READY console=http://127.0.0.1:8400 endpoint=http://127.0.0.1:18000 model=m key=sk-1 user=admin password=pw"
    )
    assert "key=none " in Ready("c", "e", "m", "", "u", "p", "a").line()


def test_waiting_in_vain_says_for_what_how_long_and_what_next(demo: Demo) -> None:
    with pytest.raises(DemoFailed, match=r"Waited 0 s for the moon, in vain\. Look up\."):
        demo._wait(lambda: None, what="the moon", seconds=0.1, next_step="Look up.")


def test_an_interrupted_wait_ends_at_once(said: list[str]) -> None:
    with pytest.raises(Interrupted):
        Demo(say=said.append, alive=lambda: False)._wait(lambda: None, what="x", seconds=60, next_step="")


def test_the_engine_that_is_there_is_found_and_nothing_is_asked_for(demo: Demo, fleet: factories.Fleet) -> None:
    assert demo.engine(fleet.host) == fleet.engine
    assert not Job.objects.exists()


# -- following a job ----------------------------------------------------------------------------------------------------


def test_following_shows_each_event_once_and_ends_with_the_job(fleet: factories.Fleet, said: list[str]) -> None:
    job = fleet.deploy()
    steps = list(job.steps.all())
    jobs.started(steps[0])
    jobs.note(job, "port 18000 is free")
    failure = Failure(code="engine.not_installed", message="engine is gone", next="Install it.")
    jobs.finished(steps[0], StepFinished(step=steps[0].pk, fence=steps[0].fence, outcome="failed", failure=failure))
    with pytest.raises(JobFailed, match=rf"{re.escape(job.title)}: failed\. engine is gone Install it\."):
        follow(job, say=said.append, alive=lambda: True)
    assert said.count("port 18000 is free") == 1
    assert said == list(job.events.order_by("seq").values_list("text", flat=True))


def test_following_ends_when_asked_to(fleet: factories.Fleet, said: list[str]) -> None:
    with pytest.raises(Interrupted):
        follow(fleet.deploy(), say=said.append, alive=lambda: False)


@pytest.mark.parametrize(
    ("known", "line"),
    [
        (
            {"done": 1.2e9, "total": 3.4e9, "unit": "bytes", "rate": 45e6, "waiting_for": "torch"},
            "Launch: 1.2 GB of 3.4 GB, 45.0 MB/s, about 49 s left, torch",
        ),
        ({"done": 12, "unit": "seconds", "waiting_for": "weights"}, "Launch: 12 s, weights"),
        ({"done": 3, "total": 8, "unit": "items", "rate": 0}, "Launch: 3 items of 8 items"),
        ({}, "Launch: running"),
    ],
)
def test_progress_has_amount_rate_and_remaining_time(known: dict[str, float], line: str) -> None:
    assert progress(Step(kind="launch", progress=known)) == line


def test_the_password_and_the_key_are_kept_and_nothing_else(demo: Demo) -> None:
    demo.admin()
    assert set(json.loads(secrets_path().read_text())) == {"user", "password"}
    key = demo.key()
    assert set(json.loads(secrets_path().read_text())) == {"user", "password", "key"}
    assert secrets_path().stat().st_mode & 0o777 == 0o600
    assert demo.key() == key
    keys.revoke(Key.objects.get(), actor=None, reason="test")
    assert demo.key() != key


def test_the_route_that_is_there_is_found_and_no_second_one_made(demo: Demo, fleet: factories.Fleet) -> None:
    fleet.deploy(name="demo")
    deployment = Deployment.objects.get(name="demo")
    route = demo.route(deployment)
    assert route.names == ["demo"]
    assert demo.route(deployment) == route
