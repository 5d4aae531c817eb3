"""What is wrong with a line of arguments, for the deploy form, and who may give which."""

from collections.abc import Mapping, Sequence

from django.utils.translation import gettext as _

from console.access import policies
from console.access.models import User
from console.access.policies import Action
from console.catalog.models import Copy
from console.common.errors import Refused
from console.deployments import engine_schema, model_support
from console.fleet.models import Engine
from workers.vllm.arguments import (
    ArgumentSchema,
    Finding,
    Surroundings,
    Value,
    check_arguments,
    guarded,
    guarded_names,
    values_from_argv,
)
from workers.vllm.own_options import OWN_OPTIONS, own_options

RESERVED = "args.reserved"
"""Code of what Slipway sets itself: the host refuses it, so the form does as well."""
GUARDED = "args.guarded"


def findings(
    arguments: Sequence[str],
    *,
    schema: ArgumentSchema | None,
    environment: Mapping[str, str] | None = None,
    copy: Copy | None = None,
    engine: Engine | None = None,
) -> list[Finding]:
    """Everything that doesn't hold for an engine, and what weakens safety or truth; empty without a schema.

    `copy` brings the model's configuration, which bounds context and parallel sizes, and tells what the engine must know.
    """
    own = _own_options(arguments)
    if schema is None:
        return own
    if not arguments:
        return _lacking({}, schema, copy, engine)
    config = copy.revision.config if copy is not None else None
    surroundings = Surroundings(environment=environment, model_config=config or None)
    checked = check_arguments(schema, arguments, surroundings)
    weakening = [
        Finding(GUARDED, "warning", item.flag, item.why, _("Leave it out unless you need it."))
        for item in guarded(schema, checked.values)
    ]
    said = {finding.flag for finding in own}
    fitting = [one for one in checked.findings if one.flag not in said]
    return [*own, *fitting, *weakening, *_lacking(checked.values, schema, copy, engine)]


def _lacking(
    values: Mapping[str, Value], schema: ArgumentSchema, copy: Copy | None, engine: Engine | None
) -> list[Finding]:
    if copy is None:
        return []
    return model_support.findings(copy, engine, schema, trusts_code=bool(values.get("trust_remote_code")))


def values_of(schema: ArgumentSchema, words: Sequence[str]) -> dict[str, Value]:
    """Typed values that words of argv set, as far as this engine takes them."""
    return values_from_argv(schema, words)[1] if words else {}


def refuse_guarded(arguments: Sequence[str], *, engine: Engine, actor: User | None) -> None:
    """Refuse what weakens safety or truth to anybody but an admin; the console itself (no actor) may.

    Of an engine whose arguments nobody knows, every argument of a guarded name is refused, whatever its value.
    """
    if actor is None or policies.can(actor, Action.ADMINISTER):
        return
    schema = engine_schema.schema_of(engine)
    if schema is not None:
        weakening = [(item.flag, item.why) for item in guarded(schema, values_of(schema, arguments))]
    else:
        names = guarded_names()
        weakening = [(word, str(names[dest]["why"])) for word in arguments if (dest := dest_of(word)) in names]
    for flag, why in weakening[:1]:
        raise Refused(_("Only an admin may set %(flag)s. %(why)s") % {"flag": flag, "why": why}, field="arguments")


def dest_of(word: str) -> str:
    """Name that a flag has in a form; empty for what is no flag."""
    return word.partition("=")[0].removeprefix("--").replace("-", "_") if word.startswith("--") else ""


def _own_options(arguments: Sequence[str]) -> list[Finding]:
    return [
        Finding(RESERVED, "error", name, OWN_OPTIONS[own], _("Leave %(flag)s out.") % {"flag": name})
        for name, own in own_options(arguments)
    ]


def forbids(found: Sequence[Finding]) -> bool:
    """True if the host would refuse these arguments whatever anybody says."""
    return any(finding.code == RESERVED for finding in found)


def doubts(found: Sequence[Finding]) -> bool:
    """True if the engine would most likely end at once."""
    return any(finding.severity == "error" for finding in found)
