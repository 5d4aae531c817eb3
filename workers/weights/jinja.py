"""Recognises whether a chat template is well-formed Jinja, with the standard library alone.

An engine compiles the template at the first chat, so a broken one fails every chat of a server that says it is healthy.
This reads the grammar of Jinja 2 (statements, expressions, the loop controls and the `generation` block that transformers
adds), and leaves names, filters and types to the engine.
"""

import re
from collections.abc import Iterator

_OPEN = re.compile(r"\{\{|\{%|\{#")
_RAW_END = re.compile(r"\{%[-+]?\s*endraw\s*[-+]?%\}")
_TOKEN = re.compile(
    r"\s*(?:(?P<number>\d[\d_]*(?:\.\d+)?(?:[eE][+-]?\d+)?|0[xXoObB][0-9a-fA-F_]+)|(?P<name>[^\W\d]\w*)|"
    r"(?P<string>'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")|(?P<op>//|\*\*|==|!=|<=|>=|[-+*/%~<>=.,:|()\[\]{}]))",
    re.DOTALL,
)
# Statement -> words that may appear inside it before its end.
_BLOCKS: dict[str, tuple[str, ...]] = {
    "if": ("elif", "else"),
    "for": ("else",),
    "macro": (),
    "call": (),
    "filter": (),
    "set": (),
    "with": (),
    "autoescape": (),
    "block": (),
    "generation": (),
    "trans": ("pluralize",),
}
_SINGLE = frozenset({"include", "import", "from", "extends", "do", "break", "continue", "debug"})
_COMPARISONS = frozenset({"==", "!=", "<", "<=", ">", ">="})
_DEEPEST = 150
MOST_LETTERS = 2_000_000


class TemplateError(ValueError):
    """What is wrong with a template, with the line it is on."""


def check_template(source: str) -> None:
    """Raise TemplateError if the template can't be compiled."""
    if len(source) > MOST_LETTERS:
        raise TemplateError(f"is {len(source):,} letters long")
    open_blocks: list[tuple[str, int]] = []
    for kind, text, line in _pieces(source):
        tokens = _Tokens(text, line)
        if kind == "{{":
            tokens.expression_list()
            tokens.end()
        else:
            _statement(tokens, open_blocks)
    if open_blocks:
        word, line = open_blocks[-1]
        raise TemplateError(f"line {line}: the '{word}' block is never closed with 'end{word}'")


def _pieces(source: str) -> Iterator[tuple[str, str, int]]:
    """The inner text of each expression and statement, with its line."""
    position = 0
    while match := _OPEN.search(source, position):
        line = source.count("\n", 0, match.start()) + 1
        kind = match[0]
        if kind == "{#":
            end = source.find("#}", match.end())
            if end < 0:
                raise TemplateError(f"line {line}: a comment is never closed with '#}}'")
            position = end + 2
            continue
        close = "}}" if kind == "{{" else "%}"
        end = _find_end(source, match.end(), close, line)
        inner = source[match.end() : end].removeprefix("-").removeprefix("+")
        inner = inner[:-1] if inner[-1:] in {"-", "+"} else inner
        position = end + 2
        if kind == "{%" and inner.strip() == "raw":
            raw = _RAW_END.search(source, position)
            if raw is None:
                raise TemplateError(f"line {line}: the 'raw' block is never closed with 'endraw'")
            position = raw.end()
            continue
        yield kind, inner, line


