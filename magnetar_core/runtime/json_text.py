"""Parsing of JSON that came from outside. No IO.

Python's parser accepts NaN and Infinity, which other parsers refuse. On deep nesting it raises an error that is no
ValueError, and a value it just accepts may be too deep to be written again.
"""

import json
from typing import Any, Final, NoReturn

# Schemas nest some ten levels, policies five. The limit is far below that of Python's parser and writer.
NESTING_MAX: Final = 100


def parse_json(text: str | bytes) -> Any:
    """The value. Raises ValueError."""
    try:
        value = json.loads(text, parse_constant=_refuse)
    except RecursionError:
        raise ValueError(f"nested deeper than {NESTING_MAX} levels") from None
    openings = (text.count("{") + text.count("[")) if isinstance(text, str) else text.count(b"{") + text.count(b"[")
    if openings > NESTING_MAX and _is_deep(value):
        raise ValueError(f"nested deeper than {NESTING_MAX} levels")
    return value


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no number in JSON")


def _is_deep(value: Any) -> bool:
    level = [value]
    for _ in range(NESTING_MAX):
        level = [
            item
            for one in level
            if isinstance(one, dict | list)
            for item in (one.values() if isinstance(one, dict) else one)
            if isinstance(item, dict | list)
        ]
        if not level:
            return False
    return True
