"""What is wrong with a line of arguments, for the deploy form."""

from collections.abc import Mapping, Sequence

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from workers.vllm.arguments import Finding, SchemaError, Surroundings, check_arguments, guarded, schema_for

RESERVED = "args.reserved"
"""Code of what Slipway sets itself: the host refuses it, so the form does as well."""
GUARDED = "args.guarded"
OWN_FIELDS = {
    "--served-model-name": gettext_lazy("Clients ask for the model under the deployment's name."),
    "--model": gettext_lazy("The model is a field of its own."),
    "--config": gettext_lazy("A file on the host could change anything, unseen."),
}
"""Options that vLLM takes and that the host refuses because the order has a field for them."""


def findings(arguments: Sequence[str], *, version: str, environment: Mapping[str, str] | None = None) -> list[Finding]:
    """Everything that doesn't hold for vLLM `version`, and what weakens safety or truth; empty for an unknown version."""
    if not arguments:
        return []
    try:
        schema = schema_for(version)
    except SchemaError:
        return []
    checked = check_arguments(schema, arguments, Surroundings(environment=environment))
    weakening = [
        Finding(GUARDED, "warning", item.flag, item.why, _("Leave it out unless you need it."))
        for item in guarded(schema, checked.values)
    ]
    return [*_own_fields(arguments), *checked.findings, *weakening]


def _own_fields(arguments: Sequence[str]) -> list[Finding]:
    names = [word.partition("=")[0].replace("_", "-") for word in arguments if word.startswith("--")]
    return [
        Finding(RESERVED, "error", name, str(OWN_FIELDS[name]), _("Leave %(flag)s out.") % {"flag": name})
        for name in names
        if name in OWN_FIELDS
    ]


def forbids(found: Sequence[Finding]) -> bool:
    """True if the host would refuse these arguments whatever anybody says."""
    return any(finding.code == RESERVED for finding in found)


def doubts(found: Sequence[Finding]) -> bool:
    """True if the engine would most likely end at once."""
    return any(finding.severity == "error" for finding in found)