_SKIP = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|[{}%\[\]()'\"]", re.DOTALL)


def _find_end(source: str, start: int, close: str, line: int) -> int:
    """Position of the closing mark; braces of a dictionary and strings are stepped over."""
    depth = 0
    for match in _SKIP.finditer(source, start):
        piece, at = match[0], match.start()
        if depth == 0 and source.startswith(close, at):
            return at
        if piece in {"{", "[", "("}:
            depth += 1
        elif piece in {"}", "]", ")"}:
            depth = max(0, depth - 1)
        elif piece in {"'", '"'}:
            raise TemplateError(f"line {line}: a string is never closed")
    raise TemplateError(f"line {line}: a tag is never closed with '{close}'")


def _statement(tokens: "_Tokens", blocks: list[tuple[str, int]]) -> None:
    word = tokens.name("a statement")
    if word.startswith("end") and (word[3:] in _BLOCKS):
        if not blocks or blocks[-1][0] != word[3:]:
            inside = f"inside '{blocks[-1][0]}' of line {blocks[-1][1]}" if blocks else "without a beginning"
            raise TemplateError(f"line {tokens.line}: '{word}' {inside}")
        blocks.pop()
        return  # A name may follow `endblock`.
    if word in {"elif", "else", "pluralize"}:
        if not blocks or word not in _BLOCKS[blocks[-1][0]]:
            raise TemplateError(f"line {tokens.line}: '{word}' outside of 'if' or 'for'")
        if word == "elif":
            tokens.expression_list()
        tokens.end()
    elif word in _BLOCKS:
        if _begin(word, tokens):
            blocks.append((word, tokens.line))
    elif word not in _SINGLE:
        raise TemplateError(f"line {tokens.line}: unknown statement '{word[:40]}'")


def _begin(word: str, tokens: "_Tokens") -> bool:
    """Read a block's head; whether it needs an end (a `set` with a value doesn't)."""
    if word == "for":
        tokens.targets()
        tokens.keyword("in")
        tokens.expression(ternary=False)
        if tokens.take("if"):
            tokens.expression()
        tokens.take("recursive")
    elif word == "set":
        tokens.targets()
        while tokens.take("|"):
            tokens.filter_or_test()
        if not tokens.take("="):
            tokens.end()
            return True
        tokens.expression_list()
        tokens.end()
        return False
    elif word == "if":
        tokens.expression_list()
    elif word == "macro":
        tokens.name("a macro's name")
        tokens.parameters()
    else:
        return True
    tokens.end()
    return True


class _Tokens:
    """A recursive reader of one tag's expression."""

    def __init__(self, text: str, line: int) -> None:
        self.line = line
        self._items: list[tuple[str, str]] = []
        position = 0
        stripped = text.rstrip()
        while position < len(stripped):
            match = _TOKEN.match(stripped, position)
            if match is None:
                raise TemplateError(f"line {line}: unexpected {stripped[position : position + 20].strip()!r}")
            self._items.append((str(match.lastgroup), match[str(match.lastgroup)]))
            position = match.end()
        self._at = 0
        self._depth = 0

    def _peek(self, ahead: int = 0) -> tuple[str, str]:
        at = self._at + ahead
        return self._items[at] if at < len(self._items) else ("end", "")

    def _fail(self, wanted: str) -> TemplateError:
        found = self._peek()[1] or "the end of the tag"
        return TemplateError(f"line {self.line}: expected {wanted}, found {found[:40]!r}")

    def take(self, text: str) -> bool:
        """Step over a word or mark if it comes next."""
        kind, found = self._peek()
        if kind in {"name", "op"} and found == text:
            self._at += 1
            return True
        return False

    def keyword(self, text: str) -> None:
        """Require a word or mark."""
        if not self.take(text):
            raise self._fail(repr(text))

    def name(self, what: str) -> str:
        """Require a name."""
        kind, text = self._peek()
        if kind != "name":
            raise self._fail(what)
        self._at += 1
        return text

    def end(self) -> None:
        """Require that nothing is left."""
        if self._at < len(self._items):
            raise self._fail("the end of the tag")

    def targets(self) -> None:
        """Names that a loop or an assignment binds: `a`, `a, b`, `(a, b)`, `ns.a`."""
        if self.take("("):
            self.targets()
            self.keyword(")")
        else:
            self.name("a name")
            while self.take("."):
                self.name("a name")
        if self.take(",") and self._peek()[1] not in {"in", "=", ")"}:
            self.targets()

    def parameters(self) -> None:
        """A macro's parameters with their defaults."""
        self.keyword("(")
        while not self.take(")"):
            self.name("a parameter")
            if self.take("="):
                self.expression()
            if not self.take(",") and self._peek()[1] != ")":
                raise self._fail("',' or ')'")

    def expression_list(self) -> None:
        """One expression, or several as a tuple."""
        self.expression()
        while self.take(","):
            if self._peek()[0] == "end":
                return
            self.expression()

    def expression(self, *, ternary: bool = True) -> None:
        """`value if test else other`; `for x in y if z` leaves its `if` alone."""
        self._depth += 1
        if self._depth > _DEEPEST:
            raise TemplateError(f"line {self.line}: an expression is nested too deeply")
        self._or()
        while ternary and self.take("if"):
            self._or()
            if self.take("else"):
                self.expression()
        self._depth -= 1

    def _or(self) -> None:
        self._not()
        while self._peek() in {("name", "or"), ("name", "and")}:
            self._at += 1
            self._not()

    def _not(self) -> None:
        while self.take("not"):
            pass
        self._sum()
        while True:
            kind, text = self._peek()
            if (kind == "op" and text in _COMPARISONS) or (kind, text) == ("name", "in"):
                self._at += 1
            elif kind == "name" and text == "not" and self._peek(1) == ("name", "in"):
                self._at += 2
            else:
                return
            self._sum()

    def _sum(self) -> None:
        self._operand()
        while self._peek()[0] == "op" and self._peek()[1] in {"+", "-", "*", "/", "//", "%", "**", "~"}:
            self._at += 1
            self._operand()

    def _operand(self) -> None:
        while self.take("-") or self.take("+"):
            pass
        kind, text = self._peek()
        if kind == "string":
            while self._peek()[0] == "string":
                self._at += 1
        elif kind == "number" or (kind == "name" and text not in {"if", "else", "in", "is", "and", "or"}):
            self._at += 1
        elif text in {"(", "["}:
            self._at += 1
            self._sequence(")" if text == "(" else "]")
        elif text == "{":
            self._at += 1
            self._dictionary()
        else:
            raise self._fail("a value")
        self._after()

    def _sequence(self, close: str) -> None:
        while not self.take(close):
            self.expression()
            if not self.take(",") and self._peek()[1] != close:
                raise self._fail(f"',' or '{close}'")

    def _dictionary(self) -> None:
        while not self.take("}"):
            self.expression()
            self.keyword(":")
            self.expression()
            if not self.take(",") and self._peek()[1] != "}":
                raise self._fail("',' or '}'")

    def _after(self) -> None:
        """Attributes, subscripts, calls, filters and tests behind a value."""
        while True:
            if self.take("."):
                kind, _ = self._peek()
                if kind not in {"name", "number"}:
                    raise self._fail("an attribute")
                self._at += 1
            elif self.take("["):
                self._subscript()
            elif self.take("("):
                self._arguments()
            elif self.take("|"):
                self.filter_or_test()
            elif self.take("is"):
                self.take("not")
                self.filter_or_test(test=True)
            else:
                return

    def _subscript(self) -> None:
        while not self.take("]"):
            if not self.take(":") and not self.take(","):
                self.expression()

    def _arguments(self) -> None:
        while not self.take(")"):
            if not self.take("*"):
                self.take("**")
            if self._peek()[0] == "name" and self._peek(1) == ("op", "="):
                self._at += 2
            self.expression()
            if not self.take(",") and self._peek()[1] != ")":
                raise self._fail("',' or ')'")

    def filter_or_test(self, *, test: bool = False) -> None:
        """A filter's or test's name with its arguments; a test's single argument needs no brackets."""
        self.name("the name of a filter or test")
        while self.take("."):
            self.name("the name of a filter or test")
        if self.take("("):
            self._arguments()
        elif test and self._peek()[0] in {"string", "number"}:
            self._at += 1
        elif (
            test and self._peek()[0] == "name" and self._peek()[1] not in {"and", "or", "if", "else", "is", "not", "in"}
        ):
            self._operand()
