"""The device catalogue, and how devices and sizes are written."""

import json
from pathlib import Path

import pytest

from workers.vllm.devices import (
    builtin_catalogue,
    device_of_bytes,
    find_device,
    merged_catalogue,
    parse_bytes,
    parse_catalogue,
)

NAMED = ["H100", "H200", "B200", "A100-40", "A100-80", "A10G", "L4", "L40S", "4090", "5090", "T4", "RTX PRO 6000",
         "MI300X", "CPU"]  # fmt: skip


@pytest.mark.parametrize("name", NAMED)
def test_the_devices_that_people_plan_for_are_there(name: str) -> None:
    device = find_device(name)
    assert device is not None
    if device.platform == "cuda":
        assert device.memory_bytes
        assert device.bandwidth_gb_s


@pytest.mark.parametrize(("written", "key"), [
    ("nvidia h100 80gb hbm3", "h100"), ("NVIDIA A100-SXM4-40GB", "a100-40"), ("rtx_4090", "4090"), ("a100", "a100-80"),
    ("Tesla T4", "t4"),
])  # fmt: skip
def test_names_are_found_as_drivers_and_people_write_them(written: str, key: str) -> None:
    found = find_device(written)
    assert found is not None
    assert found.key == key


def test_an_unknown_name_is_none() -> None:
    assert find_device("H900") is None


def test_native_fp8_and_bfloat16_can_be_told_from_the_capability() -> None:
    capability = {device.key: device.capability for device in builtin_catalogue()}
    assert capability["l40s"] == (8, 9)
    assert capability["t4"] == (7, 5)
    assert capability["mi300x"] is None


def test_an_edited_device_takes_the_place_of_the_built_in_one_and_a_new_one_is_added() -> None:
    edited = device_of_bytes(90 * 2**30, "cuda")
    merged = merged_catalogue([edited])
    assert merged[:-1] == builtin_catalogue()
    assert merged[-1] == edited


def test_a_wrong_entry_is_named() -> None:
    with pytest.raises(ValueError, match="'broken'"):
        parse_catalogue(json.dumps({"devices": [{"key": "broken"}]}))


@pytest.mark.parametrize(("text", "nbytes"), [
    ("85899345920", 85_899_345_920), ("80GiB", 80 * 2**30), ("80G", 80 * 2**30), ("80 GB", 80 * 10**9),
    ("512MiB", 512 * 2**20), ("1.5g", 3 * 2**29), ("1_000", 1000),
])  # fmt: skip
def test_sizes_are_read(text: str, nbytes: int) -> None:
    assert parse_bytes(text) == nbytes


@pytest.mark.parametrize("text", ["", "many", "80 parsecs", "-5"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="bytes"):
        parse_bytes(text)


def test_the_catalogue_is_documented() -> None:
    documentation = (Path(__file__).parents[3] / "docs/memory.md").read_text()
    for device in builtin_catalogue():
        assert f"`{device.key}`" in documentation
