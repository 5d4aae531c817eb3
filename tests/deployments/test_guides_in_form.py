"""The wrong commands of popular guides, pasted into the form as people do: explained on the page, corrected by a click."""

import uuid
from html import unescape

import pytest
from django.test import Client
from django.urls import reverse

from console.access.models import User
from console.deployments.forms import DeployForm
from console.deployments.models import Spec
from tests.factories import Fleet
from workers.vllm.arguments import check_arguments, schema_for

pytestmark = pytest.mark.django_db

GUIDES = [
    ("vllm serve {path} --model-name shop", "never existed", ""),
    ("vllm serve {path} --dtype fp8", "isn't the type that is computed in", "--dtype auto"),
    ("vllm serve {path} --rope-theta 1000000", "config.json", ""),
    ("vllm serve {path} --swap-space 16", "never swaps them", "--kv-offloading-size 16"),
    ("vllm serve {path} --num-scheduler-steps 8", "Multi-step scheduling", ""),
    ("vllm serve {path} --enable-chunked-prefill=false", "takes no value", "--no-enable-chunked-prefill"),
    ("python -m vllm.entrypoints.api_server --model {path}", "never had the OpenAI API", ""),
    ("vllm serve {path} --model shop", "given twice", ""),
    ("vllm serve {path} --max-prefix-cache-length 4096", "no size of its own", ""),
    ("vllm serve {path} --speculative-model x/y", "one JSON argument", "--speculative-config"),
    ("vllm serve {path} --log-level debug", "Did you mean DEBUG", "--log-level DEBUG"),
]
"""The line, words of its explanation, and what is deployed instead (nothing: it is left out, or is the name)."""


@pytest.mark.parametrize(("line", "explained", "corrected"), GUIDES)
def test_a_guide_s_wrong_command_is_explained_and_a_click_deploys_the_right_one(
    fleet: Fleet, admin: User, line: str, explained: str, corrected: str
) -> None:
    client = Client()
    client.force_login(admin)
    redraw = reverse("deployment_redraw")
    engine = str(fleet.engine.pk)
    given = {"copy": "", "engine": engine, "drawn_for": engine, "idempotency_key": str(uuid.uuid4())}
    read = client.post(redraw, {**given, "act": "read", "command": line.format(path=fleet.copy.path)})
    page = unescape(read.content.decode())
    assert explained in page
    wrong = read.context["form"]["arguments"].value()
    assert bool(wrong) == ('value="take:0"' in page), "what is wrong has its fix, one click away"
    fixed = client.post(redraw, {**sent(read.context["form"]), "act": "take:all"}) if wrong else read
    form = fixed.context["form"]
    assert not form["arguments"].value()
    named = {"name": form["name"].value() or "shop", "reason": "as the guide meant it"}
    answer = client.post(reverse("deployment_add"), sent(form) | named)
    assert answer.status_code == 302, answer.context["form"].errors
    spec = Spec.objects.get()
    assert spec.copy == fleet.copy
    assert spec.deployment.name == "shop"
    assert corrected in " ".join(spec.arguments)
    assert bool(spec.arguments) == bool(corrected)
    assert check_arguments(schema_for("0.32.0"), spec.arguments).findings == ()


def sent(form: DeployForm) -> dict[str, str]:
    """What the page's form would send."""
    values = {name: form[name].value() for name in form.fields}
    return {
        name: "on" if value is True else str(value) for name, value in values.items() if value not in (None, False, "")
    }
