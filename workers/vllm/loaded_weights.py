"""What the engine holds of a model's weights once they are loaded: mostly what the files hold, in two cases more.

Latent attention (MLA) multiplies by its unfolding projection `kv_b_proj` from both sides. Where it is stored at the model's own
precision both are views of it; where it is quantised the engine unfolds it once and keeps that beside it [src 0.10 to 0.32].
Gemma-4 stores one projection for keys and values that are equal, and the engine loads it into the places of both.
"""

from collections import Counter
from dataclasses import replace

from workers.vllm.model_shape import ModelShape
from workers.vllm.weights_size import Share, WeightSizes


def loaded_weights(model: ModelShape) -> WeightSizes:
    """The model's weights with what loading adds to its layers."""
    added = (_unfolded(model), _doubled_keys(model))
    if not any(any(shares) for shares in added):
        return model.weights
    layers = tuple(
        share.plus(unfolded or Share()).plus(keys or Share())
        for share, unfolded, keys in zip(model.weights.layers, *added, strict=True)
    )
    return replace(model.weights, layers=layers)


def unfolded_bytes(model: ModelShape) -> int:
    """Bytes of the unfolded projections of latent attention, over all layers and ranks; 0 where they are views."""
    return sum(share.total for share in _unfolded(model) if share is not None)


def _unfolded(model: ModelShape) -> list[Share | None]:
    count = len(model.weights.layers)
    if not model.latents_quantized or not model.latent_elements:
        return [None] * count
    attention = Counter(layer.index for layer in model.cache_layers if layer.kind == "mla")
    nbytes = model.latent_elements * model.dtype_bytes
    return [Share(sharded=attention[index] * nbytes) if attention[index] else None for index in range(count)]


def _doubled_keys(model: ModelShape) -> list[Share | None]:
    full = {layer.index for layer in model.cache_layers if layer.kind == "full"} if model.keys_are_values else set()
    layers = model.weights.layers
    # Such a layer has no value projection, so all that follows its key/value heads is the key projection.
    return [Share(by_kv_head=share.by_kv_head) if index in full else None for index, share in enumerate(layers)]
