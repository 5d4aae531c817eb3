"""Form fields made of an engine's own arguments: one field each, its text to a typed value and back.

Every field is text on the way to the browser, so that a value which doesn't hold can be shown as it was typed. An empty
text means that the argument is left out. `""` is an explicit empty value (a text in double quotes is read as JSON does,
so blanks and line breaks can be written), `None` an explicit "no value" where the argument takes one; lists have one value
a line.
"""

import json
from collections.abc import Mapping
from copy import copy as shallow
from typing import Any

from django import forms
from django.utils.translation import get_language
from django.utils.translation import gettext as _

from console.deployments.light_widgets import LightArea, LightInput, LightSelect
from workers.vllm.arguments import (
    Argument,
    ArgumentSchema,
    RefusedValueError,
    Value,
    format_value,
    parse_words,
    reserved,
    value_range,
)

PREFIX = "arg_"
"""Begins the form names of arguments, so that none is taken for a field of the form's own."""
NOT_IN_FORM = frozenset({"model", "served_model_name", "config"})
"""Arguments that stand as fields of their own (model, name), or that the host refuses."""
ON, OFF = "on", "off"
UNSET: Any = object()
"""Value of an argument that is left out."""
LONG_DEFAULT = 60
_MOST_KEPT = 32
_made: dict[tuple[int, str], tuple[ArgumentSchema, dict[str, "ArgumentField"]]] = {}
"""Fields by schema and language, each beside its schema: an identity alone could be another object's by now."""


def field_name(argument: Argument) -> str:
    """Form name of an argument."""
    return PREFIX + argument.dest


def offered(schema: ArgumentSchema) -> list[Argument]:
    """Arguments that the form has a field for: all but the model, and what Slipway sets itself."""
    return [one for one in schema.arguments if one.dest not in NOT_IN_FORM and one.dest not in reserved()]


def text_of(argument: Argument, value: Value) -> str:
    """A typed value as the field shows it; the opposite of `value_of`."""
    if argument.boolean:
        return ON if value else OFF
    if argument.nargs == "?" and value is True:
        return argument.flag
    if argument.repeatable:
        return "\n".join(_word(argument, item) for item in value)
    return _word(argument, value)


def _word(argument: Argument, value: Value) -> str:
    if argument.type == "bool":
        return ON if value else OFF
    if isinstance(value, str) and (not value.strip() or "\n" in value or _is_quoted(value)):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, dict | list):
        return json.dumps(value, ensure_ascii=False, indent=2 if _is_json(argument) else None)
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    return str(value)


def value_of(argument: Argument, text: str) -> Value:
    """Read a field's text into a typed value; UNSET for none. RefusedValueError where the engine would refuse it."""
    text = text.replace("\r\n", "\n")
    if not text.strip():
        return UNSET
    if argument.boolean:
        return _switch(argument, text.strip())
    if argument.type == "bool":
        return text.strip() != OFF
    if argument.nargs == "?" and text.strip() == argument.flag:
        return True
    lines = [line for line in text.split("\n") if line.strip()] if argument.repeatable else [text]
    kept = lines if _keeps_spaces(argument) else [line.strip() for line in lines]
    try:
        value = parse_words(argument, [_unquoted(line) for line in kept])
    except RefusedValueError as problem:
        if _is_json(argument) and (place := json_error(text)):
            raise RefusedValueError(problem.code, place, problem.suggestion) from problem
        raise
    format_value(argument, value)  # refuses what argparse can't carry
    return value


def _switch(argument: Argument, text: str) -> Value:
    if text == OFF and argument.kind == "flag":
        return UNSET  # it is off unless it is given
    if text not in (ON, OFF):
        raise RefusedValueError("args.invalid_value", _("Choose on, off or the default."))
    return text == ON


def _is_quoted(text: str) -> bool:
    return len(text) > 1 and text[0] == text[-1] == '"'


def _unquoted(text: str) -> str:
    bare = text.strip()
    if not _is_quoted(bare):
        return text
    try:
        return str(json.loads(bare))
    except ValueError:
        return text


def _keeps_spaces(argument: Argument) -> bool:
    return argument.type in ("text", "json_or_text") and not argument.choices


def _is_json(argument: Argument) -> bool:
    return argument.type in ("json", "json_or_text") and not argument.repeatable


def json_error(text: str) -> str:
    """Where and why a text is no JSON, with line and column from 1; empty if it is JSON."""
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        return _("Line %(line)d, column %(column)d: %(why)s.") % {
            "line": error.lineno, "column": error.colno, "why": error.msg,
        }  # fmt: skip
    return ""


