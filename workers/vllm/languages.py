"""Which script, and roughly which language, a text is written in.

Enough to say "Chinese was asked for and this is English"; not a language detector. Scripts decide first; for the
Latin-script languages below the little words (articles, prepositions) decide, and only when there are enough of them.
"""

import re
import unicodedata
from functools import lru_cache

_SCRIPT_OF_LANGUAGE: dict[str, tuple[str, ...]] = {
    "zh": ("CJK",),
    "ja": ("HIRAGANA", "KATAKANA", "CJK"),
    "ko": ("HANGUL",),
    "ru": ("CYRILLIC",),
    "uk": ("CYRILLIC",),
    "el": ("GREEK",),
    "ar": ("ARABIC",),
    "fa": ("ARABIC",),
    "he": ("HEBREW",),
    "th": ("THAI",),
    "hi": ("DEVANAGARI",),
    "bn": ("BENGALI",),
    "ta": ("TAMIL",),
} | dict.fromkeys(("en", "de", "fr", "es", "pt", "it", "nl", "pl", "tr", "vi", "id", "sv"), ("LATIN",))
_SCRIPTS = frozenset(script for scripts in _SCRIPT_OF_LANGUAGE.values() for script in scripts) | {"ARMENIAN"}
_LITTLE_WORDS_OF_LANGUAGE = {
    "en": "the of and to is in that it for was are with this you as be have not on from by",
    "de": "der die das und ist nicht ein eine mit für auf den von zu sich dem im auch werden wird",
    "fr": "le la les des et est une pour que qui dans du pas sur avec ce il au sont nous",
    "es": "el la los las y es una por que en del con para se como más su al son lo",
    "pt": "o os as e é uma por que em do da com para se como mais não ao são no",
    "it": "il la gli le e è una per che di del della con non si come più sono nel al",
    "nl": "de het een en is van in dat niet met voor op zijn te aan ook wordt er door bij",
}
_LITTLE_WORDS = {language: frozenset(words.split()) for language, words in _LITTLE_WORDS_OF_LANGUAGE.items()}
_NOT_PROSE = re.compile(r"```.*?(?:```|\Z)|`[^`\n]*`|https?://\S+|<think>.*?</think>", re.DOTALL)


@lru_cache(maxsize=4096)
def _script(character: str) -> str | None:
    name = unicodedata.name(character, "").partition(" ")[0]
    return name if name in _SCRIPTS else None


def scripts_of(text: str) -> list[str]:
    """The script of each letter of `text` in order (Unicode's names, `CJK` for Han); other characters are left out."""
    return [script for script in map(_script, text) if script is not None]


def is_in_language(text: str, language: str) -> bool | None:
    """Whether `text` is in `language` (a BCP 47 tag; only its first part counts); None if that can't be told.

    It can't be told for a text with fewer than two letters, or for a language that isn't in the tables. Code blocks
    and addresses don't count: an answer in Chinese may be mostly Python.
    """
    wanted = language.lower().replace("_", "-").partition("-")[0]
    prose = _NOT_PROSE.sub(" ", text)
    scripts = scripts_of(prose)
    expected = _SCRIPT_OF_LANGUAGE.get(wanted)
    if expected is None or len(scripts) < 2:
        return None
    if not _has_script(scripts, wanted, expected):
        return False
    if expected == ("LATIN",) and wanted in _LITTLE_WORDS:
        return _little_words_agree(prose, wanted)
    return True


def _has_script(scripts: list[str], wanted: str, expected: tuple[str, ...]) -> bool:
    # One Han character carries about as much as a short word, so mixed text is weighed by words, not letters.
    weight = {"CJK": 4, "HANGUL": 2, "HIRAGANA": 2, "KATAKANA": 2}
    total = sum(weight.get(script, 1) for script in scripts)
    share = sum(weight.get(script, 1) for script in scripts if script in expected) / total
    kana = sum(script in ("HIRAGANA", "KATAKANA") for script in scripts) / len(scripts)
    if wanted == "zh" and kana > 0.1:
        return False
    if wanted == "ja" and kana == 0 and len(scripts) > 12:
        return False
    return share >= 0.5


def _little_words_agree(prose: str, wanted: str) -> bool:
    words = re.findall(r"[^\W\d_]+", prose.lower())
    counts = {language: sum(word in little for word in words) for language, little in _LITTLE_WORDS.items()}
    most = max(counts.values())
    # Under four little words any decision would be a guess: a name, a number, a title.
    return most < 4 or most < 2 * counts[wanted] + 2
