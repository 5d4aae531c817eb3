"""Tokenizer and chat template: present, readable, and no larger than the embedding they index."""

import base64
import binascii
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from workers.weights.architectures import text_config
from workers.weights.findings import Findings, printable
from workers.weights.jinja import TemplateError, check_template
from workers.weights.layout import Layout

# Any of these is a whole tokenizer; a vocab.json needs its merges.txt.
_WHOLE = (
    "tokenizer.json",
    "tekken.json",
    "tokenizer.model",
    "spiece.model",
    "sentencepiece.bpe.model",
    "tiktoken.model",
    "vocab.txt",
    "tokenizer.model.v3",
)
# Files whose content these checks need.
WANTED = (*_WHOLE, "vocab.json", "merges.txt", "tokenizer_config.json", "chat_template.jinja", "chat_template.json")
TEMPLATE_FOLDER = "additional_chat_templates/"
# A tokenizer for less than this share of the embedding's rows is another model's.
_SMALLEST_SHARE = 0.8
_FIX_FETCH = "Fetch the tokenizer files of the same revision, or name another with --tokenizer."


@dataclass(frozen=True, slots=True)
class Texts:
    """Contents of the small files that the checks need, by name."""

    content: Mapping[str, bytes]

    def json(self, name: str) -> Any:
        """A parsed JSON file; raises ValueError if it isn't one."""
        try:
            return json.loads(self.content[name])
        except RecursionError:
            raise ValueError("nested too deeply") from None


def check_tokenizer(
    layout: Layout, texts: Texts, config: Mapping[str, Any] | None, findings: Findings, *, rows: int | None
) -> None:
    """Report a tokenizer that is missing, unreadable, or that has ids for which the embedding has no row.

    `rows` is the embedding's number of rows in the weights, if it could be seen.
    """
    names = layout.entries
    tiktoken = next((name for name in sorted(names) if name.endswith(".tiktoken") and "/" not in name), None)
    whole = [name for name in _WHOLE if name in names]
    if not whole and tiktoken is None and not _has_pair(layout, findings):
        message = "There are no tokenizer files. The engine would start, but refuse every request."
        findings.add("tokenizer.missing", "tokenizer.json", message, _FIX_FETCH)
        return
    sizes = [size for name in whole if (size := _vocabulary(name, texts, findings)) is not None]
    if not whole and "vocab.json" in texts.content:
        sizes = _plain_vocabulary(texts, findings)
    if "tokenizer_config.json" not in names and not any(name.startswith("tek") for name in whole):
        message = "tokenizer_config.json is missing: special tokens and the chat template are then guessed."
        findings.add("tokenizer.config_missing", "tokenizer_config.json", message, _FIX_FETCH)
    if sizes and config is not None:
        _compare_sizes(whole[0] if whole else "vocab.json", sizes[0], config, findings, rows=rows)


def _has_pair(layout: Layout, findings: Findings) -> bool:
    if "vocab.json" not in layout.entries:
        return False
    if "merges.txt" not in layout.entries:
        message = "vocab.json is there, but merges.txt is missing: the tokenizer can't be built."
        findings.add("tokenizer.missing", "merges.txt", message, _FIX_FETCH)
    return True


def _plain_vocabulary(texts: Texts, findings: Findings) -> list[int]:
    try:
        vocabulary = texts.json("vocab.json")
        return [max(vocabulary.values()) + 1] if vocabulary else []
    except (ValueError, AttributeError, TypeError) as error:
        _invalid("vocab.json", f"is no vocabulary ({str(error)[:100]})", findings)
        return []


def _invalid(name: str, problem: str, findings: Findings) -> None:
    findings.add("tokenizer.invalid", name, f"{name} {problem}.", _FIX_FETCH)


def _vocabulary(name: str, texts: Texts, findings: Findings) -> int | None:
    """One more than the highest token id of a tokenizer file; reports a file that can't be read."""
    content = texts.content.get(name)
    if content is None:
        return None
    try:
        if name == "tokenizer.json":
            return _tokenizer_json(texts.json(name))
        if name == "tekken.json":
            return _tekken(texts.json(name))
        if name in {"tokenizer.model", "spiece.model", "sentencepiece.bpe.model"}:
            return _sentencepiece(content)
        if name == "tiktoken.model":
            return _tiktoken(content)
    except (ValueError, TypeError, AttributeError, KeyError, IndexError) as error:
        detail = printable(str(error)) or type(error).__name__
        _invalid(name, f"can't be read as a tokenizer ({detail})", findings)
    return None


def _tokenizer_json(document: Any) -> int:
    if not isinstance(document, dict) or not isinstance(document.get("model"), dict):
        raise ValueError("it has no model")  # noqa: TRY004 - the caller reports every fault alike
    model = document["model"]
    vocabulary = model.get("vocab")
    if isinstance(vocabulary, dict):
        if not all(type(token) is int and token >= 0 for token in vocabulary.values()):
            raise ValueError("its vocabulary has ids that are no numbers")
        highest = max(vocabulary.values(), default=-1)
        if model.get("type") == "BPE" or "merges" in model:
            _check_merges(model.get("merges"), vocabulary)
    elif isinstance(vocabulary, list):
        highest = len(vocabulary) - 1
    else:
        raise ValueError("it has no vocabulary")  # noqa: TRY004 - the caller reports every fault alike
    added = document.get("added_tokens") or []
    ids = [token["id"] for token in added]
    if not all(type(token) is int and token >= 0 for token in ids):
        raise ValueError("an added token has no id")
    if highest < 0 and not ids:
        raise ValueError("its vocabulary is empty")
    return int(max([highest, *ids])) + 1


