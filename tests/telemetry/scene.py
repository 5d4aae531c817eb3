"""A small fleet in the middle of its day: a quarter of an hour of load, an alert, a restart, a silent host."""

import json
import math
import random
import time
from datetime import timedelta
from typing import Any

import redis
from django.utils import timezone

from console.alerts.evaluation import ensure_defaults
from console.alerts.models import Alert, Rule
from console.common.models import StateChange
from console.deployments import current
from console.deployments.models import Attempt, Deployment, Instance, Launch
from console.fleet.devices import note_vitals
from console.fleet.models import Device, Host
from console.telemetry import fleet_board, host_board
from console.telemetry.intake import Intake
from console.telemetry.rings import LIVE, STORED, Rings
from tests.factories import Fleet
from tests.telemetry.samples import FakeLoad

GIB = 1 << 30
SECONDS, STEP = 890, 2
SILENT = "gpu-c"
NAMES = (("qwen3-30b-a3b", "gpu-a"), ("llama-3.1-8b", "gpu-b"))


class Scene:
    """Two deployments on two hosts; `qwen3-30b-a3b` has two instances, an alert and a restart."""

    def __init__(self, broker: redis.Redis, *, seconds: int = SECONDS) -> None:
        broker.delete(STORED, current.KEY, LIVE, fleet_board.STREAM)
        self.broker, self.dice = broker, random.Random(7)
        self.instances = [one for name, host in NAMES for one in _deployed(name, host)]
        self.loads = {instance.pk: FakeLoad() for instance in self.instances}
        self.intake = Intake(Rings(broker))
        _happened(self.instances)
        now = int(time.time())
        for second in range(now - seconds, now, STEP):
            self.tell(second)
        self.breathe()

    def breathe(self) -> None:
        """Hosts were heard of a moment ago, and the numbers of right now are of now, however slow this machine is."""
        Host.objects.exclude(name=SILENT).update(last_seen_at=timezone.now() + timedelta(minutes=5))
        self.tell(int(time.time()))
        self.intake.tell_current(self.broker)

    @property
    def deployment(self) -> Deployment:
        return self.instances[0].deployment

    @property
    def host(self) -> Host:
        return self.instances[0].host

    def tell(self, second: int) -> None:
        """What all engines and hosts say at a second."""
        for instance in self.instances:
            wave = 1 + 0.7 * math.sin(second / 120 + instance.pk)
            load = self.loads[instance.pk]
            for _ in range(self.dice.randint(0, int(9 * wave))):
                reason = self.dice.choices(["stop", "length", "abort", "error"], [80, 18, 2, 0.4])[0]
                load.answer(ttft=0.04 + self.dice.expovariate(12), tokens=self.dice.randint(20, 160), reason=reason)
            load.running, load.waiting = int(12 * wave), max(0, int(8 * (wave - 1.3)))
            load.kv = min(0.97, 0.42 * wave + self.dice.random() * 0.03)
            load.preempted += self.dice.random() < 0.02 * wave
            self.intake.take(instance.host, [(f"{second * 1000}-0", load.batch(instance.uuid, second))])
        if second // STEP % 5 == 0:
            self._vital(second)

    def _vital(self, second: int) -> None:
        for host in {instance.host for instance in self.instances}:
            told = json.dumps(host_board.readings(vitals_at(second + 40 * host.pk)))
            self.broker.xadd(host_board.stream(host.pk), {"d": told}, id=f"{second * 1000}-*")
        numbers: dict[int, list[current.Current]] = {}
        for instance in self.instances:
            if recent := self.intake._recent.get(instance.uuid):
                numbers.setdefault(instance.deployment_id, []).append(recent.current())
        fleet_board.record(self.broker, numbers, entry=f"{second * 1000}-*")


