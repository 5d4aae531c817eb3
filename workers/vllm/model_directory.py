"""Reading a model directory for the planner: its config.json and the headers of its safetensors files.

Only what sizes need is read, and nothing is verified here beyond what a size depends on: whether files are whole,
readable and of the right content is `slipway verify`'s business.
"""

import json
import struct
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from workers.vllm.attention_layers import num_layers
from workers.vllm.config_values import refuse_wrong_kinds
from workers.vllm.model_shape import ModelShape, dtype_bytes, is_tied, read_shape, text_config
from workers.vllm.weights_size import DTYPE_BITS, TensorHeader, WeightSizes, sum_headers

_LARGEST_HEADER = 100 * 2**20  # the format's own limit; a larger number is not a header
_INDEX = "model.safetensors.index.json"


def read_model(path: Path) -> ModelShape:
    """The shape of the model in a directory, or described by a config.json alone.

    Weights that are missing or can't be read don't stop it: their size is then taken from the index or estimated from
    the configuration, and `weights_problems` says why.

    Raises:
        FileNotFoundError: when there is no config.json.
        ValueError: when config.json isn't a JSON object or doesn't determine the KV cache.
    """
    config, sizes, problems = read_model_parts(path)
    return read_shape(config, weights=sizes, weights_problems=problems)


def read_model_parts(path: Path) -> tuple[dict[str, Any], WeightSizes | None, tuple[str, ...]]:
    """The configuration, the weights' sizes (None to estimate them) and what is wrong with the files they are from.

    Raises as `read_model`, but for what the configuration doesn't determine.
    """
    file = path / "config.json" if path.is_dir() else path
    if not file.is_file():
        message = f"{path}: no config.json there; give the directory that holds it"
        raise FileNotFoundError(message)
    config = _read_json(file)
    if not path.is_dir():
        problem = "weights incomplete: only config.json was given, so their size is estimated from it"
        return config, None, (problem,)
    return config, *_read_weights(path, config)


def _read_json(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_bytes())
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        message = f"{file}: not JSON ({error})"
        raise ValueError(message) from error
    if not isinstance(content, dict):
        message = f"{file}: a JSON object is needed, this is a {type(content).__name__}"
        raise ValueError(message)  # noqa: TRY004 - the file's content is wrong, not the caller's type
    return content


def _read_weights(directory: Path, config: Mapping[str, Any]) -> tuple[WeightSizes | None, tuple[str, ...]]:
    """Sizes from the headers, and what keeps them from being those of a whole checkpoint; None to estimate."""
    wanted, total, problems = _wanted_files(directory)
    headers: list[TensorHeader] = []
    for name in wanted:
        file = directory / name
        try:
            headers += read_header(file)
        except FileNotFoundError:
            problems.append(f"weights incomplete: {name} is missing")
        except OSError as error:
            problems.append(f"weights incomplete: {name} can't be read ({error.strerror})")
        except ValueError as error:
            problems.append(f"weights incomplete: {error}")
    if not headers:
        nothing = "no readable *.safetensors file" if wanted else "no *.safetensors file"
        problems.append(f"weights incomplete: {nothing}, so their size is estimated from config.json")
        return None, tuple(problems)
    sizes = _sum(headers, config)
    if problems and total:
        problems.append("the size of the weights is the total in the index")
        sizes = sizes.scaled_to(total, "index")
    elif problems:
        problems.append("the size of the weights is estimated from config.json")
        return None, tuple(problems)
    adapters = sum(file.stat().st_size for file in sorted(directory.glob("adapter_model*.safetensors")))
    return replace(sizes, adapter_bytes=adapters), tuple(problems)


def _sum(headers: list[TensorHeader], config: Mapping[str, Any]) -> WeightSizes:
    text = text_config(config)
    refuse_wrong_kinds(text)
    return sum_headers(
        headers,
        layers=num_layers(text),
        tied=is_tied(config, text),
        dtype_bytes=dtype_bytes(config),
        quantized=any(part.get("quantization_config") for part in (config, text)),
    )


def _wanted_files(directory: Path) -> tuple[list[str], int | None, list[str]]:
    """(files that the engine would read, the total that the index states, problems).

    With an index these are the files it names. Without one, every safetensors file at the top: `original/` is another
    copy in the author's own format, and so is `consolidated*`.
    """
    index = directory / _INDEX
    if index.is_file():
        try:
            content = _read_json(index)
            names = sorted({str(name) for name in content["weight_map"].values()})
            total = (content.get("metadata") or {}).get("total_size")
        except (ValueError, KeyError, AttributeError, TypeError):
            return _top_files(directory), None, [f"weights incomplete: {_INDEX} can't be read"]
        outside = [name for name in names if Path(name).is_absolute() or ".." in Path(name).parts]
        problems = [f"weights incomplete: the index names {name}, which is not in the directory" for name in outside]
        kept = [name for name in names if name not in outside]
        return kept, total if isinstance(total, int) and total > 0 else None, problems
    return _top_files(directory), None, []


def _top_files(directory: Path) -> list[str]:
    names = sorted(file.name for file in directory.glob("*.safetensors"))
    return [name for name in names if not name.startswith(("consolidated", "adapter_model"))]


def read_header(file: Path) -> list[TensorHeader]:
    """The tensors that a safetensors file declares.

    Raises:
        FileNotFoundError: when there is no such file.
        ValueError: when it is no safetensors file, or its length isn't what the header adds up to.
    """
    size = file.stat().st_size
    with file.open("rb") as stream:
        prefix = stream.read(8)
        length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else 0
        if not 2 <= length <= min(_LARGEST_HEADER, size - 8):
            message = f"{file.name} has no safetensors header"
            raise ValueError(message)
        content = stream.read(length)
    try:
        entries = json.loads(content)
        tensors = [_tensor(name, entry) for name, entry in entries.items() if name != "__metadata__"]
        end = max((entry["data_offsets"][1] for name, entry in entries.items() if name != "__metadata__"), default=0)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError, RecursionError) as error:
        message = f"{file.name} has no safetensors header"
        raise ValueError(message) from error
    if size != 8 + length + end:
        message = f"{file.name} has {size:,} bytes, its header says {8 + length + end:,}"
        raise ValueError(message)
    return tensors


def _tensor(name: str, entry: Mapping[str, Any]) -> TensorHeader:
    start, end = entry["data_offsets"]
    dtype, shape = str(entry["dtype"]), tuple(int(axis) for axis in entry["shape"])
    if dtype not in DTYPE_BITS or not 0 <= int(start) <= int(end) or any(axis < 0 for axis in shape):
        message = f"tensor {name} is no tensor"
        raise ValueError(message)
    return TensorHeader(name, dtype, shape, int(end) - int(start))
