"""The agent of a gateway as a service of systemd: started at every boot, and again when it ends."""

import sys
from pathlib import Path

from workers.host.service import start_unit, take_place_of_agent, unit_text
from workers.host_config import GatewayConfig


def unit_name(name: str) -> str:
    """Name of the gateway's unit."""
    return f"slipway-gateway-{name}.service"


def systemd_unit(name: str, config_path: Path) -> str:
    """A unit for the gateway's agent; HAProxy serves on while it is stopped or upgraded."""
    # It ends by itself, with code 0, when the console has removed it.
    return unit_text(f"Slipway gateway {name}", run_words(config_path), restart="on-failure")


def run_words(config_path: Path) -> list[str]:
    """What runs the agent: the environment that joined last, so that joining anew is how it is upgraded."""
    return [sys.executable, "-P", "-m", "workers.cli", "gateway", "run", "--config", str(config_path)]


def install_unit(config: GatewayConfig, config_path: Path) -> Path:
    """Write the unit, start it now and at every boot; returns the unit's path. Raises ServiceError."""
    unit = unit_name(config.name)
    take_place_of_agent(unit, config.state_dir, config_path)
    return start_unit(unit, systemd_unit(config.name, config_path))
