"""The driver that a host's configuration names."""

from workers.host.drivers import EngineDriver
from workers.host.drivers.shim import ShimDriver
from workers.host.drivers.systemd import SystemdDriver
from workers.host_config import HostConfig


def driver_of(config: HostConfig) -> EngineDriver:
    """A driver that doesn't work here says so at every start; `driver_facts` says it before."""
    return SystemdDriver() if config.driver == "systemd" else ShimDriver()


def driver_facts(config: HostConfig) -> dict[str, str]:
    """For the host's page: `driver`, and `driver_trouble` if it can't start anything here."""
    trouble = SystemdDriver().why_not() if config.driver == "systemd" else ""
    return {"driver": config.driver, "driver_trouble": trouble}
