"""Claims: what one deployment was promised, no other gets, whatever happens at the same moment."""

import json
from pathlib import Path
from threading import Barrier, Thread
from typing import Any

import pytest
from django.db import connection

from console.access.models import User
from console.catalog.models import Copy
from console.common.errors import Refused
from console.common.states import move
from console.deployments import claims, observations, rooms, services
from console.deployments.models import Claim, Deployment, Instance
from console.fleet import intake
from console.fleet.models import Device, Engine, Host
from console.jobs.models import LIVE_STATES, Job
from tests.deployments.test_services import current, fail, observe, succeed
from tests.factories import Fleet

pytestmark = pytest.mark.django_db(transaction=True)

GIB = 2**30
CONFIGS = Path(__file__).parents[1] / "vllm" / "memory" / "configs"


def give_gpus(fleet: Fleet, *frees: int, total: int = 80) -> list[Device]:
    Engine.objects.filter(pk=fleet.engine.pk).update(platform="cuda", distribution="vllm")
    fleet.engine.refresh_from_db()
    return [
        Device.objects.create(
            host=fleet.host,
            kind="gpu",
            index=index,
            uuid=f"GPU-{index}",
            name="H100",
            memory_total=total * GIB,
            memory_free=free * GIB,
        )
        for index, free in enumerate(frees)
    ]


