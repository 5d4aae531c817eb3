"""Weight files as a set: which there are, which an index promises, and which tensors lie in them."""

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

from workers.weights.findings import Findings, listed, printable
from workers.weights.layout import INDEX_SUFFIX, Layout, shard_numbers
from workers.weights.safetensors import Tensor
from workers.weights.scan import Scan
from workers.weights.tensors import Weights

_FIX_SHARD = "Download the missing file; the others can stay."
_FIX_INDEX = "Fetch the index and the shards of the same revision again."


def read_weights(layout: Layout, scans: Mapping[str, Scan], findings: Findings) -> Weights:
    """Collect the tensors that an engine would load, and report what is wrong with the set of files."""
    files = [entry.name for entry in layout.safetensors]
    _report_formats(layout, files, findings)
    index = _main_index(layout)
    if index is None:
        files = _without_consolidated(files)
        weights = Weights(_merge(files, scans, findings))
        weights.lost.update(name for name in files if scans[name].header is None)
        _check_numbers(files, weights, findings)
        return weights
    weights = Weights({}, index_file=index)
    document = _read_index(index, scans, findings)
    if document is None:
        weights.tensors = _merge(_without_consolidated(files), scans, findings)
        weights.lost.add(index)
        return weights
    _read_map(document, weights, findings)
    _check_index(index, document, files, scans, weights, findings)
    return weights


def _main_index(layout: Layout) -> str | None:
    """The index that describes the model: an engine prefers model.safetensors.index.json."""
    names = [entry.name for entry in layout.indexes]
    preferred = ("model" + INDEX_SUFFIX, "adapter_model" + INDEX_SUFFIX)
    for name in (*preferred, *names):
        if name in names and not name.startswith("consolidated"):
            return name
    return None


def _without_consolidated(files: list[str]) -> list[str]:
    """Engines leave Mistral's own files aside when there are ordinary ones."""
    ordinary = [name for name in files if not name.startswith("consolidated")]
    return ordinary or files


def _report_formats(layout: Layout, files: list[str], findings: Findings) -> None:
    pickles = [entry.name for entry in layout.pickles if not entry.name.startswith("training_args")]
    has_index = bool(layout.indexes)
    if not files and not has_index:
        if layout.gguf:
            return
        if pickles:
            message = f"The weights are there as pickle files only ({listed(pickles)}); loading one can run any code."
            fix = "Take a safetensors version; otherwise an admin must allow pickle for this model."
            findings.add("weights.pickle_only", pickles[0], message, fix)
            return
        name = "adapter_model.safetensors" if layout.is_adapter else "model.safetensors"
        message = "There are no weights in the directory."
        fix = "Download the weights; check that the path is the model directory itself."
        findings.add("weights.missing", name, message, fix)
        return
    others = [*pickles, *(entry.name for entry in layout.gguf)]
    consolidated = [name for name in files if name.startswith("consolidated")]
    if len(consolidated) < len(files):
        others += consolidated
    if "model.safetensors" in files and len(shard_numbers(files)) > 0:
        others.append("model.safetensors")
    if others:
        size = sum(layout.entries[name].size for name in others)
        message = f"The weights are there in more than one format; {listed(others)} ({size:,} bytes) won't be used."
        fix = "Remove them to free the space, or leave them: only the safetensors files are loaded."
        findings.add("weights.duplicate_formats", others[0], message, fix)


def _merge(files: list[str], scans: Mapping[str, Scan], findings: Findings) -> dict[str, Tensor]:
    """All tensors of several files; reports a tensor that lies in two of them."""
    merged: dict[str, Tensor] = {}
    doubles: dict[tuple[str, str], list[str]] = {}
    for file in files:
        header = scans[file].header
        if header is None:
            continue
        for name in merged.keys() & header.tensors.keys():
            doubles.setdefault((merged[name].file, file), []).append(name)
        merged.update(header.tensors)
    for (first, second), names in doubles.items():
        message = f"{printable(first)} and {printable(second)} both hold {listed(sorted(names))}."
        fix = "Remove the file that doesn't belong to the model; without an index the engine loads both, the last one wins."
        findings.add("weights.tensor_duplicate", second, message, fix)
    return merged


def _check_numbers(files: list[str], weights: Weights, findings: Findings) -> None:
    """Without an index, the shards' names still tell how many there should be."""
    for (stem, total), numbers in shard_numbers(files).items():
        missing = [number for number in range(1, min(total, 20_000) + 1) if number not in numbers]
        for number in missing:
            name = f"{stem}-{number:05d}-of-{total:05d}.safetensors"
            weights.lost.add(name)
            findings.add("weights.shard_missing", name, f"Shard {number} of {total} is missing.", _FIX_SHARD)
        index = f"{stem}{INDEX_SUFFIX}"
        message = f"There are {len(numbers)} shards but no {index}."
        fix = "Fetch the index too: vLLM loads without it, other tools don't, and a lost shard can't be noticed."
        findings.add("weights.index_absent", index, message, fix)


