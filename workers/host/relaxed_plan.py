"""A wheel's own requirements, loosened where its pins can't be met.

A wheel pins what it was built with (`torch==2.11.0+cpu`). Where no index has exactly that, the same release in another
build mostly works, and so does a neighbour in the same series; the self-test has the last word, and what was loosened is
kept with the engine.
"""

import re
import zipfile
from collections.abc import Collection, Sequence
from email.parser import HeaderParser
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import Specifier, SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from workers.step_payloads import Loosened

_DEPENDS = re.compile(r"^\s*(?P<parent>\S+) \S+ depends on (?P<requirement>.+?)\s*$")
_NOT_FOUND = re.compile(r"satisfies the requirement (?P<requirement>.+?) \(from (?P<parents>[^)]*)\)")
_CONSTRAINT = re.compile(r"The user requested(?: \(constraint\))? (?P<requirement>\S.*?)\s*$")


def unmet_requirements(lines: Sequence[str], distribution: str) -> list[str]:
    """The requirements of `distribution` that pip's last lines say can't be met, as pip writes them, without markers."""
    found: list[str] = []
    for line in lines:
        depends, missing = _DEPENDS.match(line), _NOT_FOUND.search(line)
        if depends and canonicalize_name(depends["parent"]) == canonicalize_name(distribution):
            found.append(depends["requirement"].partition(";")[0].strip())
        elif missing and canonicalize_name(distribution) in canonicalize_name(missing["parents"]):
            found.append(missing["requirement"].strip())
    return list(dict.fromkeys(found))


def named_packages(lines: Sequence[str]) -> set[str]:
    """Every package that pip's last lines name in a conflict or as not found."""
    names: set[str] = set()
    for line in lines:
        for pattern in (_DEPENDS, _NOT_FOUND, _CONSTRAINT):
            if match := pattern.search(line):
                names.add(_name_of(match["requirement"]))
    return names - {""}


class RelaxedPlan:
    """The requirements of one wheel that hold on this machine, each as loose as it had to become."""

    def __init__(self, requirements: Sequence[Requirement], *, without: Collection[str] = ()) -> None:
        skipped = {canonicalize_name(name) for name in without}
        self._original = [one for one in requirements if canonicalize_name(one.name) not in skipped]
        self._loosened: dict[int, SpecifierSet] = {}

    @classmethod
    def of_wheel(cls, wheel: Path, *, without: Collection[str] = ()) -> "RelaxedPlan":
        """Read a wheel's metadata; requirements of extras and of other machines are left out."""
        with zipfile.ZipFile(wheel) as archive:
            name = next(name for name in archive.namelist() if re.fullmatch(r"[^/]+\.dist-info/METADATA", name))
            headers = HeaderParser().parsestr(archive.read(name).decode("utf-8", errors="replace"))
        found = []
        for text in headers.get_all("Requires-Dist") or []:
            try:
                requirement = Requirement(text)
            except InvalidRequirement:
                continue  # pip's own resolver has read the same line before and said what it thinks of it
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                found.append(requirement)
        return cls(found, without=without)

    def loosen(self, names: Collection[str]) -> list[Loosened]:
        """Make the exact pins among `names` one step looser; returns what changed, empty if nothing can be loosened."""
        wanted = {canonicalize_name(name) for name in names}
        changed = []
        for number, requirement in enumerate(self._original):
            if canonicalize_name(requirement.name) not in wanted:
                continue
            looser = _looser(self._loosened.get(number, requirement.specifier))
            if looser is not None:
                self._loosened[number] = looser
                changed.append(self._told(number))
        return changed

    @property
    def loosened(self) -> list[Loosened]:
        """Everything that was loosened."""
        return [self._told(number) for number in sorted(self._loosened)]

    def lines(self) -> list[str]:
        """The lines of a requirements file."""
        return [self._line(number) for number in range(len(self._original))]

    def _told(self, number: int) -> Loosened:
        requirement = self._original[number]
        return Loosened(pin=f"{requirement.name}{requirement.specifier}", instead=self._line(number))

    def _line(self, number: int) -> str:
        requirement = self._original[number]
        extras = f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""
        return f"{requirement.name}{extras}{self._loosened.get(number, requirement.specifier)}"


def _looser(specifiers: SpecifierSet) -> SpecifierSet | None:
    """`==2.11.0+cpu` becomes `==2.11.0`, that becomes `>=2.11,<2.12`; anything else stays as it is."""
    pins = list(specifiers)
    if len(pins) != 1 or pins[0].operator != "==" or pins[0].version.endswith(".*"):
        return None
    try:
        version = Version(pins[0].version)
    except InvalidVersion:
        return None
    if version.local:
        return SpecifierSet(str(Specifier(f"=={version.public}")))
    if version.is_prerelease:
        return None
    return SpecifierSet(f">={version.major}.{version.minor},<{version.major}.{version.minor + 1}")


def _name_of(requirement: str) -> str:
    match = re.match(r"[A-Za-z0-9][A-Za-z0-9._-]*", requirement)
    return str(canonicalize_name(match[0])) if match else ""
