"""Published and remembered digests of a model's files, and whether they agree with each other and with the files.

Sources: a checksum file (`SHA256SUMS`, `*.sha256`, `MD5SUMS`, `*.md5`, or one given by hand), the hub cache (a blob is
named by its sha256, or by its git object id if it isn't in LFS), the record that `hf download --local-dir` keeps, and the
manifest of an earlier verification.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from workers.weights.findings import Findings, printable
from workers.weights.layout import Entry, Layout

# Hex digits of a digest tell its algorithm; "git" is the object id of a git blob: sha1 over a short header and the bytes.
_ALGORITHM_BY_LENGTH = {64: "sha256", 32: "md5", 128: "sha512", 40: "sha1"}
_GNU_LINE = re.compile(r"^\\?([0-9a-fA-F]{32,128})(?: [ *]|\t+| +)(.+)$")
_BSD_LINE = re.compile(r"^(?:SHA256|SHA512|SHA1|MD5) ?\((.+)\) ?= ?([0-9a-fA-F]{32,128})$", re.IGNORECASE)
_BARE_LINE = re.compile(r"^([0-9a-fA-F]{32,128})$")
_SUM_FILES = re.compile(
    r"^(sha256sums?|sha512sums?|sha1sums?|md5sums?|checksums?)([._-][\w.-]*)?$|\.(sha256|sha256sum|sha512|md5|md5sum)$",
    re.IGNORECASE,
)
MOST_CHECKSUM_BYTES = 64 << 20
_FIX_MISMATCH = "Download this file again; the rest can stay. If it was changed on purpose, publish its new checksum."


class ChecksumFileError(ValueError):
    """A checksum file that can't be read or holds no checksum."""


@dataclass(frozen=True, slots=True)
class Expected:
    """A digest that some source gives for a file: hex digits in lower case."""

    file: str
    algorithm: str
    digest: str
    source: str


@dataclass(slots=True)
class Digests:
    """All expected digests by file, and the files that a complete list (one that covers a directory) names."""

    by_file: dict[str, list[Expected]] = field(default_factory=dict)
    # Sources that list more than one file: a weight file absent from such a list is worth a word.
    lists: set[str] = field(default_factory=set)

    def add(self, expected: list[Expected]) -> None:
        """Take in what one source says."""
        for item in expected:
            self.by_file.setdefault(item.file, []).append(item)
        if len(expected) > 1:
            self.lists.update(item.source for item in expected)

    def algorithms(self, file: str) -> set[str]:
        """The algorithms that must be computed for a file."""
        return {item.algorithm for item in self.by_file.get(file, ())}


def parse_checksums(text: str, *, source: str, alone_for: str | None = None) -> list[Expected]:
    """Checksums of a `sha256sum`/`md5sum` file (GNU or BSD style), or of a JSON manifest.

    `alone_for` is the file that a line with nothing but a digest speaks of. Raises ChecksumFileError if a line can't be
    understood or there is none.
    """
    if text.lstrip().startswith("{"):
        return _from_json(text, source=source)
    found: list[Expected] = []
    for number, raw in enumerate(text.splitlines(), start=1):
        line = raw.strip("\ufeff \t\r")
        if not line or line.startswith(("#", ";")):
            continue
        name, digest = _line(line, alone_for)
        algorithm = _ALGORITHM_BY_LENGTH.get(len(digest))
        if algorithm is None or not name:
            message = f"line {number} of {source} is no checksum line: {printable(line, most_letters=80)}"
            raise ChecksumFileError(message)
        found.append(Expected(_relative(name), algorithm, digest.lower(), source))
    if not found:
        raise ChecksumFileError(f"{source} holds no checksum")
    return found


def _line(line: str, alone_for: str | None) -> tuple[str, str]:
    if match := _BSD_LINE.match(line):
        return match[1], match[2]
    if match := _GNU_LINE.match(line):
        return match[2].strip(), match[1]
    if alone_for and (match := _BARE_LINE.match(line)):
        return alone_for, match[1]
    return "", ""


def _relative(name: str) -> str:
    parts = [part for part in PurePosixPath(name.replace("\\", "/")).parts if part != "."]
    return "/".join(parts)