def _check_merges(merges: Any, vocabulary: Mapping[str, int]) -> None:
    """The tokenizers library refuses a merge whose parts or result aren't in the vocabulary."""
    if not isinstance(merges, list):
        raise ValueError("its merges are missing")  # noqa: TRY004 - the caller reports every fault alike
    for merge in merges:
        left, right = merge if isinstance(merge, list) else merge.split(" ", 1)
        if left not in vocabulary or right not in vocabulary:
            raise ValueError(f"it merges {left[:40]!r} and {right[:40]!r}, which aren't both in its vocabulary")


def _tekken(document: Any) -> int:
    config = document["config"]
    size = config["default_vocab_size"]
    if type(size) is not int or type(document["vocab"]) is not list:
        raise ValueError("it has no vocabulary")
    return size


def _tiktoken(content: bytes) -> int:
    lines = content.split(b"\n")
    highest = -1
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            token, rank = line.split()
            base64.b64decode(token, validate=True)
            highest = max(highest, int(rank))
        except (ValueError, binascii.Error):
            raise ValueError(f"line {number} is no token and rank") from None
    return highest + 1


def _sentencepiece(content: bytes) -> int:
    """Count the pieces of a SentencePiece model: protobuf field 1 of the outer message, once per piece."""
    if content[:1] != b"\x0a":
        return _tiktoken(content)  # Llama 3's original tokenizer.model is such a text file.
    position = pieces = 0
    while position < len(content):
        key, position = _varint(content, position)
        field, wire = key >> 3, key & 7
        if wire == 2:
            length, position = _varint(content, position)
            position += length
        elif wire == 0:
            _, position = _varint(content, position)
        elif wire in {1, 5}:
            position += 8 if wire == 1 else 4
        else:
            raise ValueError("it is no SentencePiece model")
        pieces += field == 1
    if position != len(content):
        raise ValueError("it ends inside an entry")
    return pieces


def _varint(content: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = content[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if not byte & 0x80:
            return value, position
        shift += 7
        if shift > 63:
            raise ValueError("it is no SentencePiece model")


def _compare_sizes(name: str, tokens: int, config: Mapping[str, Any], findings: Findings, *, rows: int | None) -> None:
    text = text_config(config)
    said = text.get("vocab_size", config.get("vocab_size"))
    sizes = [size for size in (said, rows) if type(size) is int and size > 0]
    if not sizes:
        return
    smallest = min(sizes)
    if tokens > smallest:
        message = f"{name} has ids up to {tokens - 1:,}, but the embedding has {smallest:,} rows: such a token reads beyond it."
        findings.add("tokenizer.vocab_mismatch", name, message, _FIX_FETCH)
    elif tokens < smallest * _SMALLEST_SHARE and text is config:
        message = f"{name} knows {tokens:,} tokens, but the model has {smallest:,}: it is another model's tokenizer."
        findings.add("tokenizer.vocab_mismatch", name, message, _FIX_FETCH)


def check_chat_template(layout: Layout, texts: Texts, findings: Findings, *, generates: bool) -> None:
    """Report a chat template that is missing or can't be compiled."""
    templates = _templates(texts, findings)
    if not templates:
        mistral = "tekken.json" in layout.entries
        if generates and not mistral and not findings.has("chat_template.invalid"):
            message = "There is no chat template: every chat request will fail, completions work."
            fix = "For a chat model fetch chat_template.jinja or tokenizer_config.json again, or give --chat-template."
            findings.add("chat_template.missing", "chat_template.jinja", message, fix)
        return
    for name, source in templates:
        try:
            check_template(source)
        except TemplateError as error:
            message = f"The chat template in {name} can't be compiled: {printable(str(error))}."
            findings.add("chat_template.invalid", name, message, "Fetch the file again, or give --chat-template.")


def _templates(texts: Texts, findings: Findings) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for name in sorted(texts.content):
        if name == "chat_template.jinja" or (name.startswith(TEMPLATE_FOLDER) and name.endswith(".jinja")):
            try:
                found.append((name, texts.content[name].decode("utf-8")))
            except UnicodeDecodeError:
                message = f"{name} isn't UTF-8 text."
                findings.add("chat_template.invalid", name, message, "Fetch the file again.")
    for name in ("chat_template.json", "tokenizer_config.json"):
        found.extend((name, source) for source in _templates_in_json(name, texts, findings))
    return found


def _templates_in_json(name: str, texts: Texts, findings: Findings) -> list[str]:
    if name not in texts.content:
        return []
    try:
        document = texts.json(name)
    except ValueError as error:
        if name == "tokenizer_config.json":
            _invalid(name, f"isn't valid JSON ({str(error)[:100]})", findings)
        else:
            message = f"{name} isn't valid JSON ({str(error)[:100]})."
            findings.add("chat_template.invalid", name, message, "Fetch the file again.")
        return []
    if not isinstance(document, dict):
        if name == "tokenizer_config.json":
            _invalid(name, "isn't a JSON object", findings)
        return []
    value = document.get("chat_template")
    if isinstance(value, str):
        return [value]
    if isinstance(value, list):
        return [item["template"] for item in value if isinstance(item, dict) and isinstance(item.get("template"), str)]
    return []
