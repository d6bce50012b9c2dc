"""Reports of bad ledgers and of lost entries: what one says, how reports are merged, and who may close them. No IO.

    (posted) ──▶ open ──operator──▶ acknowledged ──┐
                  ▲ └───────────────operator───────┴──▶ mended
                  └──────── posted again ──────────────────┘
        (the auditor calls mended what is about a deleted ledger, or what its own workers have repaired since)

Rules:

1. There is one report for each ledger, kind and reporter. Posting it again counts it up, and adds entries to it.
2. A mended report that is posted again is open again: whoever mended it was mistaken. One that is acknowledged stays
   that.
3. Nothing acts on reports; they are for people. What is repaired follows from marks and records alone.
"""

import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final, NamedTuple

from magnetar_core.runtime.data.json_text import parse_json
from magnetar_core.runtime.types import Corruption, MagnetarError

# Reports that are kept. Each is a node, and a list reads all of them; auto-recovery's own list names every ledger.
REPORTS_MAX: Final = 1_000

# Ranges of entries that a report names; a value in the store stays small, and nobody reads more.
RANGES_MAX: Final = 100

# Characters of a text or of a note, and of a reporter's name.
TEXT_CHARS_MAX: Final = 500
NAME_CHARS_MAX: Final = 200

_ENTRY_ID_MAX: Final = 2**63 - 1

_ID: Final = re.compile(r"[0-9]{1,19}-[a-z-]{1,20}-[0-9a-f]{12}")


class Kind(StrEnum):
    """What is wrong."""

    BAD_LEDGER = "bad-ledger"
    """It cannot be read as it should be; entries may be lost or not."""
    DATA_LOSS = "data-loss"
    """No bookie that should have the entries has them."""


class Source(StrEnum):
    """What kind of program says so."""

    CLIENT = "client"
    BROKER = "broker"
    SCRUB = "scrub"
    """A bookie that checks what it has."""
    AUTO_RECOVERY = "auto-recovery"


class Stage(StrEnum):
    """How far people have got with it."""

    OPEN = "open"
    ACKNOWLEDGED = "acknowledged"
    MENDED = "mended"


Range = tuple[int, int]
"""First and last entry, both included."""


