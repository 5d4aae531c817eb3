"""Every argument of every schema as a Django field: it renders, and what it holds goes to argv and back unharmed."""

from typing import Any

import pytest
from django import forms
from django.http import QueryDict
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from console.deployments import argument_fields
from console.deployments.argument_fields import UNSET, field_name, fields_of, offered, text_of
from tests.vllm.arguments.samples import samples, values_of
from workers.vllm.arguments import ArgumentSchema, argv_from_values, schema_for, shipped_versions, values_from_argv

VERSIONS = shipped_versions()
QUICK = settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))


def form_of(schema: ArgumentSchema, texts: dict[str, str]) -> forms.Form:
    """A real form, filled as a browser sends it: line breaks are CR LF."""
    data = QueryDict(mutable=True)
    for name, text in texts.items():
        data[name] = text.replace("\n", "\r\n")
    form = forms.Form(data)
    form.fields = dict(fields_of(schema))
    return form


def through_the_form(schema: ArgumentSchema, values: dict[str, Any]) -> dict[str, Any]:
    """Values into the form, out of it, to argv, and back into values."""
    texts = {field_name(schema.by_dest[dest]): text_of(schema.by_dest[dest], value) for dest, value in values.items()}
    form = form_of(schema, texts)
    assert form.is_valid(), form.errors
    found = {
        name.removeprefix(argument_fields.PREFIX): value
        for name, value in form.cleaned_data.items()
        if value is not UNSET
    }
    model, read = values_from_argv(schema, argv_from_values(schema, found, model="org/model"))
    assert model == "org/model"
    return read


@pytest.mark.parametrize("version", VERSIONS)
def test_every_argument_goes_through_the_form_to_argv_and_back(version: str) -> None:
    schema = schema_for(version)
    arguments = offered(schema)
    assert len(arguments) > 110
    for argument in arguments:
        for value in samples(argument):
            assert through_the_form(schema, {argument.dest: value}) == {argument.dest: value}, (argument.flag, value)


@pytest.mark.parametrize("version", VERSIONS)
@QUICK
@given(data=st.data())
def test_any_values_together_go_through_the_form(version: str, data: st.DataObject) -> None:
    schema = schema_for(version)
    chosen = data.draw(st.lists(st.sampled_from(offered(schema)), max_size=6, unique_by=lambda found: found.dest))
    values = {argument.dest: data.draw(values_of(argument), label=argument.flag) for argument in chosen}
    assert through_the_form(schema, values) == values


@pytest.mark.parametrize("version", VERSIONS)
def test_every_argument_renders_with_a_control_and_an_empty_form_sets_none(version: str) -> None:
    schema = schema_for(version)
    form = form_of(schema, {})
    assert form.is_valid()
    assert all(value is UNSET for value in form.cleaned_data.values())
    for argument in offered(schema):
        html = str(form[field_name(argument)])
        assert f'name="{field_name(argument)}"' in html, argument.flag
        for choice in argument.choices or ():
            assert str(choice) in html, (argument.flag, choice)
        if argument.negative:
            assert argument.negative in html


@pytest.mark.parametrize(
    ("dest", "text", "part"),
    [
        ("max_model_len", "long", "needs a whole number"),
        ("dtype", "fp8", "doesn't take 'fp8'"),
        ("gpu_memory_utilization", "90", "It would take: 0.9"),
        ("hf_overrides", '{"a": 1,\n "b": }', "Line 2, column 7"),
        ("compilation_config", '{"levl": 3}', "has no key levl"),
        ("enforce_eager", "perhaps", "Choose on, off or the default"),
        ("ignore_patterns", "-x\ny", "reads as another argument"),
    ],
)  # fmt: skip
def test_what_the_engine_would_refuse_is_an_error_at_the_field(dest: str, text: str, part: str) -> None:
    schema = schema_for("0.32.0")
    name = field_name(schema.by_dest[dest])
    form = form_of(schema, {name: text})
    assert not form.is_valid()
    assert part in " ".join(form.errors[name])


def test_an_explicit_empty_value_is_another_thing_than_none_at_all() -> None:
    schema = schema_for("0.32.0")
    assert through_the_form(schema, {"chat_template": None, "load_format": ""}) == {
        "chat_template": None,
        "load_format": "",
    }
