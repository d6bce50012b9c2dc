"""Characters that change the text around them where they are shown. No IO.

    U+0000 … 001F, 007F … 009F     controls: they end lines of logs and steer terminals
    U+2028, U+2029                 end lines, too
    U+202A … 202E, 2066 … 2069     turn the direction of what follows: a name looks like another one

Names that are made have none of them; a name that is there already is shown with them written out.
"""

import re
from typing import Final

_CONTROLLING: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
_LINES: Final = frozenset("\n\t")


def controlling(text: str) -> str | None:
    """The first of these characters in *text*, as `U+000A`; None: there is none."""
    if text.isprintable():
        return None
    match = _CONTROLLING.search(text)
    return None if match is None else f"U+{ord(match[0]):04X}"


def visible(text: str, *, lines: bool = False) -> str:
    """*text* with these written as in Python, and in $'…' of shells: `\\x1b`, `\\u202e`. *lines*: it may have some."""
    if text.isprintable():
        return text
    return _CONTROLLING.sub(lambda match: match[0] if lines and match[0] in _LINES else _visible_form(match[0]), text)


def _visible_form(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
