"""What an examination of a cluster says. No IO."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple

# Names that one finding lists.
_NAMES_MAX: Final = 5


class Level(IntEnum):
    INFO = 0
    WARNING = 1
    ERROR = 2


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that the operator should know."""

    level: Level
    where: str
    text: str
    way_out: str = ""


class Unasked(NamedTuple):
    """A question that got no answer, and why."""

    what: str
    why: str


def listed(names: Sequence[object]) -> str:
    """The first names, and dots for the others."""
    return ", ".join(map(str, names[:_NAMES_MAX])) + (", …" if len(names) > _NAMES_MAX else "")


def counted(count: int, singular: str, plural: str) -> str:
    """The number with its noun."""
    return f"{count} {singular if count == 1 else plural}"


def exit_code(findings: Sequence[Finding]) -> int:
    """0 for nothing above INFO, 1 for warnings, 2 for errors."""
    return max((int(finding.level) for finding in findings), default=0)
