"""Verifies a model directory before a launch: everything an engine would only notice half a minute later, or never.

`verify_directory` is the whole step. It needs neither network nor engine, reads each byte once, and never raises for anything
that a directory can contain: whatever is wrong becomes a finding.
"""

import os
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from workers.weights.checkpoint import Checkpoint
from workers.weights.digests import Digests, Expected, collect, compare, is_checksum_file
from workers.weights.findings import Finding, Findings, Severity
from workers.weights.layout import Entry, Layout, check_path, read_layout
from workers.weights.scan import Job, Progress, Scan, scan_files
from workers.weights.tokenizer import TEMPLATE_FOLDER, WANTED

_JSON_WANTED = (
    "config.json",
    "adapter_config.json",
    "generation_config.json",
    "hf_quant_config.json",
    "quantize_config.json",
    "quant_config.json",
    "block_index_map.json",
)
_WEIGHT_ENDINGS = (".safetensors", ".bin", ".pt", ".pth", ".gguf")


@dataclass(frozen=True, slots=True)
class FileRecord:
    """One file as it was when it was verified; size, mtime and inode tell later whether it was touched since."""

    path: str
    size: int
    mtime_ns: int
    inode: int
    sha256: str | None


@dataclass(frozen=True, slots=True)
class Verification:
    """The outcome: all findings (errors first), the numbers for a result card, and the manifest of the files."""

    path: str
    findings: tuple[Finding, ...]
    summary: Mapping[str, Any]
    files: tuple[FileRecord, ...] = field(default=())

    @property
    def ok(self) -> bool:
        """Whether the model may be launched: no finding of severity error."""
        return not any(finding.severity is Severity.ERROR for finding in self.findings)

    def as_json(self) -> dict[str, Any]:
        """The documented JSON object of `slipway verify --json`."""
        return {
            "path": self.path,
            "ok": self.ok,
            "summary": dict(self.summary),
            "findings": [finding.as_json() for finding in self.findings],
        }

    def manifest(self) -> list[dict[str, Any]]:
        """The files as plain data, to be kept with the copy and handed to `changed_files` and `previous_manifest`."""
        names = FileRecord.__slots__
        return [{name: getattr(record, name) for name in names} for record in self.files]


def verify_directory(
    path: str | os.PathLike[str],
    *,
    checksums: Iterable[Expected] = (),
    hash_files: bool = True,
    read_values: bool = False,
    previous_manifest: Iterable[FileRecord] = (),
    supported_architectures: Iterable[str] | None = None,
    progress: Progress | None = None,
) -> Verification:
    """Verify the model in the directory `path`.

    `checksums` are digests from elsewhere, such as the hub's; those in the directory are found by themselves.
    `hash_files=False` reads headers only. `read_values` also looks at the numbers. `previous_manifest` is the outcome
    of an earlier verification of the same revision. `supported_architectures` is the engine's list, if it is known.
    `progress(bytes done, bytes in total, file)` is called from worker threads.
    """
    started = time.monotonic()
    root, findings = Path(path), Findings()
    if not os.fspath(path):
        findings.add("path.not_found", None, "The path is empty.", "Give the model directory's path.")
    if findings.has("path.not_found") or not check_path(root, findings):
        summary = _summary(findings, started, hashed=False)
        return Verification(str(path), findings.sorted(), summary)
    layout = read_layout(root, findings)
    digests = _expected_digests(layout, findings, checksums, previous_manifest)
    jobs = [_job(entry, digests, hash_files=hash_files, values=read_values) for entry in layout.entries.values()]
    scans = scan_files(jobs, progress=progress)
    checkpoint = Checkpoint(layout, scans, findings, deep=hash_files)
    checkpoint.check(supported_architectures=supported_architectures)
    actual = {name: scan.digests for name, scan in scans.items()}
    compare(digests, actual, layout, findings, hashed=hash_files)
    summary = _summary(findings, started, hashed=hash_files, layout=layout, checkpoint=checkpoint)
    return Verification(str(path), findings.sorted(), summary, _records(layout, scans))


def changed_files(root: str | os.PathLike[str], manifest: Iterable[FileRecord]) -> tuple[str, ...]:
    """Files of a manifest that are gone or were touched since (size, mtime or inode differ), and weights that are new.

    This opens no file, so a launch can ask it every time.
    """
    layout = read_layout(Path(root), Findings())
    known = {record.path: record for record in manifest}
    changed = [name for name in layout.entries if name not in known and name.endswith((*_WEIGHT_ENDINGS, ".json"))]
    for name, record in known.items():
        entry = layout.entries.get(name)
        if entry is None or (entry.size, entry.mtime_ns, entry.inode) != (record.size, record.mtime_ns, record.inode):
            changed.append(name)
    return tuple(sorted(changed))


def _expected_digests(
    layout: Layout, findings: Findings, checksums: Iterable[Expected], manifest: Iterable[FileRecord]
) -> Digests:
    digests = collect(layout, findings)
    by_source: dict[str, list[Expected]] = {}
    for item in checksums:
        by_source.setdefault(item.source, []).append(item)
    for items in by_source.values():
        digests.add(items)
    earlier = [
        Expected(record.path, "sha256", record.sha256, "the last verification")
        for record in manifest
        if record.sha256 is not None
    ]
    digests.add(earlier)
    return digests


def _job(entry: Entry, digests: Digests, *, hash_files: bool, values: bool) -> Job:
    name = entry.name
    algorithms = frozenset({"sha256"} | digests.algorithms(name)) if hash_files else frozenset()
    small = name in WANTED or name in _JSON_WANTED or name.endswith(".safetensors.index.json")
    template = name.startswith(TEMPLATE_FOLDER) and name.endswith(".jinja")
    keep = small or template
    return Job(entry, algorithms, keep=keep, values=values and name.endswith(".safetensors"))


def _records(layout: Layout, scans: Mapping[str, Scan]) -> tuple[FileRecord, ...]:
    return tuple(
        FileRecord(name, entry.size, entry.mtime_ns, entry.inode, scans[name].digests.get("sha256"))
        for name, entry in sorted(layout.entries.items())
        if not is_checksum_file(name)
    )


def _summary(
    findings: Findings,
    started: float,
    *,
    hashed: bool,
    layout: Layout | None = None,
    checkpoint: Checkpoint | None = None,
) -> dict[str, Any]:
    counts = Counter(finding.severity.value for finding in findings.sorted())
    entries = list(layout.entries.values()) if layout is not None else []
    weights = [entry for entry in entries if entry.name.endswith(_WEIGHT_ENDINGS) and "/" not in entry.name]
    facts: dict[str, Any] = {
        "errors": counts["error"],
        "warnings": counts["warning"],
        "infos": counts["info"],
        "codes": findings.counts(),
        "files": len(entries),
        "bytes": sum(entry.size for entry in entries),
        "weight_files": len(weights),
        "weight_bytes": sum(entry.size for entry in weights),
        "hashed": hashed,
        "seconds": round(time.monotonic() - started, 3),
    }
    return facts | (checkpoint.facts() if checkpoint is not None else {})
