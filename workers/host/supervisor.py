"""All instances of a host: those that are desired, and those that are found here although nobody desires them."""

import logging
import shutil
import time
from collections.abc import Callable
from uuid import UUID

from workers.contracts import Body, Generation, UnknownInstances
from workers.host.desired import DesiredStore
from workers.host.instance_files import InstanceFiles
from workers.host.sampling import Target
from workers.host.supervised import SupervisedInstance, Surroundings

logger = logging.getLogger(__name__)

TICK_SECONDS = 0.1

KEEP_FORGOTTEN_SECONDS = 7 * 86_400
"""How long the files of an instance that is neither desired nor running stay on disk."""


class Supervisor:
    """Calls every instance about ten times a second. `reflected` is the generation that was last acted on."""

    def __init__(self, desired: DesiredStore, host: Surroundings) -> None:
        self.reflected: Generation | None = None
        self._desired = desired
        self._host = host
        self._report: Callable[[Body], object] = host.report
        self._instances: dict[UUID, SupervisedInstance] = {}
        self._unknown: list[UUID] = []
        for files in InstanceFiles.all_in(host.config.state_dir):
            self._instances[files.instance] = SupervisedInstance(files, host)

    def tick(self) -> None:
        """Converge and observe all instances once. One that goes wrong does not stop the others."""
        state = self._desired.state
        generation = state.generation if state else None
        orders = {order.instance: order for order in state.instances} if state else {}
        hold = state.hold if state else ""
        for instance in orders.keys() - self._instances.keys():
            files = InstanceFiles.of(self._host.config.state_dir, instance)
            self._instances[instance] = SupervisedInstance(files, self._host)
        for instance, supervised in list(self._instances.items()):
            try:
                supervised.converge(orders.get(instance), hold)
                if instance in orders or supervised.unfinished or not supervised.idle:
                    supervised.observe(generation)
                else:
                    self._let_go(supervised)
            except Exception:
                logger.exception("instance %s: supervision failed, trying on", instance)
        self._tell_unknown([i for i, s in self._instances.items() if i not in orders and s.unfinished])
        self.reflected = generation

    def running(self) -> int:
        """How many instances run."""
        return sum(supervised.unfinished for supervised in self._instances.values())

    def sampled(self) -> list[Target]:
        """The engines that listen."""
        targets = (supervised.sampled for supervised in self._instances.values())
        return [target for target in targets if target is not None]

    def close(self) -> None:
        """End what runs in the agent; engines go on."""
        for supervised in self._instances.values():
            supervised.close()

    def _let_go(self, supervised: SupervisedInstance) -> None:
        """Nobody desires it and nothing of it runs: tell what was not told yet, then forget it."""
        supervised.tell_attempts()
        if not supervised.idle:
            return
        supervised.close()
        del self._instances[supervised.files.instance]

    def _tell_unknown(self, unknown: list[UUID]) -> None:
        if sorted(unknown) != self._unknown:
            self._unknown = sorted(unknown)
            self._report(UnknownInstances(instances=self._unknown))


def forget_old_instances(desired: DesiredStore, host: Surroundings) -> None:
    """Remove the files of instances that ended long ago and are not desired."""
    wanted = {order.instance for order in desired.state.instances} if desired.state else set()
    limit = time.time() - KEEP_FORGOTTEN_SECONDS
    for files in InstanceFiles.all_in(host.config.state_dir):
        state = files.state()
        if files.instance in wanted or (state is not None and state.unfinished):
            continue
        if files.directory.stat().st_mtime < limit:
            shutil.rmtree(files.directory, ignore_errors=True)