def _deployed(name: str, host_name: str) -> list[Instance]:
    fleet = Fleet.make()
    fleet.deploy(name=name)
    host = fleet.host
    note_vitals(host, vitals_at(0))
    host.name, host.agent_version = host_name, "0.1.0"
    host.save()
    for index in range(2):
        Device.objects.create(
            host=host, kind="gpu", index=index, uuid=f"GPU-{index}", name="NVIDIA H100 80GB HBM3",
            memory_total=80 * GIB, memory_free=9 * GIB,
        )  # fmt: skip
    first = Instance.objects.get(host=host)
    if name == NAMES[0][0]:
        Instance.objects.create(deployment=first.deployment, spec=first.spec, host=host, number=2, port=19002)
    Deployment.objects.filter(pk=first.deployment_id).update(state="serving")
    Instance.objects.filter(host=host).update(state="ready", ordered=True, run=True)
    return list(Instance.objects.filter(host=host).select_related("deployment", "host", "spec__copy"))


def _happened(instances: list[Instance]) -> None:
    """Launches with their plans, an alert that is open and one that is over, a restart, and a host that fell silent."""
    now = timezone.now()
    for instance in instances:
        Launch.objects.create(
            attempt=Attempt.objects.create(instance=instance, number=1), revision=instance.spec.copy.revision,
            deployment_name=instance.deployment.name, spec_number=1, device="NVIDIA H100 80GB HBM3", platform="cuda",
            engine_version="0.32.0", batched_tokens=8192, at=now - timedelta(hours=2),
            truth={"kv_cache_tokens": 412_080}, prediction={"kv_cache_tokens": 420_000},
        )  # fmt: skip
    first, second = instances[:2]
    ensure_defaults(first.deployment.team)
    about: dict[str, Any] = {"deployment": first.deployment, "host": first.host, "team": first.deployment.team}
    Alert.objects.create(
        **about, rule=Rule.objects.get(key="kv-high"), subject=f"instance:{first.pk}", name=str(first), severity="warning",
        summary="93 % of the KV cache is in use.", value=0.93, worst=0.95, opened_at=now - timedelta(minutes=4),
        url=f"/instances/{first.pk}/",
    )  # fmt: skip
    Alert.objects.create(
        **about, rule=Rule.objects.get(key="hung"), subject=f"instance:{second.pk}", name=str(second), severity="critical",
        summary="It is hung.", cause="no token for 60 s, while 12 requests run", value=1, worst=1, state="closed",
        opened_at=now - timedelta(minutes=10), closed_at=now - timedelta(minutes=9), url=f"/instances/{second.pk}/",
    )  # fmt: skip
    StateChange.objects.create(
        kind="deployments.instance", object_id=second.pk, before="unhealthy", after="restarting",
        reason="the engine hangs: no token for 60 s", at=now - timedelta(minutes=10),
    )  # fmt: skip
    silent = Fleet.make().host
    Host.objects.filter(pk=silent.pk).update(name=SILENT, last_seen_at=now - timedelta(minutes=7))


def vitals_at(second: int) -> dict[str, Any]:
    """A host with two H100s, one of which a stranger uses as well."""
    wave = 1 + 0.3 * math.sin(second / 150)
    gpus = [
        {
            "index": index, "uuid": f"GPU-{index}", "name": "NVIDIA H100 80GB HBM3", "memory_total": 80 * GIB,
            "memory_free": 6 * GIB, "temperature_c": round(58 * wave), "power_watts": round(430 * wave),
            "utilization": min(1, 0.6 * wave), "clock_sm_mhz": 1755,
            "processes": [
                {"pid": 1, "memory": 64 * GIB, "instance": "00000000-0000-0000-0000-000000000001"},
                *([{"pid": 2, "name": "train.py", "memory": 8 * GIB}] if index else []),
            ],
        }
        for index in range(2)
    ]  # fmt: skip
    return {
        "cpu_used": 0.22 * wave, "load_1m": 7.5 * wave, "memory_total": 512 * GIB, "memory_available": 380 * GIB,
        "disk_total": 4000 * GIB, "disk_free": 1200 * GIB, "live": {"gpus": {"source": "nvml", "gpus": gpus}},
        "network": {"at": float(second), "received": 4e6 * second + 1e8 * math.sin(second / 90), "sent": 9e6 * second},
    }  # fmt: skip
