"""Command lines as they may leave the host: what could be a secret is replaced by `***`."""

import re
from collections.abc import Iterable

MASK = "***"

_SECRET_OPTION = re.compile(
    r"^--?(?:[\w-]*-)?(?:api-k(?:e(?:y)?)?|tokens?|secret(?:-key)?|access-key(?:-id)?|password|passwd|credentials?|auth)$",
    re.I,
)
"""`--api-k` is enough for vLLM, which takes unique prefixes. `--max-tokens` and `--tokenizer` are no secrets."""
_COUNTS = re.compile(r"-(?:max|min|num|batched|special|partial|draft|new)-?[\w-]*tokens?$|tokens?-(?:limit|count)$")
_SECRET_NAME = re.compile(r"^[A-Za-z_]*(?:API_KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?|ACCESS_KEY)[A-Za-z_]*$")
_SECRET_WORD = re.compile(r"\b(?:hf_|sk-|ghp_|glpat-|AKIA|xox[bp]-)[A-Za-z0-9_\-]{8,}")
_IN_JSON = re.compile(r"(\"[^\"]*(?:token|key|secret|password)[^\"]*\"\s*:\s*\")[^\"]+(\")", re.I)
_IN_ADDRESS = re.compile(r"(\w+://[^\s/:@]*:)[^\s/@]+(@)")


def masked(argv: Iterable[str]) -> list[str]:
    """The words of a command line without its secrets; one that follows `--api-key` is masked whatever it looks like."""
    words: list[str] = []
    hiding = False
    for word in argv:
        name, equals, _value = word.partition("=")
        if word.startswith("-") and not (hiding and len(word) > 40):
            hiding = _is_secret_option(name) and not equals
            words.append(f"{name}={MASK}" if equals and _is_secret_option(name) else _softly(word))
        elif hiding:
            words.append(MASK)
        elif equals and _SECRET_NAME.match(name):
            words.append(f"{name}={MASK}")
        else:
            words.append(_softly(word))
    return words


def _is_secret_option(name: str) -> bool:
    plain = name.replace("_", "-").lower()
    return bool(_SECRET_OPTION.match(plain)) and not _COUNTS.search(plain)


def _softly(word: str) -> str:
    """What may stand anywhere: tokens by their looks, passwords in addresses, keys in JSON."""
    word = _SECRET_WORD.sub(MASK, word)
    word = _IN_ADDRESS.sub(rf"\1{MASK}\2", word)
    return _IN_JSON.sub(rf"\1{MASK}\2", word)