def test_of_two_people_who_deploy_to_the_last_device_one_gets_it_and_one_is_told_why(fleet: Fleet) -> None:
    give_gpus(fleet, 79)
    barrier, answers = Barrier(2), []

    def deploy(name: str) -> None:
        barrier.wait()
        try:
            answers.append(fleet.deploy(name=name))
        except Refused as refusal:
            answers.append(refusal)
        finally:
            connection.close()

    threads = [Thread(target=deploy, args=(name,)) for name in ("mine", "yours")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    refusal = next(one for one in answers if isinstance(one, Refused))
    assert sum(isinstance(one, Job) for one in answers) == 1
    assert (Deployment.objects.count(), Claim.objects.count()) == (1, 1)
    winner = Deployment.objects.get()
    assert f"The rest is claimed by {winner} #1: stop one" in str(refusal)
    assert "Each needs 73.6 GiB of a device" in str(refusal)


def test_a_claim_ends_with_its_instance_and_not_before(broker: Any, fleet: Fleet, admin: User) -> None:
    give_gpus(fleet, 79)
    job = fleet.deploy()
    instance = Instance.objects.get()
    succeed(broker, fleet, job, port=18000)
    succeed(broker, fleet, job, size_bytes=10)
    for phase in ("starting", "loading"):
        observe(broker, fleet, instance, phase)
    for _step in ("launch", "listening", "validate", "warmup"):
        succeed(broker, fleet, job)
    Device.objects.update(memory_free=6 * GIB)
    stopping = services.stop(instance.deployment, actor=admin, reason="done")
    with pytest.raises(Refused, match="rest is claimed by"):
        fleet.deploy()
    Device.objects.update(memory_free=79 * GIB)
    succeed(broker, fleet, stopping)
    assert fleet.deploy().state in LIVE_STATES


def test_a_failed_start_claims_nothing(broker: Any, fleet: Fleet) -> None:
    give_gpus(fleet, 79)
    job = fleet.deploy()
    succeed(broker, fleet, job, port=18000)
    fail(broker, fleet, job, "weights.truncated", "model.safetensors lacks 4,096 bytes.")
    assert fleet.deploy().state in LIVE_STATES
    with pytest.raises(Refused, match="rest is claimed by"):
        services.start(Deployment.objects.get(pk=job.about), actor=None, reason="again")


def test_memory_of_strangers_is_not_given_away(fleet: Fleet) -> None:
    give_gpus(fleet, 40)
    with pytest.raises(Refused, match="has 40 GiB left") as refused:
        fleet.deploy()
    assert refused.value.field == "placement"
    assert not Deployment.objects.exists()
    assert fleet.deploy(arguments=["--gpu-memory-utilization", "0.4"]).state in LIVE_STATES


def test_a_size_that_can_not_be_read_is_refused_at_its_field(fleet: Fleet) -> None:
    Device.objects.create(
        host=fleet.host, kind="cpu", index=0, uuid="cpu", name="CPU", memory_total=8 * GIB, memory_free=8 * GIB
    )
    with pytest.raises(Refused, match="not “much”") as refused:
        fleet.deploy(environment={"VLLM_CPU_KVCACHE_SPACE": "much"})
    assert refused.value.field == "environment"
    assert fleet.deploy(replicas=2).state in LIVE_STATES
    with pytest.raises(Refused, match="room for 0 of 1 replica"):
        fleet.deploy(environment={"VLLM_CPU_KVCACHE_SPACE": "7"})


def test_small_models_share_a_cpu_with_a_kv_cache_that_is_sized_to_their_need(fleet: Fleet) -> None:
    config = json.loads((CONFIGS / "tiny-qwen3.json").read_text())
    fleet.copy.revision.shape = {"config": config, "weights": None, "problems": []}
    fleet.copy.revision.save()
    Device.objects.create(
        host=fleet.host, kind="cpu", index=0, uuid="cpu", name="CPU", memory_total=16 * GIB, memory_free=16 * GIB
    )
    pack = {"strategy": "pack", "labels": {}}
    fleet.deploy(name="small", placement=pack, arguments=["--max-model-len", "4096"], environment={})
    instance = Instance.objects.get()
    # 4 requests of 4,096 tokens in blocks of 128, each with a block to spare, at 2,048 bytes a token: 33 MiB.
    told = ["--kv-cache-memory-bytes", str(33 * 2**20)]
    assert observations.order(instance).arguments == ["--max-model-len", "4096", *told]
    small = instance.claims.get().nbytes
    fleet.deploy(name="usual", arguments=["--max-model-len", "4096"], environment={})
    assert instance.claims.model.objects.get(instance__deployment__name="usual").nbytes - small == GIB - 33 * 2**20
    fleet.deploy(name="said", placement=pack, arguments=[], environment={"VLLM_CPU_KVCACHE_SPACE": "2"})
    assert observations.order(Instance.objects.get(deployment__name="said")).arguments == []


def test_an_engine_sees_only_the_gpu_that_it_claimed(fleet: Fleet) -> None:
    give_gpus(fleet, 20, 79)
    fleet.deploy()
    order = observations.order(Instance.objects.get())
    assert order.environment["CUDA_VISIBLE_DEVICES"] == "1"


def test_an_engine_sees_only_the_part_of_a_divided_gpu_that_it_claimed(fleet: Fleet) -> None:
    for part, device in enumerate(give_gpus(fleet, 5, 79), 3):
        mig = {"parent": "GPU-0", "gpu_instance": part, "compute_instance": 0}
        Device.objects.filter(pk=device.pk).update(index=0, uuid=f"MIG-{part}", details={"mig": mig})
    fleet.deploy()
    order = observations.order(Instance.objects.get())
    # "0" would be the first part, whoever has it.
    assert order.environment["CUDA_VISIBLE_DEVICES"] == "MIG-4"
    site = rooms.sites_of(fleet.copy, fleet.engine, here_only=True)
    assert [one.title for one in rooms.rooms(site)[0].devices] == ["H100 #0.3.0", "H100 #0.4.0"]


def test_replicas_take_devices_of_their_own_and_come_up_one_after_the_other(broker: Any, fleet: Fleet) -> None:
    give_gpus(fleet, 79, 79)
    job = fleet.deploy(replicas=2)
    first, second = Instance.objects.order_by("number")
    assert {first.claims.get().device.index, second.claims.get().device.index} == {0, 1}
    kinds = [step.kind for step in job.steps.all()]
    up = ["launch", "listening", "validate", "warmup"]
    assert kinds == ["preflight", "verify", *up, "preflight", *up]
    for port, instance in ((18000, first), (18001, second)):
        succeed(broker, fleet, job, port=port)
        if instance == first:
            succeed(broker, fleet, job, size_bytes=10)
        for _step in up:
            succeed(broker, fleet, job)
    deployment = first.deployment
    deployment.refresh_from_db()
    assert (deployment.state, [one.url[-5:] for one in services.endpoints(deployment)]) == (
        "serving",
        ["18000", "18001"],
    )
    restart = services.restart_all(deployment, actor=None, reason="new driver")
    second.refresh_from_db()
    assert (second.state, second.bring_up) == ("ready", "agent")
    for _step in up:
        succeed(broker, fleet, restart)
    first.refresh_from_db()
    second.refresh_from_db()
    assert (first.state, second.state, current(restart).kind) == ("ready", "restarting", "launch")


def test_a_second_replica_that_fails_leaves_the_first_serving(broker: Any, fleet: Fleet) -> None:
    give_gpus(fleet, 79, 79)
    job = fleet.deploy(replicas=2)
    succeed(broker, fleet, job, port=18000)
    succeed(broker, fleet, job, size_bytes=10)
    for _step in ("launch", "listening", "validate", "warmup"):
        succeed(broker, fleet, job)
    fail(broker, fleet, job, "port.none", "No port is free.")
    deployment = Deployment.objects.get()
    assert (deployment.state, deployment.state_reason) == ("degraded", "1 of 2 replicas are there")
    assert list(Instance.objects.order_by("number").values_list("state", flat=True)) == ["ready", "stopped"]


def test_more_replicas_than_there_is_room_for_are_refused_with_how_many_there_are(fleet: Fleet) -> None:
    give_gpus(fleet, 79, 79)
    with pytest.raises(Refused, match="room for 2 of 3 replicas") as refused:
        fleet.deploy(replicas=3)
    assert refused.value.field == "replicas"


def test_replicas_spread_over_the_hosts_that_have_files_and_engine(fleet: Fleet) -> None:
    other = twin(fleet)
    fleet.deploy(replicas=2, placement=claims.as_placement("spread", {}))
    assert set(Instance.objects.values_list("host", flat=True)) == {fleet.host.pk, other.pk}
    away = Instance.objects.get(host=other)
    assert (observations.order(away).model_path, away.engine.host) == ("/models/twin", other)


def test_a_paused_host_is_passed_over(fleet: Fleet, admin: User) -> None:
    other = twin(fleet)
    intake.pause(fleet.host, actor=admin, reason="memory test")
    fleet.deploy(placement=claims.as_placement("spread", {}))
    assert Instance.objects.get().host == other
    intake.pause(other, actor=admin, reason="memory test")
    with pytest.raises(Refused, match="paused"):
        fleet.deploy(placement=claims.as_placement("spread", {}))


def test_labels_keep_an_engine_off_other_hosts(fleet: Fleet) -> None:
    other = twin(fleet)
    Host.objects.filter(pk=other.pk).update(labels={"zone": "b"})
    fleet.deploy(placement=claims.as_placement("pack", {"zone": "b"}))
    assert Instance.objects.get().host == other


def test_a_crashed_instance_gives_its_memory_back_and_must_claim_again(fleet: Fleet) -> None:
    give_gpus(fleet, 79)
    fleet.deploy()
    crashed = Instance.objects.get()
    Instance.objects.filter(pk=crashed.pk).update(ordered=True, run=True)
    Job.objects.update(state="failed")
    crashed.refresh_from_db()
    move(crashed, to="crashed", reason="restart budget spent")
    fleet.deploy()
    with pytest.raises(Refused, match="rest is claimed by"):
        services.restart(crashed, actor=None, reason="again")


def twin(fleet: Fleet) -> Host:
    """A second host with the same files and engine."""
    give_gpus(fleet, 79)
    other = Fleet.make()
    Engine.objects.filter(pk=other.engine.pk).update(platform="cuda", distribution="vllm")
    give_gpus(other, 79)
    Copy.objects.create(revision=fleet.copy.revision, host=other.host, path="/models/twin", state="verified")
    return other.host
