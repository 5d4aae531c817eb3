"""Which files are taken by default."""

from collections.abc import Iterable

from workers.weights.hub import HubFile, select_files


def chosen(names: Iterable[str]) -> set[str]:
    return {file.path for file in select_files(HubFile(name, 1) for name in names).files}


def test_safetensors_are_taken_and_everything_that_repeats_them_is_not() -> None:
    needed = {
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer.model",
        "chat_template.jinja",
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        "model.safetensors.index.json",
        "modeling_own.py",
        "params.json",
    }
    others = {
        "pytorch_model.bin",
        "pytorch_model.bin.index.json",
        "original/consolidated.00.pth",
        "original/params.json",
        "consolidated.safetensors",
        "consolidated.safetensors.index.json",
        "model-q4.gguf",
        "onnx/model.onnx",
        "onnx/config.json",
        "tf_model.h5",
        "flax_model.msgpack",
        "model.tflite",
        "openvino_model.xml",
        "openvino_model.bin",
        "openvino/x.bin",
        "rust_model.ot",
        "optimizer.pt",
        "training_args.bin",
        "picture.png",
        ".gitattributes",
    }
    assert chosen(needed | others) == needed


def test_pickle_is_taken_only_when_there_is_nothing_else() -> None:
    assert chosen(["config.json", "pytorch_model.bin"]) == {"config.json", "pytorch_model.bin"}
    assert chosen(["pytorch_model.bin", "onnx/model.safetensors"]) == {"pytorch_model.bin"}


def test_gguf_and_consolidated_weights_are_taken_when_they_are_the_only_ones() -> None:
    assert chosen(["README.md", "model.gguf"]) == {"README.md", "model.gguf"}
    assert chosen(["params.json", "tekken.json", "consolidated.safetensors"]) == {
        "params.json",
        "tekken.json",
        "consolidated.safetensors",
    }


def test_every_file_has_a_reason_and_a_person_has_the_last_word() -> None:
    selection = select_files([HubFile("a.gguf", 5), HubFile("config.json", 2), HubFile("model.safetensors", 7)])
    assert all(choice.reason for choice in selection.choices)
    assert selection.size == 9
    edited = selection.with_paths(["a.gguf", "config.json", "unknown"])
    assert [(choice.file.path, choice.chosen, choice.reason) for choice in edited.choices] == [
        ("a.gguf", True, "chosen by hand"),
        ("config.json", True, "configuration or tokenizer"),
        ("model.safetensors", False, "left out by hand"),
    ]
    assert edited.size == 7
