"""Pages of studies: what each role may, what they say, what bad input gets."""

import json

import pytest
from django.test import Client
from django.urls import reverse

from console.access.models import User
from console.deployments.models import Draft, Spec
from console.studies import driver
from console.studies.models import Study
from tests.studies.conftest import Bench


@pytest.fixture
def whole(bench: Bench) -> Study:
    """A base and one variant, both measured."""
    study = bench.study("--max-num-seqs 64", base=None)
    Study.objects.filter(pk=study.pk).update(deployment=bench.stage.instance.deployment_id)
    bench.drive(study)
    bench.measure(study, 50)
    bench.measure(study, 80)
    driver.drive_all()
    driver.drive_all()
    return Study.objects.get(pk=study.pk)


def form(bench: Bench, **changes: object) -> dict[str, object]:
    given = {
        "source": "deployment", "deployment": bench.stage.instance.deployment_id, "changes": "--max-num-seqs 64 | 128",
        "together": "one", "neighbours": "beside", "profile": "chat", "by": "concurrency", "search": "fixed",
        "values": "1, 4", "requests": 20, "repeats": 2, "warmups": 1, "seed": 0, "ignore_eos": "on", "quality": "on",
        "reason": "guides disagree",
    }  # fmt: skip
    return given | changes


def test_an_admin_starts_a_study_of_a_deployment(client: Client, bench: Bench) -> None:
    client.force_login(bench.admin)
    answer = client.post(reverse("study_add"), form(bench))
    study = Study.objects.get()
    assert answer.headers["Location"] == reverse("study_detail", args=[study.pk])
    assert study.deployment_id == bench.stage.instance.deployment_id
    assert study.arguments == ["--enforce-eager"]
    assert [one.label for one in study.trials.all()] == ["–", "--max-num-seqs 64", "--max-num-seqs 128"]
    assert study.with_quality


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"changes": ""}, "at least one change, or another model"),
        ({"changes": "64"}, "begins with no argument"),
        ({"neighbours": "leave"}, "runs on this device"),
        ({"deployment": ""}, "Say what is studied"),
        ({"changes": "--host 0.0.0.0"}, "--host"),
        ({"values": "many"}, "is no number"),
        ({"reason": ""}, "This field is required"),
    ],
)
def test_bad_input_is_said_at_its_field_and_starts_nothing(
    client: Client, bench: Bench, changes: dict[str, str], words: str
) -> None:
    client.force_login(bench.admin)
    answer = client.post(reverse("study_add"), form(bench, **changes))
    assert answer.status_code == 400
    assert words in answer.content.decode()
    assert not Study.objects.exists()


@pytest.mark.parametrize(("role", "status"), [("viewer", 403), ("operator", 403), ("admin", 200)])
def test_only_admins_ask_for_studies(
    client: Client, bench: Bench, request: pytest.FixtureRequest, role: str, status: int
) -> None:
    client.force_login(request.getfixturevalue(role))
    assert client.get(reverse("study_add")).status_code == status


@pytest.mark.parametrize(
    ("role", "cancel", "delete", "apply"),
    [("viewer", 403, 403, 403), ("operator", 200, 403, 403), ("admin", 200, 200, 302)],
)
def test_everybody_looks_operators_cancel_admins_do_the_rest(
    client: Client, whole: Study, request: pytest.FixtureRequest, role: str, cancel: int, delete: int, apply: int
) -> None:
    client.force_login(request.getfixturevalue(role))
    variant = whole.trials.get(position=1)
    assert client.get(reverse("study_list")).status_code == 200
    page = client.get(reverse("study_detail", args=[whole.pk]))
    assert page.status_code == 200
    assert ("Apply" in page.content.decode()) is (role == "admin")
    assert client.get(reverse("study_cancel", args=[whole.pk])).status_code == cancel
    assert client.get(reverse("study_go_on", args=[whole.pk])).status_code == delete
    assert client.get(reverse("study_delete", args=[whole.pk])).status_code == delete
    assert client.post(reverse("trial_apply", args=[variant.pk])).status_code == apply


def test_another_team_sees_nothing_of_it(client: Client, whole: Study, admin: User) -> None:
    from console.access.models import Team

    admin.team = Team.objects.create(name="others")
    admin.save()
    client.force_login(admin)
    assert client.get(reverse("study_detail", args=[whole.pk])).status_code == 404
    assert client.post(reverse("trial_apply", args=[whole.trials.get(position=1).pk])).status_code == 404


def test_apply_this_opens_the_change_form_filled_in_and_changes_nothing(
    client: Client, bench: Bench, whole: Study
) -> None:
    client.force_login(bench.admin)
    specs = Spec.objects.filter(deployment=whole.deployment).count()
    answer = client.post(reverse("trial_apply", args=[whole.trials.get(position=1).pk]), follow=True)
    assert answer.redirect_chain[0][0].startswith(reverse("deployment_change", args=[whole.deployment_id]))
    assert Draft.objects.get().fields["arg_max_num_seqs"] == "64"
    assert 'value="64"' in answer.content.decode()
    assert Spec.objects.filter(deployment=whole.deployment).count() == specs


def test_the_page_says_what_was_measured_and_the_files_hold_it(client: Client, bench: Bench, whole: Study) -> None:
    client.force_login(bench.admin)
    text = client.get(reverse("study_detail", args=[whole.pk])).content.decode()
    for words in ("+60 %", "24/24", "study-pareto", "study-bars", "base"):
        assert words in text
    csv = client.get(reverse("study_export", args=[whole.pk, "csv"])).content.decode()
    assert csv.count("\n") == 5, "a head, and two variants at two loads"
    told = json.loads(client.get(reverse("study_export", args=[whole.pk, "json"])).content)
    assert told["whole"]
    assert len(told["trials"][1]["benchmark"]["runs"]) == 4
    assert client.get(reverse("study_export", args=[whole.pk, "pdf"])).status_code == 404


def test_a_rule_of_thumb_fills_the_form_and_its_claims_stand_beside_the_numbers(client: Client, bench: Bench) -> None:
    client.force_login(bench.admin)
    page = client.get(f"{reverse('study_add')}?ready=eager").content.decode()
    assert "--enforce-eager | --no-enforce-eager" in page
    assert "Only for debugging" in page
    client.post(reverse("study_add"), form(bench, changes="--no-enforce-eager", ready_made="eager"))
    study = Study.objects.get()
    bench.drive(study)
    bench.measure(study, 50)
    bench.measure(study, 80)
    text = client.get(reverse("study_detail", args=[study.pk])).content.decode()
    assert "Only for debugging" in text
    assert "ready after 31.5 s" in text or "ready after 32 s" in text


def test_the_list_is_empty_with_a_way_on_and_asks_a_constant_number_of_queries(
    client: Client, bench: Bench, django_assert_max_num_queries: object
) -> None:
    client.force_login(bench.admin)
    assert "Nothing was studied yet" in client.get(reverse("study_list")).content.decode()
    for number in range(4):
        bench.study(title=f"Study {number}")
    with django_assert_max_num_queries(14):  # type: ignore[operator]
        assert "Study 3" in client.get(reverse("study_list")).content.decode()


def test_the_engines_of_a_study_stand_in_no_list_of_deployments(client: Client, bench: Bench, whole: Study) -> None:
    client.force_login(bench.admin)
    assert whole.own
    assert whole.own.name not in client.get(reverse("deployment_list")).content.decode()
    assert whole.own.name not in client.get(reverse("overview")).content.decode()
