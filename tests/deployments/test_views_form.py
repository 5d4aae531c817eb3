"""The deploy form: what it takes, what it explains, and that it never deploys twice or through a shell."""

import uuid
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from hypothesis import given, settings
from hypothesis import strategies as st

from console.access.models import Team, User
from console.catalog.models import Copy, Model, Revision
from console.deployments import public
from console.deployments.form_fields import split_arguments
from console.deployments.models import Deployment, Spec
from console.fleet.models import Engine
from console.jobs.models import Job
from tests.factories import Fleet
from workers.contracts import Probe, RestartPolicy

pytestmark = pytest.mark.django_db


def signed_in(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client


def filled(fleet: Fleet, **changes: Any) -> dict[str, Any]:
    return {
        "copy": str(fleet.copy.pk),
        "engine": str(fleet.engine.pk),
        "name": "chat",
        "idempotency_key": str(uuid.uuid4()),
    } | changes


def errors_of(client: Client, data: dict[str, Any]) -> dict[str, list[str]]:
    response = client.post(reverse("deployment_add"), data)
    assert response.status_code == 400
    assert "is-invalid" in response.content.decode() or response.context["form"].non_field_errors()
    return dict(response.context["form"].errors)


def test_the_essentials_are_enough(fleet: Fleet, admin: User) -> None:
    response = signed_in(admin).post(reverse("deployment_add"), filled(fleet))
    job = Job.objects.get()
    assert response["location"] == reverse("job_detail", args=[job.pk])
    spec = Spec.objects.get()
    assert (spec.arguments, spec.environment, spec.port, spec.start_deadline_seconds) == ([], {}, None, 1800)
    assert spec.probe["prompt"].startswith("What is the capital of France?")
    assert spec.restart["budget"] == 3


def test_everything_that_is_filled_in_reaches_the_spec(fleet: Fleet, admin: User) -> None:
    data = filled(
        fleet, arg_max_model_len="4096", arguments='--enforce-eager \\\n  --chat-template "a b.jinja"', port="18500",
        environment="VLLM_CPU_KVCACHE_SPACE=1\n# why\nexport HF_X=b=c\n", probe_prompt="2+2?", probe_expected="4",
        restart_budget="0", start_minutes="5", notes="for docs",
    )  # fmt: skip
    assert signed_in(admin).post(reverse("deployment_add"), data).status_code == 302
    spec = Spec.objects.get()
    assert spec.arguments == ["--max-model-len", "4096", "--enforce-eager", "--chat-template", "a b.jinja"]
    assert spec.environment == {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_X": "b=c"}
    assert (spec.port, spec.start_deadline_seconds) == (18500, 300)
    assert (spec.probe["prompt"], spec.probe["expected"], spec.restart["budget"]) == ("2+2?", "4", 0)
    assert Deployment.objects.get().notes == "for docs"


def test_a_public_name_makes_a_route_and_a_change_has_none(fleet: Fleet, admin: User) -> None:
    client = signed_in(admin)
    assert client.post(reverse("deployment_add"), filled(fleet, public_name="org/chat-8b")).status_code == 302
    deployment = Deployment.objects.get()
    assert public.served_names(deployment) == [deployment.name, "org/chat-8b"]
    assert "public_name" in errors_of(client, filled(fleet, name="other", public_name="org/chat-8b"))
    page = client.get(reverse("deployment_change", args=[deployment.pk])).content.decode()
    assert 'name="public_name"' not in page


def test_health_and_validation_reach_the_spec_and_come_back_into_the_form(fleet: Fleet, admin: User) -> None:
    health = {
        "probe_mode": "completions", "probe_language": "de", "declares_tools": "on", "declares_json": "on",
        "ttft_target_seconds": "0.5", "hang_seconds": "0", "probe_seconds": "15", "probe_under_load": "on",
        "warmup_prompts": "one\n\n two ",
    }  # fmt: skip
    client = signed_in(admin)
    assert client.post(reverse("deployment_add"), filled(fleet, **health)).status_code == 302
    spec = Spec.objects.get()
    probe, restart = Probe.model_validate(spec.probe), RestartPolicy.model_validate(spec.restart)
    assert (probe.mode, probe.language, probe.declares) == ("completions", "de", ["tools", "json"])
    assert (probe.ttft_target_seconds, probe.warmup_prompts) == (0.5, ["one", "two"])
    assert (restart.hang_seconds, restart.probe_seconds, restart.probe_under_load) == (0, 15, True)
    form = client.get(reverse("deployment_change", args=[spec.deployment_id])).context["form"]
    shown = {name: str(form[name].value()) for name in health}
    assert shown == health | {"warmup_prompts": "one\ntwo"}
    assert not form["restart_budget"].value(), "what is as by default is not shown as changed"


def test_a_value_with_an_error_stays_in_the_command_that_will_run(fleet: Fleet, admin: User) -> None:
    model = fleet.copy.revision
    model.shape = {"config": {"model_type": "llama", "max_position_embeddings": 512}}
    model.save()
    response = signed_in(admin).post(reverse("deployment_preview"), filled(fleet, arg_max_model_len="100000"))
    preview = response.context["preview"]
    assert [name for name, _text in preview["errors"]] == ["arg_max_model_len"]
    assert not [finding for finding in preview["findings"] if finding.flag == "--max-model-len"]
    assert "--max-model-len 100000" in " ".join(preview["command"].replace("\\\n", " ").split())


def test_a_second_click_deploys_nothing_and_leads_to_the_same_job(fleet: Fleet, admin: User) -> None:
    client, data = signed_in(admin), filled(fleet)
    first = client.post(reverse("deployment_add"), data)
    second = client.post(reverse("deployment_add"), data)
    assert first["location"] == second["location"]
    assert (Job.objects.count(), Deployment.objects.count()) == (1, 1)


def test_each_form_has_a_key_of_its_own(fleet: Fleet, admin: User) -> None:
    client = signed_in(admin)
    keys = {str(client.get(reverse("deployment_add")).context["form"]["idempotency_key"].value()) for _time in range(2)}
    assert len(keys) == 2


@pytest.mark.parametrize(
    ("changes", "field", "part"),
    [
        ({"name": "Große Namen"}, "name", "lower-case letters"),
        ({"name": ""}, "name", "required"),
        ({"copy": ""}, "copy", "required"),
        ({"engine": "999999"}, "engine", "valid choice"),
        ({"arguments": '--x "open'}, "arguments", "never closed"),
        ({"arguments": "--max_model_len=5", "arg_max_model_len": "4096"}, "arguments", "given twice"),
        ({"environment": "NO EQUALS"}, "environment", "Line 1"),
        ({"environment": "HF_A=1\nHF_A=2"}, "environment", "set twice"),
        ({"environment": "1A=1"}, "environment", "Line 1"),
        ({"port": "80"}, "port", "1024"),
        ({"arg_max_model_len": "-5"}, "arg_max_model_len", "1"),
        ({"start_minutes": "0"}, "start_minutes", "1"),
        ({"idempotency_key": "x"}, "idempotency_key", "UUID"),
    ],
)
def test_a_mistake_is_named_at_its_field_and_nothing_is_deployed(
    fleet: Fleet, admin: User, changes: dict[str, str], field: str, part: str
) -> None:
    errors = errors_of(signed_in(admin), filled(fleet, **changes)) if field != "idempotency_key" else dict(
        signed_in(admin).post(reverse("deployment_add"), filled(fleet, **changes)).context["form"].errors
    )  # fmt: skip
    assert part in " ".join(errors[field])
    assert not Deployment.objects.exists()


def test_what_was_typed_stays_after_a_mistake(fleet: Fleet, admin: User) -> None:
    data = filled(fleet, name="No", arguments="--enforce-eager", notes="keep <me>")
    page = signed_in(admin).post(reverse("deployment_add"), data).content.decode()
    for text in ("--enforce-eager", "keep &lt;me&gt;", 'value="No"', data["idempotency_key"]):
        assert text in page


def test_a_refusal_of_the_service_stands_at_its_field(fleet: Fleet, admin: User) -> None:
    client = signed_in(admin)
    client.post(reverse("deployment_add"), filled(fleet))
    assert "with this name already" in " ".join(errors_of(client, filled(fleet))["name"])


def test_an_engine_of_another_host_does_not_fit(fleet: Fleet, admin: User) -> None:
    other = Fleet.make()
    errors = errors_of(signed_in(admin), filled(fleet, engine=str(other.engine.pk)))
    assert "Choose an engine of the same host" in " ".join(errors["engine"])


def test_only_the_own_team_s_models_and_engines_are_offered(fleet: Fleet, admin: User) -> None:
    team = Team.objects.create(name="others")
    hidden = Fleet.make()
    hidden.host.team = hidden.copy.revision.model.team = team
    hidden.host.save()
    hidden.copy.revision.model.save()
    form = signed_in(admin).get(reverse("deployment_add")).context["form"]
    assert list(form.fields["copy"].queryset) == [fleet.copy]
    assert list(form.fields["engine"].queryset) == [fleet.engine]
    data = filled(fleet, copy=str(hidden.copy.pk), engine=str(hidden.engine.pk))
    assert {"copy", "engine"} <= set(errors_of(signed_in(admin), data))


def test_verified_copies_come_first_and_removed_ones_not_at_all(fleet: Fleet, admin: User) -> None:
    for name, state in (("AAA", "damaged"), ("BBB", "unverified"), ("CCC", "removed")):
        revision = Revision.objects.create(model=Model.objects.create(name=name), commit="local")
        Copy.objects.create(revision=revision, host=fleet.host, path=f"/models/{name}", state=state)
    copies = signed_in(admin).get(reverse("deployment_add")).context["form"].fields["copy"].queryset
    assert [one.state for one in copies] == ["verified", "unverified", "damaged"]


def test_engines_that_were_removed_are_not_offered(fleet: Fleet, admin: User) -> None:
    Engine.objects.update(present=False)
    page = signed_in(admin).get(reverse("deployment_add")).content.decode()
    assert "No engine is installed on any host yet." in page


def test_arguments_that_the_engine_would_not_take_are_explained_and_can_be_insisted_on(
    fleet: Fleet, admin: User
) -> None:
    client, data = signed_in(admin), filled(fleet, arguments="--rope-theta 1000000 --enforce-eager")
    response = client.post(reverse("deployment_add"), data)
    page = response.content.decode()
    assert response.status_code == 400
    assert "would not start with these arguments" in page
    assert "read from the model&#x27;s config.json" in page
    assert 'name="despite_findings"' in page
    assert client.post(reverse("deployment_add"), data | {"despite_findings": "on"}).status_code == 302
    assert Spec.objects.get().arguments == ["--rope-theta", "1000000", "--enforce-eager"]


def test_what_slipway_sets_itself_can_not_be_insisted_on(fleet: Fleet, admin: User) -> None:
    data = filled(fleet, arguments="--served-model-name other", despite_findings="on")
    response = signed_in(admin).post(reverse("deployment_add"), data)
    assert response.status_code == 400
    assert "Slipway sets some of these itself" in response.content.decode()
    assert 'name="despite_findings"' not in response.content.decode()


def test_an_engine_of_unknown_version_is_not_judged(fleet: Fleet, admin: User) -> None:
    Engine.objects.update(version="nightly")
    data = filled(fleet, arguments="--rope-theta 1")
    assert signed_in(admin).post(reverse("deployment_add"), data).status_code == 302


def test_findings_stand_at_the_field_while_typing(fleet: Fleet, admin: User) -> None:
    page = preview_of(admin, filled(fleet, arguments="--enable-chunked-prefil --trust-remote-code"))
    assert 'id="argument-findings"' in page
    assert "Write --enable-chunked-prefill." in page
    assert "<code>--trust-remote-code</code>" in page


def test_while_typing_each_error_stands_at_its_field_and_an_empty_field_has_none(fleet: Fleet, admin: User) -> None:
    data = filled(fleet, name="Bad Name", replicas="0", arg_gpu_memory_utilization="95", port="")
    errors = dict(signed_in(admin).post(reverse("deployment_preview"), data).context["preview"]["errors"])
    assert set(errors) == {"name", "replicas", "arg_gpu_memory_utilization"}
    assert "write 0.95" in errors["arg_gpu_memory_utilization"]
    blank = signed_in(admin).post(reverse("deployment_preview"), {"name": "", "copy": "", "engine": ""})
    assert blank.context["preview"]["errors"] == []


def preview_of(user: User, data: dict[str, Any]) -> str:
    response = signed_in(user).post(reverse("deployment_preview"), data)
    assert response.status_code == 200
    return response.content.decode()


def test_the_command_is_shown_while_typing_even_half_way(fleet: Fleet, admin: User) -> None:
    assert "vllm serve MODEL" in preview_of(admin, {})
    page = preview_of(admin, filled(fleet, arg_max_model_len="2048", arguments="--enforce-eager", environment="HF_A=b"))
    assert f"vllm serve {fleet.copy.path}" in page
    for text in ("--served-model-name chat", "--max-model-len 2048", "--enforce-eager", "<b>HF_A</b>=b", "--port PORT"):
        assert text in page, text
    assert "never closed" in preview_of(admin, filled(fleet, arguments="'open"))


def test_a_command_line_is_shown_as_text_and_quoted(fleet: Fleet, admin: User) -> None:
    page = preview_of(admin, filled(fleet, arguments="--x '$(reboot) <b>'"))
    assert "&#x27;$(reboot) &lt;b&gt;&#x27;" in page
    assert "<b>'" not in page


def test_a_model_s_page_can_lead_here_with_the_model_chosen(fleet: Fleet, admin: User) -> None:
    page = signed_in(admin).get(reverse("deployment_add"), {"copy": fleet.copy.pk}).content.decode()
    assert f'<option value="{fleet.copy.pk}" data-host="{fleet.host.pk}" selected' in page or (
        f'<option value="{fleet.copy.pk}" selected data-host="{fleet.host.pk}"' in page
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", []),
        ("--a 1 --b=2", ["--a", "1", "--b=2"]),
        ("--a \\\r\n 1", ["--a", "1"]),
        ("--a '{\"x\": 1}'", ["--a", '{"x": 1}']),
        ("vllm serve org/model --a", ["--a"]),
        ("vllm serve --a", ["--a"]),
        ("--a; rm -rf / | $(x) `y` > z", ["--a;", "rm", "-rf", "/", "|", "$(x)", "`y`", ">", "z"]),
        ("--a #1", ["--a", "#1"]),
    ],
)
def test_arguments_are_split_as_a_shell_would_but_never_run(text: str, words: list[str]) -> None:
    assert split_arguments(text) == words


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=60))
def test_any_text_is_split_or_refused(text: str) -> None:
    try:
        words = split_arguments(text)
    except ValueError:
        return
    assert all(isinstance(word, str) for word in words)