class ArgumentField(forms.CharField):
    """One argument of an engine. `clean` gives its typed value, UNSET when it is left out."""

    def __init__(self, argument: Argument, **kwargs: Any) -> None:
        kwargs.setdefault("widget", widget_for(argument))
        super().__init__(required=False, strip=False, max_length=20_000, label=argument.flag, **kwargs)
        self.argument = argument

    def __deepcopy__(self, memo: dict[int, Any]) -> "ArgumentField":
        # Nothing of it is changed per form but the widget's attributes, so that three hundred of them cost little.
        result = shallow(self)
        result.widget = shallow(self.widget)
        result.widget.attrs = dict(self.widget.attrs)
        memo[id(self)] = result
        return result

    def clean(self, value: Any) -> Value:
        """The typed value. ValidationError says what the engine refuses, and what it would take."""
        text = super().clean(value)
        try:
            return value_of(self.argument, text)
        except RefusedValueError as problem:
            message = str(problem)
            if problem.suggestion:
                message += " " + _("It would take: %(words)s") % {"words": " ".join(problem.suggestion)}
            raise forms.ValidationError(message, code=problem.code) from None


def widget_for(argument: Argument) -> forms.Widget:
    """The control that suits an argument: a choice, a box of JSON, a list of lines, a number or text."""
    attrs: dict[str, Any] = {"spellcheck": "false", "autocomplete": "off", "autocapitalize": "none"}
    if argument.boolean or argument.type == "bool":
        return LightSelect(choices=_switch_choices(argument))
    if argument.choices and not argument.repeatable:
        named = [("None" if one is None else str(one)) for one in argument.choices]
        return LightSelect(choices=[("", _default_words(argument)), *((one, one) for one in dict.fromkeys(named))])
    attrs["placeholder"] = _default_text(argument)
    if argument.repeatable:
        if argument.choices:
            attrs["placeholder"] = " · ".join(str(one) for one in argument.choices)
        return LightArea(attrs=attrs | {"rows": 2, "class": "mono"})
    if _is_json(argument):
        wanted = "text" if argument.type != "json" else "list" if argument.wants_list else "object"
        return LightArea(attrs=attrs | {"rows": 2, "class": "mono", "data-json": wanted})
    if argument.type in ("int", "float"):
        attrs["inputmode"] = "decimal" if argument.type == "float" else "numeric"
    return LightInput(attrs=attrs)


def _switch_choices(argument: Argument) -> list[tuple[str, str]]:
    choices = [("", _default_words(argument)), (ON, _("on (%(flag)s)") % {"flag": argument.flag})]
    if argument.negative:
        choices.append((OFF, _("off (%(flag)s)") % {"flag": argument.negative}))
    elif argument.type == "bool":
        choices.append((OFF, _("off")))
    return choices


def _default_words(argument: Argument) -> str:
    shown = _default_text(argument)
    return _("default (%(value)s)") % {"value": shown} if shown else _("the engine decides")


def _default_text(argument: Argument) -> str:
    default = argument.default
    if default is None:
        return ""
    if isinstance(default, bool):
        return _("on") if default else _("off")
    text = json.dumps(default, ensure_ascii=False) if isinstance(default, dict | list) else str(default)
    return text if len(text) <= LONG_DEFAULT else f"{text[:LONG_DEFAULT]}…"


def type_words(argument: Argument) -> str:
    """What an argument takes, in a few words, with its limits."""
    if argument.boolean or argument.type == "bool":
        return _("switch")
    words = {
        "int": _("whole number"),
        "float": _("number"),
        "tokens": _("number such as 32768 or 32k"),
        "tokens_or_auto": _("number such as 32768 or 32k, or auto"),
        "json": _("JSON array") if argument.wants_list else _("JSON object"),
        "json_or_text": _("JSON or text"),
        "lora_module": _("name=path or JSON"),
    }.get(argument.type, _("one of %(count)d") % {"count": len(argument.choices)} if argument.choices else _("text"))
    if argument.repeatable:
        words = _("list, one a line: %(words)s") % {"words": words}
    signs = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
    limits = [f"{signs[key]} {limit:g}" for key, limit in value_range(argument.dest).items()]
    return " · ".join([words, *limits])


def fields_of(schema: ArgumentSchema) -> Mapping[str, ArgumentField]:
    """A field for every argument that the form offers, by form name. They are shared: a form takes copies."""
    key = (id(schema), get_language() or "")
    found = _made.get(key)
    if found is None or found[0] is not schema:
        if len(_made) >= _MOST_KEPT:
            _made.clear()
        found = _made[key] = (schema, {field_name(one): ArgumentField(one) for one in offered(schema)})
    return found[1]
