"""Whether an engine knows a model's architecture, and whether the model's own code would have to run.

Both end a start after half a minute, and both can be told before: an engine prints the architectures that it has itself
with its arguments (`workers.vllm.dump_arguments`), and the verification finds the code that a model brings along.
"""

from collections.abc import Sequence

from django.utils.translation import gettext as _

from console.catalog import consents
from console.catalog.models import Consent, Copy
from console.deployments import engine_schema, remedies
from console.fleet.models import Engine
from workers.vllm.arguments import ArgumentSchema, Finding
from workers.weights.architectures import class_names

UNSUPPORTED = "arch.unsupported"
OWN_CODE = consents.CODES[Consent.Kind.REMOTE_CODE]


def findings(copy: Copy, engine: Engine | None, schema: ArgumentSchema, *, trusts_code: bool) -> list[Finding]:
    """What an engine lacks for this model. `trusts_code`: it will be started with `--trust-remote-code`."""
    classes = class_names(copy.revision.config)
    known = None if schema.architectures is None else any(name in schema.architectures for name in classes)
    brings_code = OWN_CODE in consents.codes_of(copy)
    if brings_code and not trusts_code:
        return [_own_code(schema, classes, known=known)]
    if known is False and classes and not brings_code:
        return [_unsupported(schema, classes, _others_that_know(classes, engine))]
    return []


def _own_code(schema: ArgumentSchema, classes: Sequence[str], *, known: bool | None) -> Finding:
    values = {"version": schema.version, "classes": ", ".join(classes)}
    if known:
        message = _("The model brings its own code. vLLM %(version)s has %(classes)s itself and mostly does without.")
        fix = _("Add --trust-remote-code only if the start asks for it.")
        return Finding(OWN_CODE, "info", consents.TRUST_ARGUMENT, message % values, fix)
    if known is False:
        message = _(
            "The model brings its own code, and vLLM %(version)s has no %(classes)s of its own: it can't do without."
        )
    else:
        message = _("The model brings its own code. An engine that doesn't know the model itself can't do without.")
    fix = _("Read the code; if you trust it, add --trust-remote-code.")
    return Finding(OWN_CODE, "warning", consents.TRUST_ARGUMENT, message % values, fix)


def _unsupported(schema: ArgumentSchema, classes: Sequence[str], others: Sequence[str]) -> Finding:
    message = _("vLLM %(version)s has no %(classes)s of its own.")
    fix = _("It starts only if Transformers has it, and is slower then.")
    if others:
        fix = _("%(engines)s on this host has it.") % {"engines": others[0]}
    return Finding(
        UNSUPPORTED, "warning", "", message % {"version": schema.version, "classes": ", ".join(classes)}, fix
    )


def _others_that_know(classes: Sequence[str], engine: Engine | None) -> list[str]:
    """Engines of the same host that have one of the architectures, the newest first."""
    if engine is None:
        return []
    others = Engine.objects.filter(host_id=engine.host_id, present=True).exclude(pk=engine.pk)
    schemas = [(one, engine_schema.schema_of(one)) for one in others if not one.problem]
    knowing = [one for one, schema in schemas if schema and {*classes} & (schema.architectures or frozenset())]
    return [str(one) for one in sorted(knowing, key=lambda one: remedies.version_numbers(one.version), reverse=True)]
