"""The Chinese catalogue: complete, with the placeholders and tags of the original, and compiled as committed."""

import ast
import gettext
import re
from pathlib import Path
from typing import NamedTuple

import pytest
from django.conf import settings
from django.utils import translation

CATALOGUE = Path(settings.LOCALE_PATHS[0]) / "zh_Hans" / "LC_MESSAGES" / "django.po"
KEEP = re.compile(r"%\(\w+\)[.\d]*[a-z]|%%|(?<!%)%[.\d]*[dfs](?![A-Za-z])|<[^>]+>|--[a-z-]+|\?before=")


class Entry(NamedTuple):
    """One message of a catalogue."""

    context: str | None
    source: str
    plural: str | None
    text: str
    fuzzy: bool


def read(path: Path) -> list[Entry]:
    """The messages of a .po file: as much of the format as msgmerge writes."""
    entries = []
    for block in path.read_text(encoding="utf-8").split("\n\n"):
        fields: dict[str, str] = {}
        name, fuzzy = "", False
        for line in block.splitlines():
            if line.startswith("#"):
                fuzzy = fuzzy or (line.startswith("#,") and "fuzzy" in line)
                continue
            if not line.startswith('"'):
                name, line = line.split(" ", 1)
                fields[name] = ""
            fields[name] += ast.literal_eval(line)
        if "msgid" in fields:
            text = fields.get("msgstr", fields.get("msgstr[0]", ""))
            entries.append(Entry(fields.get("msgctxt"), fields["msgid"], fields.get("msgid_plural"), text, fuzzy))
    return entries


def test_every_message_is_translated_with_its_placeholders() -> None:
    entries = [entry for entry in read(CATALOGUE) if entry.source]
    assert len(entries) > 900
    assert not [entry.source for entry in entries if entry.fuzzy or not entry.text]
    for entry in entries:
        assert sorted(KEEP.findall(entry.plural or entry.source)) == sorted(KEEP.findall(entry.text)), entry.source
        assert entry.source.startswith(" ") == entry.text.startswith(" "), entry.source


def test_words_are_marked_by_names_that_makemessages_knows() -> None:
    # An alias other than `_` is no keyword of xgettext's: what it marks would never reach the catalogue.
    imports = [
        (path, name)
        for path in (settings.BASE_DIR / "console").rglob("*.py")
        for line in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(line, ast.ImportFrom) and line.module == "django.utils.translation"
        for name in line.names
    ]
    assert len(imports) > 100
    assert not [f"{path}: {name.asname}" for path, name in imports if name.asname not in (None, "_")]


def test_the_compiled_catalogue_is_the_one_in_the_source() -> None:
    written: dict[str | tuple[str, int], str] = {}
    for entry in read(CATALOGUE):
        key = entry.source if entry.context is None else f"{entry.context}\x04{entry.source}"
        written[key if entry.plural is None else (key, 0)] = entry.text
    with CATALOGUE.with_suffix(".mo").open("rb") as file:
        compiled = gettext.GNUTranslations(file)._catalog  # type: ignore[attr-defined]
    assert compiled == written


@pytest.mark.parametrize(
    ("source", "text"), [("Deployments", "部署"), ("Verify files", "验证文件"), ("just now", "刚刚")]
)
def test_django_finds_the_catalogue(source: str, text: str) -> None:
    with translation.override("zh-hans"):
        assert translation.gettext(source) == text
    with translation.override("en"):
        assert translation.gettext(source) == source
