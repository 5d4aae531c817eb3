"""GPUs as NVML and nvidia-smi tell them, from recordings of real shapes."""

import subprocess

import pytest

from tests.host.inventory.recordings import Recording, smi
from workers.host.inventory.gpus import choose
from workers.host.inventory.nvidia_smi import parse_capabilities, parse_query
from workers.host.inventory.nvml import read_nvml
from workers.host_facts import GpuReading

GIB = 2**30
NO_LIBRARY = read_nvml(Recording("no-library.json"))


def test_eight_h100_with_their_links_clocks_and_processes() -> None:
    library = Recording("h100x8.json")
    reading = read_nvml(library)
    assert (reading.source, reading.driver, reading.cuda, reading.problem) == ("nvml", "570.124.06", "12.8", "")
    assert len(reading.gpus) == 8
    gpu = reading.gpus[0]
    assert (gpu.name, gpu.capability, gpu.bus_id) == ("NVIDIA H100 80GB HBM3", "9.0", "00000000:1B:00.0")
    assert gpu.memory_total == (gpu.memory_used or 0) + (gpu.memory_free or 0) + (gpu.memory_reserved or 0)
    assert (gpu.nvlink_links, len(gpu.nvlink_peers)) == (18, 4)
    assert (gpu.power_watts, gpu.power_limit_watts, gpu.temperature_c, gpu.utilization) == (412.55, 700.0, 61, 0.97)
    assert [(one.pid, one.memory) for one in gpu.processes] == [(21408, 76_787_220_480)]
    assert reading.gpus[2].slowdowns == ["power cap"]
    assert reading.gpus[7].slowdowns == []
    assert reading.gpus[5].ecc_corrected == 2
    assert library.open == 0


def test_a_divided_a100_gives_its_parts_as_devices() -> None:
    whole, *parts = read_nvml(Recording("a100-mig.json")).gpus
    assert not whole.usable
    assert whole.utilization is None
    assert [part.mig.profile for part in parts if part.mig] == ["3g.20gb", "1g.10gb"]
    assert {part.mig.parent for part in parts if part.mig} == {whole.uuid}
    assert all(part.usable and part.uuid.startswith("MIG-") for part in parts)
    assert [(one.pid, one.memory) for one in parts[0].processes] == [(4711, None)]


def test_what_a_t4_refuses_to_say_is_unknown_not_zero() -> None:
    (gpu,) = read_nvml(Recording("t4.json")).gpus
    assert (gpu.nvlink_links, gpu.mig_enabled, gpu.memory_reserved) == (None, None, None)
    assert (gpu.pcie_width, gpu.pcie_width_max, gpu.rows_pending) == (8, 16, False)
    assert gpu.slowdowns == ["hardware thermal slowdown"]


def test_on_wsl_power_and_the_memory_of_processes_are_unknown() -> None:
    (gpu,) = read_nvml(Recording("wsl-4090.json")).gpus
    assert (gpu.power_watts, gpu.ecc_enabled, gpu.temperature_c) == (None, None, 47)
    assert [(one.pid, one.memory) for one in gpu.processes] == [(31, None)]


def test_a_gpu_that_fell_off_the_bus_is_named_and_the_others_are_read() -> None:
    reading = read_nvml(Recording("lost.json"))
    assert [gpu.bus_id for gpu in reading.gpus] == ["00000000:10:00.0"]
    assert [line.partition(":")[0] for line in reading.unreadable] == ["GPU 1", "GPU 2"]
    assert reading.code == "lost"
    assert "GPU is lost" in reading.problem


def test_a_mismatch_of_driver_and_library_is_said_in_its_own_words() -> None:
    reading = read_nvml(Recording("mismatch.json"))
    assert (reading.source, reading.code, reading.gpus) == ("none", "mismatch", [])
    assert "mismatch" in reading.problem.lower()


def test_nvidia_smi_says_the_same_of_eight_h100() -> None:
    reading = parse_query(smi("h100x8.xml"))
    assert (reading.source, reading.driver, reading.cuda, len(reading.gpus)) == ("nvidia-smi", "570.124.06", "12.8", 8)
    gpu = reading.gpus[2]
    assert (gpu.capability, gpu.memory_total, gpu.pcie_generation) == ("9.0", 81559 * 2**20, 5)
    assert (gpu.utilization, gpu.power_watts, gpu.slowdowns) == (0.97, 412.55, ["power cap"])
    assert gpu.processes[0].memory == 73230 * 2**20


def test_nvidia_smi_lists_the_parts_of_a_divided_gpu_with_their_processes() -> None:
    whole, first, second, _third, other = parse_query(smi("a100-mig.xml")).gpus
    assert (whole.usable, whole.memory_used, whole.processes) == (False, None, [])
    assert first.uuid == "MIG-b8f1a5e4-1c0e-5c9e-8d5c-0f6d6a2f1b11"
    assert [one.pid for one in first.processes] == [4711]
    assert second.uuid == f"MIG-{whole.uuid}/9/0"
    assert (other.mig_enabled, other.ecc_uncorrected, other.rows_pending) == (False, 1, True)


