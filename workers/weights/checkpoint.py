"""One model directory under examination: puts together what the files say and runs every check on it."""

import contextlib
import io
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from workers.weights import architectures, tokenizer
from workers.weights.adapters import check_adapter, facts_of
from workers.weights.expectations import ImpossibleConfigError
from workers.weights.findings import Findings, listed, printable
from workers.weights.gguf import GGUFError, read_gguf
from workers.weights.guide_format import MAP_FILE, check_guide_format
from workers.weights.layer_headers import compare_headers
from workers.weights.layers import check_vocabulary, compare_layers, stacks
from workers.weights.layout import Layout
from workers.weights.quant_states import check_quant_states
from workers.weights.quantization import check_quantisation, logical_shape
from workers.weights.safetensors import DTYPE_BITS
from workers.weights.scan import Scan, is_lfs_pointer
from workers.weights.schemes import Scheme, read_scheme
from workers.weights.settings import (
    check_architecture,
    check_context,
    check_generation,
    check_token_ids,
    check_tokenizer_code,
    parse_object,
    repeated_keys,
)
from workers.weights.shards import read_weights
from workers.weights.tensors import TensorCheck, Weights, check_plain_types
from workers.weights.towers import check_towers
from workers.weights.value_findings import report_values

_FIX_FETCH = "Fetch the file again; it belongs to the same revision as the weights."
_FIX_BY_CODE = {
    "weights.truncated": "Download this file again; the download or copy ended early.",
    "weights.trailing_bytes": "Download this file again; something was appended to it, or two files were mixed.",
    "weights.lfs_pointer": "Fetch the file itself: `git lfs pull` in a git checkout, or download the model again.",
    "file.changed": "Wait until nothing writes to the directory any more, then verify again.",
    "file.unreadable": "Check the file's permissions and the disk, then verify again.",
}
_EMBEDDINGS = (
    "embed_tokens.weight",
    "wte.weight",
    "word_embeddings.weight",
    "tok_embeddings.weight",
    "embed_in.weight",
)


