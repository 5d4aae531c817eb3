"""The deeper pass finds numbers that no sound model has, with the standard library alone."""

import struct

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.weights import build
from workers.weights.safetensors import Tensor
from workers.weights.values import ValueReader
from workers.weights.verification import verify_directory

TYPES = {
    "F64": np.float64,
    "F32": np.float32,
    "F16": np.float16,
    "BF16": ml_dtypes.bfloat16,
    "F8_E4M3": ml_dtypes.float8_e4m3fn,
    "F8_E5M2": ml_dtypes.float8_e5m2,
    "F8_E8M0": ml_dtypes.float8_e8m0fnu,
}


def facts_of(dtype, data, *, name="w.weight", pieces=(7,)):
    """Feed bytes in odd pieces, as a file's reading would."""
    width = np.dtype(TYPES[dtype]).itemsize
    reader = ValueReader({name: Tensor("f", dtype, (len(data) // width,), 0, len(data))})
    at = index = 0
    while at < len(data):
        step = pieces[index % len(pieces)]
        reader.feed(memoryview(data)[at : at + step])
        at, index = at + step, index + 1
    return reader.facts[0]


@pytest.mark.parametrize("dtype", TYPES)
@given(data=st.binary(min_size=8, max_size=400), pieces=st.lists(st.integers(1, 50), min_size=1, max_size=4))
@settings(max_examples=60, deadline=None)
def test_not_finite_and_zero_agree_with_numpy(dtype, data, pieces):
    data = data[: len(data) // 8 * 8]
    with np.errstate(invalid="ignore"):
        numbers = np.frombuffer(data, TYPES[dtype]).astype(np.float64)
    facts = facts_of(dtype, data, pieces=pieces)
    assert facts.not_finite == int((~np.isfinite(numbers)).sum())
    if dtype != "F8_E8M0":
        assert facts.all_zero == bool((numbers == 0).all())


@pytest.mark.parametrize("dtype", ["F64", "F32", "F16", "BF16", "F8_E4M3"])
@given(data=st.binary(min_size=8, max_size=80))
@settings(max_examples=40, deadline=None)
def test_scales_that_are_not_positive_agree_with_numpy(dtype, data):
    data = data[: len(data) // 8 * 8]
    with np.errstate(invalid="ignore"):
        numbers = np.frombuffer(data, TYPES[dtype]).astype(np.float64)
    facts = facts_of(dtype, data, name="layers.0.weight_scale")
    if np.isfinite(numbers).all():
        assert facts.not_positive == int((numbers <= 0).sum())


@pytest.mark.parametrize("size", [1 << 16, (1 << 16) + 2, 3 << 16])
def test_one_number_in_a_large_zero_tensor(size):
    data = bytearray(size)
    assert facts_of("BF16", bytes(data), pieces=(size,)).all_zero
    data[-1] = 0x80
    assert facts_of("BF16", bytes(data), pieces=(size,)).all_zero
    data[size // 2] = 1
    assert not facts_of("BF16", bytes(data), pieces=(size,)).all_zero


def found(folder):
    return [(item.code, item.file) for item in verify_directory(folder, read_values=True).findings]


@pytest.mark.parametrize(
    ("code", "data"), [("values.not_finite", struct.pack("<H", 0x7FC0) * 1536), ("values.all_zero", b"\0" * 3072)]
)
def test_bad_numbers_are_named_with_their_file(tmp_path, code, data):
    build.make_model(tmp_path)
    tensors = build.tensors_of("qwen3")
    tensors["model.layers.1.mlp.up_proj.weight"] = ("BF16", (48, 32), data)
    (tmp_path / "model.safetensors").write_bytes(build.safetensors_bytes(tensors))
    assert found(tmp_path) == [(code, "model.safetensors")]
    assert verify_directory(tmp_path).findings == ()


def test_a_scale_of_zero(tmp_path):
    build.make_quantised(tmp_path, "fp8-block")
    assert found(tmp_path) == []
    tensors, _ = build.quantised("fp8-block")
    name = "model.layers.1.mlp.up_proj.weight_scale_inv"
    dtype, shape, data = tensors[name]
    tensors[name] = (dtype, shape, b"\0" * 4 + data[4:])
    (tmp_path / "model.safetensors").write_bytes(build.safetensors_bytes(tensors))
    assert found(tmp_path) == [("values.scale_not_positive", "model.safetensors")]


@pytest.mark.parametrize(("count", "said"), [(1, "1 value that is NaN"), (2, "2 values that are NaN")])
def test_one_number_is_no_plural(tmp_path, count, said):
    build.make_model(tmp_path)
    tensors = build.tensors_of("qwen3")
    data = struct.pack("<H", 0x7FC0) * count + struct.pack("<H", 0x3F80) * (1536 - count)
    tensors["model.layers.1.mlp.up_proj.weight"] = ("BF16", (48, 32), data)
    (tmp_path / "model.safetensors").write_bytes(build.safetensors_bytes(tensors))
    assert said in verify_directory(tmp_path, read_values=True).findings[0].message