def _read_index(index: str, scans: Mapping[str, Scan], findings: Findings) -> dict[str, Any] | None:
    content = scans[index].content
    problem = "can't be read"
    if content is not None:
        try:
            document = json.loads(content)
        except RecursionError:
            problem = "is nested too deeply to be read"
        except ValueError as error:
            problem = f"isn't valid JSON ({str(error)[:120]})"
        else:
            if isinstance(document, dict) and isinstance(document.get("weight_map"), dict):
                return document
            problem = "has no weight_map"
    findings.add("weights.index_mismatch", index, f"{index} {printable(problem)}.", _FIX_INDEX)
    return None


def _read_map(document: dict[str, Any], weights: Weights, findings: Findings) -> None:
    strange: list[str] = []
    for name, file in document["weight_map"].items():
        if isinstance(file, str) and file and "/" not in file and "\\" not in file and file not in {".", ".."}:
            weights.weight_map[name] = file
        else:
            strange.append(f"{name} → {str(file)[:80]}")
    if strange:
        message = f"The index names files that can't be shards of this directory: {listed(strange)}."
        findings.add("weights.index_mismatch", weights.index_file, message, _FIX_INDEX)


def _check_index(
    index: str,
    document: dict[str, Any],
    files: list[str],
    scans: Mapping[str, Scan],
    weights: Weights,
    findings: Findings,
) -> None:
    promised = Counter(weights.weight_map.values())
    present = set(files)
    for file, count in sorted(promised.items()):
        if file not in present:
            weights.lost.add(file)
            message = f"The shard {printable(file)} with {count:,} tensors is missing."
            findings.add("weights.shard_missing", file, message, _FIX_SHARD)
        elif scans[file].header is None:
            weights.lost.add(file)
    series = {stem for stem, _ in shard_numbers(list(promised))}
    stray = [name for name in _without_consolidated(files) if name not in promised and _could_be_shard(name, series)]
    weights.tensors = _merge([*sorted(promised.keys() & present), *stray], scans, findings)
    _compare_places(index, files, scans, weights, findings)
    if stray:
        message = (
            f"{listed(stray)} {'is' if len(stray) == 1 else 'are'} not in {index}: the engine leaves such a file out."
        )
        findings.add("weights.index_mismatch", index, message, _FIX_INDEX)
    _check_total(index, document, weights, findings)


def _could_be_shard(name: str, series: set[str]) -> bool:
    """A file beside the promised ones that belongs to their series or to none; another whole series is a format."""
    own = {stem for stem, _ in shard_numbers([name])}
    return bool(own & series) or not series or name != "model.safetensors"


def _compare_places(
    index: str, files: list[str], scans: Mapping[str, Scan], weights: Weights, findings: Findings
) -> None:
    absent: dict[str, list[str]] = {}
    for name, file in weights.weight_map.items():
        if file in scans and file not in weights.lost:
            header = scans[file].header
            if header is not None and name not in header.tensors:
                absent.setdefault(file, []).append(name)
    for file, names in absent.items():
        message = f"{index} says that {printable(file)} holds {listed(names)}, but it doesn't."
        findings.add("weights.index_mismatch", index, message, _FIX_INDEX)
    unlisted: dict[str, list[str]] = {}
    for file in set(weights.weight_map.values()) & set(files):
        header = scans[file].header
        for name in header.tensors if header is not None else ():
            if weights.weight_map.get(name) != file:
                unlisted.setdefault(file, []).append(name)
    for file, names in sorted(unlisted.items()):
        message = f"{printable(file)} holds {listed(names)}, which {index} doesn't place there."
        findings.add("weights.index_mismatch", index, message, _FIX_INDEX)


def _check_total(index: str, document: dict[str, Any], weights: Weights, findings: Findings) -> None:
    """Many published indexes state a total that is wrong, so this only informs."""
    metadata = document.get("metadata")
    total = metadata.get("total_size") if isinstance(metadata, dict) else None
    actual = sum(tensor.end - tensor.begin for tensor in weights.tensors.values())
    if type(total) is int and not weights.lost and total != actual:
        message = f"{index} states {total:,} bytes in total; the tensors have {actual:,}."
        findings.add("weights.index_size", index, message, "Nothing to do: engines ignore the number.")
