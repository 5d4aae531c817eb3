"""A model's shape as plain data: made on the host that holds the files, kept by the console, planned with anywhere.

The configuration goes along whole, the weights as the sums of their headers: a few kilobytes, whatever the model weighs.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from workers.vllm.model_directory import read_model_parts
from workers.vllm.model_shape import ModelShape, read_shape
from workers.vllm.weights_size import Share, Vocabulary, WeightSizes

_SHARE = ("sharded", "by_kv_head", "replicated")


def record_of(path: Path) -> dict[str, Any]:
    """Record the model in a directory.

    Raises:
        FileNotFoundError: when there is no config.json.
        ValueError: when config.json is no JSON object.
    """
    config, weights, problems = read_model_parts(path)
    return {"config": config, "weights": _weights_json(weights) if weights else None, "problems": list(problems)}


def shape_from(record: Mapping[str, Any]) -> ModelShape:
    """The shape that a record describes; weights that it doesn't have are estimated. ValueError as in `read_shape`."""
    try:
        weights = record.get("weights")
        sizes = _weights(weights) if weights else None
        config, problems = record["config"], tuple(str(text) for text in record.get("problems") or ())
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        message = f"the record of this model's shape can't be read ({error!r}): verify its files again"
        raise ValueError(message) from error
    return read_shape(config, weights=sizes, weights_problems=problems)


def _weights_json(weights: WeightSizes) -> dict[str, Any]:
    return {
        "source": weights.source,
        "layers": [_share_json(share) for share in weights.layers],
        "outside": _share_json(weights.outside),
        "embedding": [weights.embedding.rows, weights.embedding.row_bytes],
        "head": [weights.head.rows, weights.head.row_bytes],
        "tied": weights.tied,
        "unloaded_bytes": weights.unloaded_bytes,
        "adapter_bytes": weights.adapter_bytes,
        "latents_quantized": weights.latents_quantized,
    }


def _share_json(share: Share) -> list[int]:
    return [getattr(share, name) for name in _SHARE]


def _weights(entry: Mapping[str, Any]) -> WeightSizes:
    return WeightSizes(
        source=entry["source"],
        layers=tuple(_share(share) for share in entry["layers"]),
        outside=_share(entry["outside"]),
        embedding=Vocabulary(*(int(part) for part in entry["embedding"])),
        head=Vocabulary(*(int(part) for part in entry["head"])),
        tied=bool(entry["tied"]),
        unloaded_bytes=int(entry.get("unloaded_bytes", 0)),
        adapter_bytes=int(entry.get("adapter_bytes", 0)),
        latents_quantized=entry.get("latents_quantized"),
    )


def _share(parts: Sequence[int]) -> Share:
    return Share(*(int(part) for part in parts))
