"""The documents lag behind nothing: what the code has stands in them."""

import re
from pathlib import Path

import pytest
from django.core.management import get_commands

from console.alerts.conditions import DEFAULTS
from console.catalog.models import COPY_STATES
from console.deployments.models import ADAPTER_STATES, DEPLOYMENT_STATES, INSTANCE_STATES
from console.env import Environment
from console.jobs.models import JOB_STATES, STEP_STATES
from console.rollouts.models import ROLLOUT_STATES
from console.studies.models import STUDY_STATES, TRIAL_STATES
from workers.contracts import StepKind

ROOT = Path(__file__).resolve().parent.parent
OPERATIONS = (ROOT / "docs/operations.md").read_text()
PROCESSES = (ROOT / "docs/processes.md").read_text()


def rows() -> dict[str, tuple[str, str]]:
    """The table of variables: name to (default, meaning)."""
    text = (ROOT / "docs/environment.md").read_text()
    found = re.findall(r"^\| `([A-Z_]+)` \| [^|]+ \| ([^|]+) \| (.+) \|$", text, re.MULTILINE)
    return {name: (default.strip("`"), meaning) for name, default, meaning in found}


def test_every_environment_variable_stands_in_the_table_with_its_default_and_meaning() -> None:
    expected = {}
    for name, field in Environment.model_fields.items():
        default = str(field.default).lower() if isinstance(field.default, bool) else str(field.default)
        expected[name.upper()] = (default or "empty", field.description)
    assert rows() == expected


@pytest.mark.parametrize(
    "table", [JOB_STATES, STEP_STATES, DEPLOYMENT_STATES, INSTANCE_STATES, COPY_STATES, ROLLOUT_STATES,
              STUDY_STATES, TRIAL_STATES, ADAPTER_STATES],
    ids=["job", "step", "deployment", "instance", "copy", "rollout", "study", "trial", "adapter"],
)  # fmt: skip
def test_every_state_is_explained(table: object) -> None:
    missing = [state for state in table.states if f"`{state}`" not in OPERATIONS]  # type: ignore[attr-defined]
    assert not missing


@pytest.mark.parametrize("kind", list(StepKind))
def test_every_step_is_explained(kind: StepKind) -> None:
    assert re.search(rf"^\| `{kind}` \| \w", OPERATIONS, re.MULTILINE)


def test_every_alert_rule_that_slipway_brings_is_explained() -> None:
    text = (ROOT / "docs/metrics.md").read_text()
    missing = [default.key for default in DEFAULTS if f"| `{default.key}` | " not in text]
    assert not missing


def test_every_command_that_the_documents_name_exists() -> None:
    texts = [path.read_text() for path in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]]
    named = {name for text in texts for name in re.findall(r"manage\.py\s+(\w+)", text)}
    assert named
    assert named <= set(get_commands())


def test_every_target_that_the_documents_name_is_in_the_makefile() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    texts = [path.read_text() for path in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]]
    named = {name for text in texts for name in re.findall(r"`make ([a-z-]+)", text)}
    assert named
    assert named <= targets


def test_links_between_documents_lead_somewhere() -> None:
    for path in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\((?!http)([^)#]+)\)", path.read_text()):
            if not target.startswith("docs/images/"):
                assert (path.parent / target).exists(), f"{path.name}: {target}"


def test_the_readme_is_under_a_page() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) < 60
