"""The twenty rows that matter most, for the page and its picture: ours divided by Apache's. No IO."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from bench.apache.table import Row, cell, figure

MORE: Final = "more is better"
LESS: Final = "less is better"


class Headline(NamedTuple):
    """A row of a group, and what the page calls it. The unit `×` is a ratio of two figures of ours already."""

    group: str
    what: str
    unit: str
    label: str
    better: str = LESS


_CPU: Final = "CPU s per million"
_BOOKIES: Final = "bookies' CPU s per million"
_TOPICS: Final = "1,000 topics on two brokers"
_SPARK: Final = "1,000 B, 4 partitions, default columns: our source ÷"

HEADLINES: Final = (
    Headline(
        "start",
        "standalone, start to first acknowledged message",
        "s",
        "standalone, start to the first acknowledgement",
    ),
    Headline("start", "standalone, resident memory, each page once", "MB", "standalone, memory"),
    Headline(
        "takeover", "kill -9 to the next acknowledged message, session 2 s", "s", "kill -9 of a broker to the next ack"
    ),
    Headline(
        "takeover", f"{_TOPICS}, kill -9 of one to the next acknowledgement, p99", "s", "the same, 1,000 topics, p99"
    ),
    Headline(
        "takeover",
        f"{_TOPICS}, one stopped politely, longest wait for a receipt, p99",
        "s",
        "a broker is stopped politely, 1,000 topics, p99",
    ),
    Headline("bookie", "v2 adds, 1,024 B, 3/3/2, saturation", _BOOKIES, "adds of 1 KiB over v2, bookies"),
    Headline("bookie", "v3 adds, 1,024 B, 3/3/2, saturation", _BOOKIES, "adds of 1 KiB over v3, bookies"),
    Headline(
        "bookie",
        "v2 adds, 1,024 B, 3/3/2, at 20,000/s, Magnetar's client",
        "p99 ms",
        "20,000 adds of 1 KiB a second, our client, p99",
    ),
    Headline("perf", "CPU, publish 1,024 B, one topic: broker", _CPU, "publish 1 KiB in batches, broker"),
    Headline("perf", "CPU, publish 1,024 B, one topic: all bookies", _CPU, "publish 1 KiB in batches, bookies"),
    Headline("perf", "CPU, publish 1,024 B, one topic, not batched: broker", _CPU, "publish 1 KiB one by one, broker"),
    Headline("perf", "CPU, consume a backlog of 1,024 B, one topic: broker", _CPU, "consume 1 KiB in batches, broker"),
    Headline("perf", "CPU, consume a backlog of 100 B, one topic: broker", _CPU, "consume 100 B in batches, broker"),
    Headline(
        "perf", "end to end at 5,000 msg/s, 1,024 B, one topic", "p99 ms", "5,000 messages a second, end to end, p99"
    ),
    Headline(
        "repair",
        "p99 of a writer beside re-replication, divided by its p99 before",
        "",
        "p99 of a writer beside lost copies",
    ),
    Headline("perf", "publish 1,024 B, one topic", "msg/s", "publish 1 KiB in batches, 10,000 under way", MORE),
    Headline("perf", "consume a backlog of 1,024 B, one topic", "msg/s", "consume a backlog of 1 KiB", MORE),
    Headline(
        "repair",
        "re-replication, ledgers of 10 MiB in entries of 1 KiB, Apache at its best",
        "MiB/s",
        "lost copies given back, entries of 1 KiB",
        MORE,
    ),
    Headline(
        "reads", "Java client, batches of 500, cold", "entries/s", "entries read back, Java client, batches, cold", MORE
    ),
    Headline(
        "spark", f"{_SPARK} through the broker", "×", "Spark: rows a second ÷ those of a read through the broker", MORE
    ),
)
_UNITS: Final[Mapping[str, str]] = {
    _CPU: "s of a core a million",
    _BOOKIES: "s of a core a million",
    "p99 ms": "ms",
    "×": "ratio",
    "": "ratio",
}


class Shown(NamedTuple):
    """A headline with its figures. *ratio*: ours ÷ Apache's; *goal*: the same of the goal, None without a goal."""

    headline: Headline
    row: Row
    ratio: float
    goal: float | None


def shown(rows: Mapping[str, Iterable[Row]]) -> list[Shown]:
    """*rows*: of each group. A headline whose row is not there, or lacks a side, is left out."""
    result = []
    for headline in HEADLINES:
        row = next(
            (row for row in rows.get(headline.group, ()) if row.unit == headline.unit and _is_of(row, headline)), None
        )
        if row is None:
            continue
        ratio = row.median("ours") if headline.unit == "×" else row.ratio
        if ratio:
            result.append(Shown(headline, row, ratio, _goal(row, headline)))
    return result


def _is_of(row: Row, headline: Headline) -> bool:
    """Rows may carry a remark in brackets behind their name."""
    return row.what == headline.what or row.what.startswith(f"{headline.what} (")


def _goal(row: Row, headline: Headline) -> float | None:
    """A goal for our own figure is shown as the ratio that it means."""
    words = row.goal.split()
    apache = row.median("apache")
    if not words:
        return None
    limit = float(words[1])
    return limit if len(words) == 2 or headline.unit == "×" else limit / apache if apache else None


def table(lines: Sequence[Shown]) -> str:
    """The rows as a Markdown table. The goal is a ratio, with what came of it."""
    text = ["| what | unit | Apache | ours | ours ÷ Apache's | goal |", "|---|---|---:|---:|---:|---|"]
    for better in (LESS, MORE):
        text.append(f"| **{better}** | | | | | |")
        for headline, row, ratio, goal in lines:
            if headline.better == better:
                sign = "≤" if better == LESS else "≥"
                met = ratio <= goal if goal and better == LESS else goal is not None and ratio >= goal
                verdict = "" if goal is None else f"{sign} {figure(goal)}: {'met' if met else '**not met**'}"
                unit = _UNITS.get(row.unit, row.unit)
                apache = cell(row, "apache")
                text.append(
                    f"| {headline.label} | {unit} | {apache} | {cell(row, 'ours')} | {figure(ratio)} | {verdict} |"
                )
    return "\n".join(text)
