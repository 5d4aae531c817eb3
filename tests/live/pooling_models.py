"""Small checkpoints that a real vLLM pools: an encoder like BERT with random weights, and one that classifies with it."""

import json
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

HIDDEN, MIDDLE, LAYERS, HEADS, CONTEXT = 128, 256, 2, 2, 512
"""Heads of 64, which every CPU kernel knows."""

Shape = tuple[str, tuple[int, ...]]
Shapes = Iterable[Shape]


def embedding_model(texts: Path, folder: Path) -> None:
    """A model of embeddings, with the tokenizer of the model in `texts`."""
    _write(texts, folder, {"architectures": ["BertModel"]}, _encoder(_vocabulary(texts)))


def classifying_model(texts: Path, folder: Path) -> None:
    """One that tells two classes apart: it has no embeddings."""
    shapes = {f"bert.{name}": shape for name, shape in _encoder(_vocabulary(texts))}
    shapes |= {"classifier.weight": (2, HIDDEN), "classifier.bias": (2,)}
    settings = {"architectures": ["BertForSequenceClassification"], "id2label": {"0": "no", "1": "yes"},
                "label2id": {"no": 0, "yes": 1}}  # fmt: skip
    _write(texts, folder, settings, shapes.items())


def _vocabulary(texts: Path) -> int:
    return int(json.loads((texts / "config.json").read_text())["vocab_size"])


def _encoder(vocabulary: int) -> Iterator[Shape]:
    yield "embeddings.word_embeddings.weight", (vocabulary, HIDDEN)
    yield "embeddings.position_embeddings.weight", (CONTEXT, HIDDEN)
    yield "embeddings.token_type_embeddings.weight", (2, HIDDEN)
    yield from _both("embeddings.LayerNorm", HIDDEN)
    for layer in range(LAYERS):
        at = f"encoder.layer.{layer}"
        for name in ("query", "key", "value"):
            yield from _both(f"{at}.attention.self.{name}", HIDDEN, HIDDEN)
        yield from _both(f"{at}.attention.output.dense", HIDDEN, HIDDEN)
        yield from _both(f"{at}.attention.output.LayerNorm", HIDDEN)
        yield from _both(f"{at}.intermediate.dense", MIDDLE, HIDDEN)
        yield from _both(f"{at}.output.dense", HIDDEN, MIDDLE)
        yield from _both(f"{at}.output.LayerNorm", HIDDEN)
    yield from _both("pooler.dense", HIDDEN, HIDDEN)


def _both(name: str, *shape: int) -> Iterator[Shape]:
    yield f"{name}.weight", shape
    yield f"{name}.bias", shape[:1]


def _write(texts: Path, folder: Path, settings: dict[str, object], shapes: Shapes) -> None:
    folder.mkdir(parents=True)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(texts / name, folder / name)
    config = {
        "model_type": "bert", "vocab_size": _vocabulary(texts), "hidden_size": HIDDEN, "intermediate_size": MIDDLE,
        "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "max_position_embeddings": CONTEXT, "type_vocab_size": 2,
        "hidden_act": "gelu", "layer_norm_eps": 1e-12, "position_embedding_type": "absolute", "torch_dtype": "float32",
        "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "pad_token_id": 0, **settings,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    dice = np.random.default_rng(7)
    tensors = {
        name: np.ones(shape, np.float32)
        if "LayerNorm.weight" in name
        else dice.normal(0, 0.2, shape).astype(np.float32)
        for name, shape in shapes
    }
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
