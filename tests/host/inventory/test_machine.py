"""The machine itself: processor, quotas, kernel log, accelerators, engines' environments, command lines without secrets."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from workers.host.inventory import owners
from workers.host.inventory.cpu import parse_cpu, read_nodes
from workers.host.inventory.engine_environment import torch_build
from workers.host.inventory.limits import cpu_quota, memory_limit
from workers.host.inventory.masking import masked
from workers.host.inventory.owners import ProcessTable, find_strangers, is_server
from workers.host.inventory.system import find_accelerators
from workers.host.inventory.xid import parse_journal, parse_kmsg

XEON = """processor\t: 0
physical id\t: 0
core id\t\t: 0
model name\t: INTEL(R) XEON(R)  PLATINUM 8580
flags\t\t: fpu avx avx2 avx512f avx512_bf16 amx_bf16 amx_tile

processor\t: 1
physical id\t: 1
core id\t\t: 0
model name\t: INTEL(R) XEON(R)  PLATINUM 8580
flags\t\t: fpu avx avx2 avx512f avx512_bf16 amx_bf16 amx_tile
"""
PCI = "sys__bus__pci__devices__a__"
GRAVITON = """processor\t: 0
BogoMIPS\t: 2100.00
Features\t: fp asimd asimddp sve bf16 i8mm
CPU implementer\t: 0x41
CPU part\t: 0xd4f
"""


def write(root: Path, **files: str) -> None:
    for name, text in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_a_two_socket_xeon_with_amx() -> None:
    cpu = parse_cpu(XEON)
    assert (cpu.name, cpu.sockets, cpu.cores, cpu.threads) == ("INTEL(R) XEON(R) PLATINUM 8580", 2, 2, 2)
    assert cpu.features == ["avx", "avx2", "avx512f", "avx512_bf16", "amx_tile", "amx_bf16"]


def test_an_arm_server_has_a_maker_and_features() -> None:
    cpu = parse_cpu(GRAVITON)
    assert (cpu.name, cpu.sockets, cpu.threads) == ("ARM 0xd4f", None, 1)
    assert {"bf16", "sve", "asimd"} <= set(cpu.features)


def test_numa_nodes_have_their_cpus_and_memory(tmp_path: Path) -> None:
    for number in (1, 0):
        folder = tmp_path / f"sys/devices/system/node/node{number}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text("0-31\n")
        (folder / "meminfo").write_text(f"Node {number} MemTotal:  1048576 kB\nNode {number} MemFree:  524288 kB\n")
    assert [(node.index, node.cpus, node.memory_total) for node in read_nodes(tmp_path)] == [
        (0, "0-31", 2**30),
        (1, "0-31", 2**30),
    ]


def test_quotas_of_cgroup_version_2_count_on_the_way_up(tmp_path: Path) -> None:
    inner = tmp_path / "sys/fs/cgroup/system.slice/slipway.service"
    inner.mkdir(parents=True)
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/system.slice/slipway.service\n")
    (inner / "memory.max").write_text("max\n")
    (inner / "cpu.max").write_text("max 100000\n")
    (inner.parent / "memory.max").write_text(f"{8 * 2**30}\n")
    (inner.parent / "memory.current").write_text(f"{3 * 2**30}\n")
    (inner.parent / "memory.stat").write_text(f"anon 5\ninactive_file {2**30}\n")
    (inner.parent / "cpu.max").write_text("250000 100000\n")
    assert cpu_quota(tmp_path) == 2.5
    assert memory_limit(tmp_path) == (8 * 2**30, 2 * 2**30)


def test_quotas_of_cgroup_version_1(tmp_path: Path) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("4:memory:/docker/abc\n2:cpuacct,cpu:/docker/abc\n")
    for name, files in {
        "memory": {"memory.limit_in_bytes": "4294967296", "memory.usage_in_bytes": "1073741824"},
        "cpu": {"cpu.cfs_quota_us": "150000", "cpu.cfs_period_us": "100000"},
    }.items():
        folder = tmp_path / "sys/fs/cgroup" / name
        folder.mkdir(parents=True)
        for file, text in files.items():
            (folder / file).write_text(text)
    assert memory_limit(tmp_path) == (4 * 2**30, 2**30)
    assert cpu_quota(tmp_path) == 1.5


def test_without_quotas_there_are_none(tmp_path: Path) -> None:
    assert cpu_quota(tmp_path) is None
    assert memory_limit(tmp_path) == (None, None)


def test_xids_are_read_from_the_kernel_s_records() -> None:
    text = (
        "6,1,100,-;usb 1-1: new device\n"
        "3,812,5000000,-;NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, name=python, GPU has fallen off the bus.\n"
        " SUBSYSTEM=pci\n"
        "3,813,6000000,-;NVRM: Xid (PCI:0000:3b:00): 48, DBE (double bit error)\n"
    )
    first, second = parse_kmsg(text, boot_time=1000.0)
    assert (first.at, first.bus_id, first.code) == (1005.0, "0000:3b:00", 79)
    assert "fallen off the bus" in first.text
    assert second.code == 48


def test_xids_are_read_from_journalctl_too() -> None:
    line = "1764460800.123456 node7 kernel: NVRM: Xid (PCI:0000:c1:00): 31, pid=77, MMU Fault\n-- Boot --\n"
    (one,) = parse_journal(line)
    assert (one.at, one.code) == (1764460800.123, 31)


@pytest.mark.parametrize(
    ("files", "kind", "count"),
    [
        ({"dev__davinci0": "", "dev__davinci1": "", "dev__davinci_manager": ""}, "ascend", 2),
        ({"dev__cambricon_dev0": ""}, "mlu", 1),
        ({"dev__kfd": "", f"{PCI}vendor": "0x1002", f"{PCI}class": "0x038000"}, "rocm", 1),
        ({"dev__kfd": "", f"{PCI}vendor": "0x1d94", f"{PCI}class": "0x0b4000"}, "dcu", 1),
        ({"dev__accel__accel0": "", "sys__module__habanalabs__x": ""}, "gaudi", 1),
    ],
)  # fmt: skip
def test_other_accelerators_are_named(tmp_path: Path, files: dict[str, str], kind: str, count: int) -> None:
    write(tmp_path, **files)
    assert [(one.kind, one.count) for one in find_accelerators(tmp_path)] == [(kind, count)]


def test_an_ordinary_machine_has_no_other_accelerator(tmp_path: Path) -> None:
    write(tmp_path, dev__accel__accel0="")
    assert find_accelerators(tmp_path) == []


@pytest.mark.parametrize(
    ("text", "build", "cuda"),
    [
        ("__version__ = '2.13.0+cpu'\ncuda: Optional[str] = None\nhip: Optional[str] = None", "cpu", ""),
        ("__version__ = '2.9.0+cu128'\ncuda: Optional[str] = '12.8'", "cuda", "12.8"),
        ("__version__ = '2.9.0'\ncuda = '12.8'", "cuda", "12.8"),
        ("__version__ = '2.9.0+cu130'", "cuda", "13.0"),
        ("__version__ = '2.9.0+rocm6.4'\nhip: Optional[str] = '6.4'", "rocm", ""),
    ],
)
def test_a_torch_tells_its_build_without_being_imported(text: str, build: str, cuda: str) -> None:
    found = torch_build(text)
    assert (found["torch_build"], found["torch_cuda"]) == (build, cuda)


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("vllm serve m --api-key sk1 sk2 --port 1", "vllm serve m --api-key *** *** --port 1"),
        ("vllm serve m --api_key=abc", "vllm serve m --api_key=***"),
        ("vllm serve m --api-k abc", "vllm serve m --api-k ***"),
        ("vllm serve m --hf-token abc", "vllm serve m --hf-token ***"),
        ("vllm serve m --hf-token --port 1", "vllm serve m --hf-token --port 1"),
        ("env HF_TOKEN=hf_abc VLLM_API_KEY=x vllm serve m", "env HF_TOKEN=*** VLLM_API_KEY=*** vllm serve m"),
        ("x --max-num-batched-tokens 8192 --tokenizer t", "x --max-num-batched-tokens 8192 --tokenizer t"),
        ("x --max-tokens 5 --tokenizer-mode auto", "x --max-tokens 5 --tokenizer-mode auto"),
        ("x redis://user:secret@h:1", "x redis://user:***@h:1"),
        ("x hf_abcdefghijklmnop", "x ***"),
        ('x --c {"api_key":"abc","n":1}', 'x --c {"api_key":"***","n":1}'),
        ("x --ssl-keyfile /etc/k.pem", "x --ssl-keyfile /etc/k.pem"),
    ],
)
def test_secrets_do_not_leave_the_host(line: str, shown: str) -> None:
    assert " ".join(masked(line.split())) == shown


@pytest.mark.parametrize(
    ("line", "yes"),
    [
        ("/v/bin/python /v/bin/vllm serve m --port 1", True),
        ("python3 -m vllm.entrypoints.openai.api_server --model m", True),
        ("python3 -m vllm.entrypoints.cli.main serve m", True),
        ("python /x/vllm/entrypoints/openai/api_server.py --model m", True),
        ("vllm serve m", True),
        ("bash -c vllm serve m", False),
        ("sudo vllm serve m", False),
        ("python /v/bin/vllm bench serve", False),
        ("vim vllm serve", False),
        ("python train.py vllm", False),
    ],
)
def test_a_server_is_told_from_its_launchers(line: str, *, yes: bool) -> None:
    assert is_server(line.split()) is yes


@pytest.fixture
def by_hand(tmp_path: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """A process that looks like a vLLM of somebody's own, listens, and has a child with the same words."""
    package = tmp_path / "vllm/entrypoints/openai"
    package.mkdir(parents=True)
    for folder in (package, package.parent, package.parent.parent):
        (folder / "__init__.py").write_text("")
    (package / "api_server.py").write_text(
        "import os, socket, sys, time\n"
        "s = socket.socket(); s.bind(('127.0.0.1', 0)); s.listen()\n"
        "pid = os.fork()\n"
        "if pid: print(s.getsockname()[1], flush=True)\n"
        "time.sleep(120)\n"
    )
    environment = {name: value for name, value in os.environ.items() if name != "SLIPWAY_INSTANCE"}
    process = subprocess.Popen(
        [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", "/m/q", "--api-key", "sk-very-secret"],
        cwd=tmp_path, stdout=subprocess.PIPE, env=environment, start_new_session=True,
    )  # fmt: skip
    yield process
    os.killpg(process.pid, 9)
    process.wait()


def test_a_vllm_started_by_hand_is_found_once_with_port_and_without_its_key(
    by_hand: "subprocess.Popen[bytes]", tmp_path: Path
) -> None:
    assert by_hand.stdout is not None
    port = int(by_hand.stdout.readline())
    table = ProcessTable.read(tmp_path)
    (stranger,) = [one for one in find_strangers(table, []) if one.pid in table.family(by_hand.pid)]
    assert (stranger.pid, stranger.port, stranger.model) == (by_hand.pid, port, "/m/q")
    assert stranger.command.endswith("--model /m/q --api-key '***'")
    assert "secret" not in stranger.model_dump_json()
    assert abs(stranger.started_at - time.time()) < 60
    assert (stranger.memory or 0) > 2**20


def test_an_instance_of_ours_is_no_stranger(tmp_path: Path) -> None:
    instance = "0f6c5a0e-0000-4000-8000-000000000001"
    child = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(60)"], env=os.environ | {"SLIPWAY_INSTANCE": instance}
    )
    try:
        deadline = time.monotonic() + 20
        while (table := ProcessTable.read(tmp_path)).instances.get(child.pid) != instance:
            assert time.monotonic() < deadline
        held = {one.instance: one.memory for one in owners.memory_of_instances(table)}
        assert (held[instance] or 0) > 2**20
    finally:
        child.kill()
        child.wait()