class Checkpoint:
    """All that one pass over a directory's files gave, and the checks that follow from it."""

    def __init__(self, layout: Layout, scans: Mapping[str, Scan], findings: Findings, *, deep: bool) -> None:
        self._layout, self._scans, self._findings = layout, scans, findings
        self._deep = deep
        self._headers = {
            name: scan.header for name, scan in scans.items() if scan.header is not None and "/" not in name
        }
        content = {name: scan.content for name, scan in scans.items() if scan.content is not None}
        self._texts = tokenizer.Texts(content)
        self._config: dict[str, Any] | None = None
        self._scheme: Scheme | None = None
        self._weights = Weights({})

    def check(self, *, supported_architectures: Iterable[str] | None) -> None:
        """Run every check; all results become findings."""
        self._report_scans()
        self._config = self._read_config()
        config = self._config or {}
        if self._config is not None and not self._layout.is_adapter:
            check_architecture(config, supported_architectures, self._findings)
            check_context(config, self._findings)
            check_token_ids(config, self._findings)
        self._weights = read_weights(self._layout, self._scans, self._findings)
        self._check_gguf()
        if self._layout.is_adapter:
            check_adapter(config, self._weights, self._findings)
        else:
            self._scheme = read_scheme(config, self._side_files(), self._findings)
            self._check_tensors()
            self._check_texts()
        values = [fact for scan in self._scans.values() for fact in scan.values]
        report_values(values, self._weights, self._findings)
        map_content = self._texts.content.get(MAP_FILE)
        check_guide_format(self._layout, self._headers, map_content, self._findings)

    def facts(self) -> dict[str, Any]:
        """What the result card shows about the model."""
        tensors = self._weights.tensors.values()
        types: Counter[str] = Counter()
        for tensor in tensors:
            types[tensor.dtype] += (tensor.end - tensor.begin) * 8 // DTYPE_BITS[tensor.dtype]
        config = self._config or {}
        return {
            "kind": "adapter" if self._layout.is_adapter else "model",
            "architectures": architectures.class_names(config),
            "quantization": self._scheme.method if self._scheme is not None else None,
            "tensors": len(self._weights.tensors),
            "elements_by_dtype": dict(types.most_common()),
            "checked_by": self._checked_by(),
            **({"adapter": facts_of(config, self._weights)} if self._layout.is_adapter else {}),
        }

    def _checked_by(self) -> str:
        if self._layout.is_adapter:
            return "adapter pairs"
        family = architectures.family_name(self._config or {})
        return f"the table for {family}" if family else "comparing layers"

    def _report_scans(self) -> None:
        for name, scan in sorted(self._scans.items()):
            for code, problem in scan.problems:
                fix = _FIX_BY_CODE.get(code, "Download this file again.")
                self._findings.add(code, name, f"{printable(name)} {printable(problem, most_letters=400)}.", fix)

    def _read_config(self) -> dict[str, Any] | None:
        adapter = self._layout.is_adapter
        name = "adapter_config.json" if adapter else "config.json"
        content = self._texts.content.get(name)
        if content is None:
            self._report_no_config(name)
            return None
        try:
            config = parse_object(content)
        except ValueError as error:
            pointer = is_lfs_pointer(content)
            reason = "it is a Git LFS pointer" if pointer else printable(str(error))
            self._findings.add("config.invalid_json", name, f"{name} can't be read: {reason}.", _FIX_FETCH)
            return None
        self._note_repeated(name, content)
        return config

    def _note_repeated(self, name: str, content: bytes) -> None:
        if repeated := repeated_keys(content):
            message = (
                f"{name} has keys twice: {listed(repeated)}. The last one counts here; other readers take the first."
            )
            self._findings.add("config.duplicate_keys", name, message, _FIX_FETCH)

    def _report_no_config(self, name: str) -> None:
        layout = self._layout
        if name in layout.entries:
            return  # It exists but couldn't be opened, which is reported already.
        if layout.is_mistral_format and layout.safetensors:
            message = "The model is described by Mistral's params.json; its tensors were only compared with each other."
            fix = "Nothing to do: the engine reads it with --config-format mistral --load-format mistral."
            self._findings.add("weights.mistral_format", "params.json", message, fix)
        elif not (layout.gguf and not layout.safetensors):
            message = "There is no config.json, so no engine can tell what model this is."
            self._findings.add("config.missing", name, message, _FIX_FETCH)

    def _side_files(self) -> dict[str, Any]:
        found = {}
        for name in ("hf_quant_config.json", "quantize_config.json", "quant_config.json"):
            if name in self._texts.content:
                try:
                    found[name] = parse_object(self._texts.content[name])
                except ValueError as error:
                    message = f"{name} can't be read: {printable(str(error))}."
                    self._findings.add("config.invalid_json", name, message, _FIX_FETCH)
        return found

    def _check_tensors(self) -> None:
        weights, config, findings = self._weights, self._config or {}, self._findings
        if not weights.tensors:
            return
        readable = self._config is not None
        known = readable and not findings.has("quantization.unknown")
        check_quantisation(self._scheme, weights, findings, config_known=known)
        if self._deep:
            check_quant_states(weights.tensors, self._layout, self._headers, findings)
        if known:
            check_plain_types(weights.tensors, findings, quantised=self._scheme is not None)
        compare_headers(weights.tensors, findings)
        implied = self._implied(config) if readable and not self._only_consolidated() else None
        if implied is not None:
            check = TensorCheck(
                weights,
                findings,
                quantised=self._scheme is not None,
                logical_shape=lambda name, tensor: logical_shape(self._scheme, name, tensor),
            )
            check.run(implied, multimodal=_is_multimodal(config))
        text = architectures.text_config(config)
        compare_layers(weights, findings, text, towers_only=implied is not None)
        check_towers(weights, findings, config, [one for one in stacks(weights.tensors) if one.tower])
        if implied is None and readable and self._scheme is None:
            rows = text.get("vocab_size")
            untied = text.get("tie_word_embeddings", config.get("tie_word_embeddings")) is False
            generates = any(name.endswith("ForCausalLM") for name in architectures.class_names(config))
            heads = 2 if untied and generates else 1
            check_vocabulary(weights, findings, rows=rows if type(rows) is int else None, heads=heads)

    def _only_consolidated(self) -> bool:
        """Mistral's own tensor names, which no table describes."""
        return all(tensor.file.startswith("consolidated") for tensor in self._weights.tensors.values())

    def _implied(self, config: Mapping[str, Any]) -> architectures.Implied | None:
        try:
            implied = architectures.implied(config)
        except ImpossibleConfigError as error:
            message = f"config.json can't belong to these weights: {error}."
            self._findings.add("weights.tensor_missing", "config.json", message, _FIX_FETCH)
            return None
        if implied is None:
            names = listed(architectures.class_names(config) or ["this architecture"])
            message = f"There is no tensor table for {names}: its layers were compared with each other instead."
            self._findings.add("arch.no_table", "config.json", message, "Nothing to do.")
        return implied

    def _check_texts(self) -> None:
        layout, findings, texts = self._layout, self._findings, self._texts
        if "generation_config.json" in texts.content:
            check_generation(texts.content["generation_config.json"], self._config, findings)
        if layout.gguf and not layout.safetensors:
            return  # A GGUF file carries its tokenizer and template.
        tokenizer.check_tokenizer(layout, texts, self._config, findings, rows=self._embedding_rows())
        if "tokenizer_config.json" in texts.content:
            # A file that can't be read is reported as tokenizer.invalid, with the template that it should hold.
            with contextlib.suppress(ValueError):
                check_tokenizer_code(texts.json("tokenizer_config.json"), findings)
        classes = architectures.class_names(self._config or {})
        generates = not classes or any(name.endswith(("ForCausalLM", "ForConditionalGeneration")) for name in classes)
        tokenizer.check_chat_template(layout, texts, findings, generates=generates)

    def _embedding_rows(self) -> int | None:
        for name, tensor in self._weights.tensors.items():
            if (
                name.endswith(_EMBEDDINGS)
                and len(tensor.shape) == 2
                and "visual" not in name
                and ".layers." not in name
            ):
                return tensor.shape[0]
        return None

    def _check_gguf(self) -> None:
        for entry in self._layout.gguf:
            try:
                with Path(entry.path).open("rb") as stream:
                    header = read_gguf(io.BufferedReader(stream.raw), file_bytes=entry.size)
            except GGUFError as error:
                message = f"{printable(entry.name)} {error}."
                self._findings.add(error.code, entry.name, message, "Download this file again.")
                continue
            except OSError:
                continue  # Reported when it was scanned.
            kind = printable(header.architecture or "unknown architecture")
            message = f"GGUF version {header.version}, {header.tensors:,} tensors, {kind}."
            fix = "vLLM reads GGUF itself up to 0.23; since 0.24 install its GGUF plugin in the engine, or convert the model."
            self._findings.add("weights.gguf", entry.name, message, fix)


def _is_multimodal(config: Mapping[str, Any]) -> bool:
    return architectures.text_config(config) is not config or any(
        isinstance(config.get(name), dict) for name in ("vision_config", "audio_config", "visual", "vision_encoder")
    )
