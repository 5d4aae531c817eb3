"""What is wrong with a line of arguments, for the deploy form."""

from typing import Any

from console.catalog.models import Copy
from console.fleet.models import Engine


def findings(arguments: list[str], *, engine: Engine | None, copy: Copy | None) -> list[dict[str, str]]:  # noqa: ARG001
    """Findings of the check of these arguments against the engine's version; empty without an engine."""
    if engine is None or not arguments:
        return []
    try:
        from workers.vllm import arguments as checker
    except ImportError:
        return []
    result: Any = checker.check_arguments(checker.schema_for(engine.version), arguments)
    return [finding.as_dict() for finding in result.findings]
