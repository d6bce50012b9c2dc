"""Lists of topics as clients ask for them: which names match, and a hash to see whether a list has changed. No IO."""

import re
from collections.abc import Iterable
from typing import Final

from broker.names import parse_topic
from magnetar_core.bookkeeper.wire.checksum import crc32c

# Only literal text and `.*` is evaluated here. A client's expression may take exponential time in a backtracking
# engine, and would stop every other client meanwhile; what is not filtered here, the client filters.
_PLAIN: Final = re.compile(r"(?:\.\*|[A-Za-z0-9_/:%=~@,&!-]|\\[.\-/])*")
_PIECE: Final = re.compile(r"\.\*|\\?[^\\]")


def filter_topics(topics: Iterable[str], pattern: str, characters_max: int) -> list[str] | None:
    """The topics that match *pattern* (with or without the domain; partitions count as their topic), or None if the
    pattern is not one that is evaluated here, or longer than *characters_max* (without the domain)."""
    pattern = pattern.partition("://")[2] or pattern
    if len(pattern) > characters_max or _PLAIN.fullmatch(pattern) is None:
        return None
    texts = [""]
    for piece in _PIECE.findall(pattern):
        if piece == ".*":
            texts.append("")
        else:
            texts[-1] += piece[-1]
    return [topic for topic in topics if _matches(_bare(topic), texts)]


def _bare(topic: str) -> str:
    return parse_topic(topic).base.full.partition("://")[2]


def _matches(name: str, texts: list[str]) -> bool:
    """Whether *name* is *texts* with anything between them."""
    first, last = texts[0], texts[-1]
    if len(texts) == 1:
        return name == first
    if not name.startswith(first) or not name.endswith(last) or len(name) < len(first) + len(last):
        return False
    at, end = len(first), len(name) - len(last)
    for text in texts[1:-1]:
        start = name.find(text, at, end)
        if start < 0:
            return False
        at = start + len(text)
    return True


class Matching:
    """The topics of a namespace that match one pattern, for all that watch it: a list that has changed is looked
    through once for them (10,000 names take 30 ms of the loop)."""

    def __init__(self, pattern: str, characters_max: int) -> None:
        self._pattern = pattern
        self._characters_max = characters_max
        self._topics: list[str] | None = None
        self._matches: dict[str, None] | None = None

    @property
    def is_evaluated(self) -> bool:
        """Whether the pattern is one that is evaluated here."""
        return filter_topics((), self._pattern, self._characters_max) is not None

    def matches_of(self, topics: list[str]) -> dict[str, None] | None:
        """What `filter_topics` returns. Nobody changes it, nor *topics*."""
        if topics is not self._topics:
            matches = filter_topics(topics, self._pattern, self._characters_max)
            self._topics, self._matches = topics, None if matches is None else dict.fromkeys(matches)
        return self._matches


def topics_hash(topics: Iterable[str]) -> str:
    """CRC-32C of the sorted names, as Apache writes it (eight hexadecimal digits, lowest byte first)."""
    return crc32c(",".join(sorted(topics)).encode()).to_bytes(4, "little").hex()
