"""One instance under supervision, without an agent around it."""

import asyncio
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tests.host.conftest import HostUnderTest
from workers.host.drivers import DriverError
from workers.host.drivers.shim import ShimDriver
from workers.host.instance_files import InstanceFiles
from workers.host.launching import Launch
from workers.host.logs import LogSender
from workers.host.supervised import SupervisedInstance, Surroundings


class SlowToSay(ShimDriver):
    """A loaded machine: a shim that writes its state half a second after `start` has returned."""

    def __init__(self) -> None:
        self.starts = 0

    def start(self, files: InstanceFiles, launch: Launch) -> None:
        self.starts += 1
        threading.Timer(0.5, super().start, (files, launch)).start()


class StartedBefore(ShimDriver):
    """An agent that was killed after it had started a shim: the next one tries it once more."""

    refused = False

    def _run(self, files: InstanceFiles, environment: Mapping[str, str], *options: str) -> None:
        super()._run(files, environment, *options)
        try:
            super()._run(files, environment, *options)
        except DriverError:
            self.refused = True
            raise


async def brought_to_run(host: HostUnderTest, driver: ShimDriver, enough: Callable[[], bool] = lambda: True) -> None:
    """Converge until the instance runs, ten times a second as the agent does, and then for a second more."""
    order = host.order()
    files = host.files(order)
    reports: list[Any] = []
    with ThreadPoolExecutor(1) as threads:
        around = Surroundings(host.config, driver, reports.append, LogSender("alone"), lambda _: None, threads)
        instance = SupervisedInstance(files, around)
        deadline = time.monotonic() + 60
        while not (instance.unfinished and enough()):
            assert time.monotonic() < deadline, files.refusal(order.start)
            instance.converge(order)
            await asyncio.sleep(0.1)
        for _ in range(10):
            instance.converge(order)
            await asyncio.sleep(0.1)
        instance.close()
    assert files.refusal(order.start) is None


async def test_a_shim_that_is_slow_to_write_its_state_is_not_started_twice(lone_host: HostUnderTest) -> None:
    driver = SlowToSay()
    await brought_to_run(lone_host, driver)
    assert driver.starts == 1


async def test_what_another_agent_had_started_already_is_no_refusal(lone_host: HostUnderTest) -> None:
    driver = StartedBefore()
    await brought_to_run(lone_host, driver, lambda: driver.refused)
