"""What addresses and forms give, read strictly; and what goes into tables that people open elsewhere."""

LONGEST_NUMBER_DIGITS = 18
"""Every number of so many digits fits into the databases' 64 bits."""
_FORMULA_BEGINS = ("=", "+", "-", "@", "\t", "\r")


def whole_number(text: str, *, digits: int = LONGEST_NUMBER_DIGITS) -> int | None:
    """A number from 0 on, such as a primary key, written in at most so many ASCII digits; None for anything else."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= digits else None


def harmless(cell: object) -> object:
    """A cell of a CSV file: a spreadsheet would run a text that begins like a formula, and names and reasons are free text."""
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(_FORMULA_BEGINS) else cell