@pytest.mark.parametrize(
    ("recording", "name", "capability", "memory_mib", "driver"),
    [
        ("l40s.xml", "NVIDIA L40S", "8.9", 46068, "580.65.06"),
        ("4090.xml", "NVIDIA GeForce RTX 4090", "8.9", 24564, "545.23.06"),
        ("t4.xml", "Tesla T4", "7.5", 15109, "470.82.01"),
        ("mixed.xml", "NVIDIA RTX 6000 Ada Generation", "8.9", 49140, "570.86.15"),
        ("wsl-laptop.xml", "NVIDIA GeForce RTX 4070 Laptop GPU", "8.9", 8188, "566.36"),
    ],
)
def test_drivers_of_several_years_are_read(
    recording: str, name: str, capability: str, memory_mib: int, driver: str
) -> None:
    reading = parse_query(smi(recording))
    gpu = reading.gpus[0]
    assert (gpu.name, gpu.capability, gpu.memory_total) == (name, capability, memory_mib * 2**20)
    assert (reading.driver, reading.code, reading.problem) == (driver, "", "")


def test_na_is_unknown() -> None:
    (gpu,) = parse_query(smi("wsl-laptop.xml")).gpus
    assert (gpu.power_watts, gpu.power_limit_watts, gpu.ecc_enabled, gpu.ecc_corrected) == (None, None, None, None)
    assert [(one.name, one.memory) for one in gpu.processes] == [("/Xwayland", None)]


def test_a_capability_comes_from_the_driver_where_the_name_is_not_known() -> None:
    mixed = smi("mixed.xml")
    unknown = parse_query(mixed).gpus[1]
    assert unknown.capability == ""
    told = parse_capabilities(f"{unknown.uuid}, 8.6\nsomething else\n")
    assert parse_query(mixed, told).gpus[1].capability == "8.6"


@pytest.mark.parametrize("recording", ["lost.txt", "lost-inside.xml"])
def test_nvidia_smi_tells_a_lost_gpu_before_or_inside_its_list(recording: str) -> None:
    reading = parse_query(smi(recording))
    assert reading.code == "lost"
    assert reading.gpus
    assert all("GPU is lost" not in gpu.name for gpu in reading.gpus)
    assert "lost" in reading.unreadable[0]


@pytest.mark.parametrize(
    ("recording", "code"),
    [("mismatch.txt", "mismatch"), ("not-loaded.txt", "not_loaded"), ("no-devices.txt", "no_devices")],
)
def test_what_nvidia_smi_says_instead_of_a_list_is_the_reason(recording: str, code: str) -> None:
    reading = parse_query(smi(recording))
    assert (reading.source, reading.code, reading.gpus) == ("none", code, [])
    assert reading.problem in smi(recording)


@pytest.mark.parametrize("text", ["", "<nvidia_smi_log>", "<nvidia_smi_log><gpu></nvidia_smi_log>", "\0\xff"])
def test_broken_output_is_a_problem_not_a_crash(text: str) -> None:
    reading = parse_query(text)
    assert (reading.source, reading.code) == ("none", "failed")
    assert reading.problem


def test_entities_are_refused() -> None:
    bomb = '<!DOCTYPE x [<!ENTITY a "aaaa">]><nvidia_smi_log>&a;</nvidia_smi_log>'
    assert "entities" in parse_query(bomb).problem


def _never(argv: list[str]) -> str:
    raise AssertionError(f"{argv} must not run")


def test_nvml_is_believed_before_nvidia_smi_is_asked() -> None:
    read = read_nvml(Recording("t4.json"))
    assert choose(read, "/usr/bin/nvidia-smi", run=_never, nodes=[]) is read


def test_without_nvml_nvidia_smi_is_asked() -> None:
    asked: list[list[str]] = []

    def run(argv: list[str]) -> str:
        asked.append(argv)
        return smi("l40s.xml") if "-x" in argv else "GPU-x, 8.9"

    reading = choose(NO_LIBRARY, "/usr/bin/nvidia-smi", run=run, nodes=[])
    assert (reading.source, len(reading.gpus)) == ("nvidia-smi", 2)
    assert [argv[1] for argv in asked] == ["-q", "--query-gpu=uuid,compute_cap"]


def test_an_nvidia_smi_that_hangs_is_the_reason() -> None:
    def hang(argv: list[str]) -> str:
        raise subprocess.TimeoutExpired(argv, 20)

    reading = choose(NO_LIBRARY, "/usr/bin/nvidia-smi", run=hang, nodes=[])
    assert reading.code == "hangs"
    assert "20 s" in reading.problem


def test_device_files_without_a_library_are_told_apart_from_no_gpu() -> None:
    nothing = choose(NO_LIBRARY, None, run=_never, nodes=[])
    without_library = choose(NO_LIBRARY, None, run=_never, nodes=["/dev/nvidia0", "/dev/nvidiactl"])
    assert nothing.source == without_library.source == "none"
    assert "/dev/nvidia0" in without_library.problem
    assert without_library.code == "not_loaded"


def test_readings_survive_the_way_to_the_console() -> None:
    reading = read_nvml(Recording("a100-mig.json"))
    assert GpuReading.model_validate_json(reading.model_dump_json(exclude_defaults=True)) == reading