def _from_json(text: str, *, source: str) -> list[Expected]:
    """A manifest `{"files": [{"path", "sha256"}]}` or a plain `{path: digest}`."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ChecksumFileError(f"{source} isn't valid JSON: {str(error)[:120]}") from None
    files = document.get("files", document)
    if isinstance(files, list):
        pairs = [(item.get("path"), item.get("sha256")) for item in files if isinstance(item, dict)]
    elif isinstance(files, dict):
        pairs = [(name, item.get("sha256") if isinstance(item, dict) else item) for name, item in files.items()]
    else:
        pairs = []
    found = []
    for name, digest in pairs:
        if digest is None:
            continue
        if not isinstance(name, str) or not isinstance(digest, str) or len(digest) not in _ALGORITHM_BY_LENGTH:
            raise ChecksumFileError(f"{source} holds an entry that is no checksum: {str(name)[:80]!r}")
        found.append(Expected(_relative(name), _ALGORITHM_BY_LENGTH[len(digest)], digest.lower(), source))
    if not found:
        raise ChecksumFileError(f"{source} holds no checksum")
    return found


def read_checksum_file(path: Path, *, source: str, alone_for: str | None = None) -> list[Expected]:
    """Checksums from a file on disk; raises ChecksumFileError when it can't be read or understood."""
    try:
        if path.stat().st_size > MOST_CHECKSUM_BYTES:
            raise ChecksumFileError(f"{source} is larger than {MOST_CHECKSUM_BYTES:,} bytes: no checksum file")
        text = path.read_bytes().decode("utf-8")
    except OSError as error:
        raise ChecksumFileError(f"{source} can't be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ChecksumFileError(f"{source} isn't text") from None
    return parse_checksums(text, source=source, alone_for=alone_for)


def collect(layout: Layout, findings: Findings) -> Digests:
    """Everything the directory itself says about its files' digests."""
    digests = Digests()
    for name, entry in layout.entries.items():
        if _SUM_FILES.search(PurePosixPath(name).name):
            _take_sum_file(name, entry, layout, digests, findings)
        if entry.blob is not None:
            _take_blob(name, entry.blob, digests)
    _take_download_records(layout, digests)
    return digests


def is_checksum_file(name: str) -> bool:
    """Whether a file's name says that it holds checksums."""
    return _SUM_FILES.search(PurePosixPath(name).name) is not None


def _take_sum_file(name: str, entry: Entry, layout: Layout, digests: Digests, findings: Findings) -> None:
    stem = name.rsplit(".", 1)[0]
    alone = stem if stem in layout.entries else None
    try:
        expected = read_checksum_file(Path(entry.path), source=name, alone_for=alone)
    except ChecksumFileError as error:
        findings.add("checksum.file_invalid", name, f"{error}.", "Fetch the checksum file again, or remove it.")
        return
    folder = name.rpartition("/")[0]
    if folder:
        expected = [Expected(f"{folder}/{item.file}", item.algorithm, item.digest, name) for item in expected]
    digests.add(expected)


def _take_blob(name: str, blob: str, digests: Digests) -> None:
    if not re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", blob):
        return
    algorithm = "sha256" if len(blob) == 64 else "git"
    digests.by_file.setdefault(name, []).append(Expected(name, algorithm, blob, "the hub cache"))


def _take_download_records(layout: Layout, digests: Digests) -> None:
    """`hf download --local-dir` notes each file's etag, which is the sha256 of files in LFS.

    Small files are left out on purpose: people edit config.json in such a directory, and that is no damage.
    """
    folder = layout.root / ".cache" / "huggingface" / "download"
    if not folder.is_dir():
        return
    for name in layout.entries:
        try:
            lines = (folder / f"{name}.metadata").read_text(encoding="ascii").split()
        except (OSError, ValueError):
            continue
        if len(lines) >= 2 and re.fullmatch(r"[0-9a-f]{64}", lines[1]):
            digests.by_file.setdefault(name, []).append(Expected(name, "sha256", lines[1], "the hub download record"))


def compare(
    digests: Digests, actual: Mapping[str, Mapping[str, str]], layout: Layout, findings: Findings, *, hashed: bool
) -> None:
    """Report files whose digest isn't the expected one, sources that contradict each other, and files that are gone.

    `actual` maps a file to its computed digests by algorithm; it is empty when nothing was hashed.
    """
    for file, expected in sorted(digests.by_file.items()):
        if file not in layout.entries:
            sources = ", ".join(sorted({item.source for item in expected}))
            message = f"{printable(file)} is listed in {sources} but isn't in the directory."
            findings.add("checksum.mismatch", file, message, "Download the missing file.")
            continue
        _compare_file(file, expected, actual.get(file, {}), findings)
    if digests.by_file and not hashed:
        message = "Checksums are known, but with --fast nothing was hashed."
        findings.add("checksum.not_checked", None, message, "Verify without --fast before a launch.")
    _note_unlisted(digests, layout, findings)


def _compare_file(file: str, expected: list[Expected], actual: Mapping[str, str], findings: Findings) -> None:
    wrong = [item for item in expected if actual.get(item.algorithm, item.digest) != item.digest]
    right = [item for item in expected if actual.get(item.algorithm) == item.digest]
    said: dict[tuple[str, str], list[str]] = {}
    for item in wrong:
        said.setdefault((item.algorithm, item.digest), []).append(item.source)
    for (algorithm, digest), sources in said.items():
        told = _who_says(sources)
        message = f"{printable(file)} has {algorithm} {actual[algorithm]}, but {told} {digest}."
        findings.add("checksum.mismatch", file, message, _FIX_MISMATCH)
    contradiction = any(
        one.algorithm == other.algorithm and one.digest != other.digest for one in expected for other in expected
    )
    if contradiction or (wrong and right):
        told = "; ".join(sorted({f"{item.source}: {item.algorithm} {item.digest}" for item in expected}))
        agrees = ", ".join(sorted({item.source for item in right}))
        verdict = f"The file on disk agrees with {agrees}." if right else "The file on disk agrees with none of them."
        message = f"The sources contradict each other about {printable(file)} ({told}). "
        message += verdict if actual else "The file itself was not hashed."
        fix = "Don't launch until the publisher's checksum is clear; the last verified revision can serve meanwhile."
        findings.add("checksum.sources_disagree", file, message, fix)


def _who_says(sources: Iterable[str]) -> str:
    """`a says`, or `a, b and c say`: the same sum from several sources is one finding."""
    *others, last = dict.fromkeys(sources)
    return f"{', '.join(others)} and {last} say" if others else f"{last} says"


_WATCHED = (".safetensors", ".gguf", ".bin", ".pt", ".pth", ".py", ".json", ".jinja", ".model")


def _note_unlisted(digests: Digests, layout: Layout, findings: Findings) -> None:
    if not digests.lists:
        return
    sources = ", ".join(sorted(digests.lists))
    for name in sorted(layout.entries):
        if name in digests.by_file or "/" in name or is_checksum_file(name) or not name.endswith(_WATCHED):
            continue
        message = f"{printable(name)} is in the directory but not in {sources}."
        findings.add("checksum.file_unlisted", name, message, "Remove it if it doesn't belong to this model.")