class Damage(NamedTuple):
    """What a reporter says."""

    ledger_id: int
    kind: Kind
    source: Source
    name: str
    text: str
    ranges: tuple[Range, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """One report, with all that was said and done about it."""

    id: str
    ledger_id: int
    kind: Kind
    source: Source
    name: str
    text: str
    ranges: tuple[Range, ...] = ()
    first_ms: int
    last_ms: int
    count: int = 1
    stage: Stage = Stage.OPEN
    by: str = ""
    """Who acknowledged or mended it."""
    note: str = ""
    changed_ms: int = 0
    """When that was."""


class BadReport(ValueError):
    """What was posted is not a report; the text says why."""


class WrongStage(MagnetarError):
    """A report cannot go from where it is to where somebody wants it."""


def checked(damage: Damage) -> Damage:
    """*damage*, with long texts cut. Raises BadReport."""
    if not 0 <= damage.ledger_id <= _ENTRY_ID_MAX:
        raise BadReport(f"{damage.ledger_id} is no id of a ledger")
    if not damage.name or len(damage.name) > NAME_CHARS_MAX:
        raise BadReport(f"a reporter has a name of 1 to {NAME_CHARS_MAX} characters")
    for first, last in damage.ranges:
        if not 0 <= first <= last <= _ENTRY_ID_MAX:
            raise BadReport(f"{first} to {last} is no range of entries")
    return damage._replace(text=_shortened(damage.text), ranges=joined(damage.ranges))


def joined(ranges: Iterable[Range]) -> tuple[Range, ...]:
    """*ranges* in order, ranges that touch joined; at most RANGES_MAX of them, the first ones."""
    merged: list[Range] = []
    for first, last in sorted(ranges):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = merged[-1][0], max(merged[-1][1], last)
        else:
            merged.append((first, last))
    return tuple(merged[:RANGES_MAX])


def report_id(ledger_id: int, kind: Kind, source: Source, name: str) -> str:
    """Rule 1: the same for the same ledger, kind and reporter."""
    digest = hashlib.sha256(f"{source} {name}".encode()).hexdigest()[:12]
    return f"{ledger_id}-{kind}-{digest}"


def is_id(text: str) -> bool:
    """Whether *text* can be the id of a report, and so a part of a path."""
    return _ID.fullmatch(text) is not None


def posted(report: Report | None, damage: Damage, count: int, wall_ms: int) -> Report:
    """The report after it was posted *count* times (rules 1, 2)."""
    assert count >= 1
    if report is None:
        return Report(
            id=report_id(damage.ledger_id, damage.kind, damage.source, damage.name),
            ledger_id=damage.ledger_id,
            kind=damage.kind,
            source=damage.source,
            name=damage.name,
            text=damage.text,
            ranges=damage.ranges,
            first_ms=wall_ms,
            last_ms=wall_ms,
            count=count,
        )
    after = replace(
        report,
        text=damage.text or report.text,
        ranges=joined((*report.ranges, *damage.ranges)),
        last_ms=wall_ms,
        count=report.count + count,
    )
    if report.stage is not Stage.MENDED:
        return after
    note = f"it was called mended by {report.by}, and was reported again"
    return replace(after, stage=Stage.OPEN, by="", note=_shortened(note), changed_ms=wall_ms)


def moved(report: Report, to: Stage, by: str, note: str, wall_ms: int) -> Report:
    """The report after somebody acknowledged or mended it. Raises WrongStage."""
    if to is Stage.OPEN:
        raise WrongStage("a report is opened by posting it; it can become acknowledged or mended")
    if report.stage is Stage.MENDED:
        raise WrongStage(f"it is mended already, by {report.by}; if the damage is still there, post it again")
    return replace(report, stage=to, by=by[:NAME_CHARS_MAX], note=_shortened(note), changed_ms=wall_ms)


def first_to_go(reports: Iterable[Report]) -> Report | None:
    """The report that makes room for another one: the one that was mended first. None if no report is mended."""
    mended = [report for report in reports if report.stage is Stage.MENDED]
    return min(mended, key=lambda report: report.changed_ms, default=None)


def facts_of(report: Report) -> dict[str, Any]:
    """The report as values of JSON, as lists and calls show it."""
    return {
        "id": report.id,
        "ledger_id": report.ledger_id,
        "kind": str(report.kind),
        "source": str(report.source),
        "name": report.name,
        "text": report.text,
        "ranges": [list(entries) for entries in report.ranges],
        "first_ms": report.first_ms,
        "last_ms": report.last_ms,
        "count": report.count,
        "state": str(report.stage),
        "by": report.by,
        "note": report.note,
        "changed_ms": report.changed_ms,
    }


def encode(report: Report) -> bytes:
    return json.dumps(facts_of(report)).encode()


def decode(value: bytes) -> Report:
    """Raises Corruption."""
    try:
        facts = parse_json(value)
        return Report(
            id=str(facts["id"]),
            ledger_id=int(facts["ledger_id"]),
            kind=Kind(facts["kind"]),
            source=Source(facts["source"]),
            name=str(facts["name"]),
            text=str(facts["text"]),
            ranges=tuple((int(first), int(last)) for first, last in facts["ranges"]),
            first_ms=int(facts["first_ms"]),
            last_ms=int(facts["last_ms"]),
            count=int(facts["count"]),
            stage=Stage(facts["state"]),
            by=str(facts["by"]),
            note=str(facts["note"]),
            changed_ms=int(facts["changed_ms"]),
        )
    except (ValueError, TypeError, KeyError) as error:
        raise Corruption(f"a report of damage, {value[:80]!r}: {error!r}") from error


def _shortened(text: str) -> str:
    return " ".join(text.split())[:TEXT_CHARS_MAX]
