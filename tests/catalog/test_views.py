"""Pages of models, as each role meets them."""

from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from console.access.models import Team, User
from console.catalog.models import Copy, Model, Revision
from console.deployments.models import Deployment
from console.jobs.models import Job
from tests.factories import Fleet


def signed_in(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client


def test_everybody_may_look(admin: User, operator: User, viewer: User, fleet: Fleet) -> None:
    page = reverse("model_detail", args=[fleet.copy.revision.model_id])
    for user in (admin, operator, viewer):
        assert signed_in(user).get(reverse("model_list")).status_code == 200
        assert signed_in(user).get(page).status_code == 200


def test_models_of_another_team_are_invisible(admin: User, fleet: Fleet) -> None:
    team = Team.objects.create(name="others")
    model = Model.objects.create(name="Secret", team=team)
    copy = Copy.objects.create(revision=Revision.objects.create(model=model, commit="x"), host=fleet.host, path="/s")
    client = signed_in(admin)
    assert "Secret" not in client.get(reverse("model_list")).content.decode()
    assert client.get(reverse("model_detail", args=[model.pk])).status_code == 404
    assert client.post(reverse("copy_verify", args=[copy.pk])).status_code == 404


def test_verifying_is_for_operators_and_goes_to_the_job(operator: User, viewer: User, fleet: Fleet) -> None:
    page = reverse("copy_verify", args=[fleet.copy.pk])
    detail = reverse("model_detail", args=[fleet.copy.revision.model_id])
    assert signed_in(viewer).post(page).status_code == 403
    assert page not in signed_in(viewer).get(detail).content.decode()
    assert page in signed_in(operator).get(detail).content.decode()
    assert signed_in(operator).get(page).status_code == 405
    answer = signed_in(operator).post(page)
    assert answer.headers["Location"] == reverse("job_detail", args=[Job.objects.get(kind="verify").pk])


def test_a_directory_becomes_a_model_and_a_job(admin: User, fleet: Fleet) -> None:
    form = {"name": "Qwen3", "host": fleet.host.pk, "path": "/srv/models/Qwen3", "license": "Apache-2.0", "notes": ""}
    answer = signed_in(admin).post(reverse("model_add"), form)
    assert answer.headers["Location"] == reverse("job_detail", args=[Job.objects.get(kind="verify").pk])
    assert Copy.objects.get(path="/srv/models/Qwen3").revision.model.license == "Apache-2.0"


@pytest.mark.parametrize("path", ["relative/path", "/srv/../etc", ""])
def test_a_bad_directory_is_refused_at_its_field_and_the_rest_kept(admin: User, fleet: Fleet, path: str) -> None:
    answer = signed_in(admin).post(reverse("model_add"), {"name": "Qwen3", "host": fleet.host.pk, "path": path})
    assert answer.status_code == 400
    assert list(answer.context["form"].errors) == ["path"]
    assert 'value="Qwen3"' in answer.content.decode()
    assert not Job.objects.exists()


def test_damage_is_said_in_the_first_sentence_with_what_to_do(viewer: User, fleet: Fleet) -> None:
    failure = {
        "code": "weights.truncated",
        "message": "part 3 ends early",
        "next": "Download it again.",
        "evidence": [],
    }
    Copy.objects.filter(pk=fleet.copy.pk).update(
        state="damaged", state_reason="part 3 ends early", verification={"failure": failure}
    )
    page = signed_in(viewer).get(reverse("model_detail", args=[fleet.copy.revision.model_id])).content.decode()
    assert f"The copy on {fleet.host.name} is damaged: part 3 ends early" in page
    assert "Download it again." in page
    assert "one is damaged" in signed_in(viewer).get(reverse("model_list")).content.decode()


def test_a_deployment_whose_files_are_damaged_can_serve_the_last_verified_ones_instead(
    admin: User, fleet: Fleet
) -> None:
    fleet.deploy()
    deployment = Deployment.objects.get()
    older = Revision.objects.create(model=fleet.copy.revision.model, commit="d" * 40)
    sound = Copy.objects.create(
        revision=older, host=fleet.host, path="/models/older", state="verified", verified_at=timezone.now()
    )
    Copy.objects.filter(pk=fleet.copy.pk).update(state="damaged")
    client = signed_in(admin)
    instead = f"{reverse('deployment_change', args=[deployment.pk])}?copy={sound.pk}"
    assert instead in client.get(reverse("deployment_detail", args=[deployment.pk])).content.decode()
    form = client.get(instead).context["form"]
    assert form["copy"].value() == str(sound.pk)
    assert form["name"].value() == deployment.name


def test_facts_have_units(viewer: User, fleet: Fleet) -> None:
    details = {
        "architectures": ["LlamaForCausalLM"],
        "elements_by_dtype": {"F8_E4M3": 129_134_408, "BF16": 5_380_600},
        "max_position_embeddings": 8192,
        "weight_bytes": 269_060_552,
        "codes": {"weights.gguf": 1},
    }
    Revision.objects.filter(pk=fleet.copy.revision_id).update(facts=details)
    page = reverse("model_detail", args=[fleet.copy.revision.model_id])
    assert dict(signed_in(viewer).get(page).context["facts"]) == {
        "Architecture": "LlamaForCausalLM",
        "Parameters": "135 M",
        "Number format": "F8_E4M3 96 %, BF16 4 %",
        "Context length": "8,192 tokens",
        "Size of its weights": "257 MiB",
    }


def test_findings_say_what_to_do(viewer: User, fleet: Fleet) -> None:
    finding = {"code": "chat_template.missing", "severity": "warning", "file": None, "message": "No chat template.",
               "fix": "Give one with --chat-template."}  # fmt: skip
    Copy.objects.filter(pk=fleet.copy.pk).update(verification={"files": 6, "findings": [finding]})
    page = signed_in(viewer).get(reverse("model_detail", args=[fleet.copy.revision.model_id])).content.decode()
    assert "No chat template." in page
    assert "Give one with --chat-template." in page


def test_the_list_filters_by_text_and_by_the_state_of_a_copy(viewer: User, fleet: Fleet) -> None:
    other = Fleet.make()
    Copy.objects.filter(pk=other.copy.pk).update(state="damaged")
    Revision.objects.filter(pk=other.copy.revision_id).update(architecture="Qwen3MoeForCausalLM")
    client = signed_in(viewer)

    def found(**query: Any) -> list[str]:
        return [row.model.name for row in client.get(reverse("model_list"), query).context["rows"]]

    assert found(copy="damaged") == [other.copy.revision.model.name]
    assert found(q="qwen3moe") == [other.copy.revision.model.name]
    assert len(found()) == 2
    assert found(q="nothing like it") == []


def test_the_list_costs_the_same_with_many_models(
    viewer: User, fleet: Fleet, django_assert_max_num_queries: Any
) -> None:
    for number in range(30):
        revision = Revision.objects.create(model=Model.objects.create(name=f"M{number}"), commit="x")
        Copy.objects.create(revision=revision, host=fleet.host, path=f"/m/{number}")
    client = signed_in(viewer)
    with django_assert_max_num_queries(9):
        answer = client.get(reverse("model_list"))
    assert len(answer.context["rows"]) == 31
