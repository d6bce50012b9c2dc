"""The results of the benchmarks as values, and their text as a table. No IO.

    what                                  | Apache 4.0.8              | ours                      | goal  | ratio
    v2 adds, 1,024 B, 3/3/2, saturation … | 21,300 [20,900..22,000]   | 34,100 [33,000..36,200]   | ≥ 1.5 | 1.60

The ratio is ours divided by Apache's, of the medians. A cell shows the median of the rounds, least and most.
"""

import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal

Side = Literal["apache", "ours"]
SIDES: Final[tuple[Side, ...]] = ("apache", "ours")


@dataclass(slots=True)
class Row:
    """One figure of both systems. `values` has a number a round."""

    what: str
    unit: str
    values: dict[str, list[float]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    """Why a side has no number, or fewer than the rounds: the last reason."""
    goal: str = ""
    """`>= 1.5` or `<= 0.5` for the ratio; `<= 3 s` for our figure itself."""
    note: str = ""
    """A remark for readers of the row: a ceiling, a limit of the tool."""
    curve: str = ""
    """Rows with the same curve and unit are drawn as one line; `at` is where this row stands on it."""
    at: float = 0.0

    def add(self, side: Side, value: float) -> None:
        self.values.setdefault(side, []).append(value)

    def median(self, side: Side) -> float | None:
        found = self.values.get(side)
        return statistics.median(found) if found else None

    @property
    def ratio(self) -> float | None:
        """Ours divided by Apache's; None where one of them is missing."""
        apache, ours = self.median("apache"), self.median("ours")
        return ours / apache if apache and ours is not None else None

    @property
    def goal_met(self) -> bool | None:
        """None without a goal, or without the numbers for it."""
        words = self.goal.split()
        if not words:
            return None
        found = self.ratio if len(words) == 2 else self.median("ours")
        if found is None:
            return None
        limit = float(words[1])
        return found >= limit if words[0] == ">=" else found <= limit


class Table:
    """Rows in the order in which they first came up."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, str], Row] = {}

    @property
    def rows(self) -> list[Row]:
        return list(self._rows.values())

    def row(self, what: str, unit: str, *, goal: str = "", note: str = "") -> Row:
        """The row of that name, made if it is not there."""
        row = self._rows.setdefault((what, unit), Row(what, unit, goal=goal))
        row.note = note or row.note
        return row

    def add(
        self, what: str, unit: str, side: Side, value: float, *, goal: str = "", note: str = "", curve: str = "",
        at: float = 0.0,
    ) -> None:  # fmt: skip
        row = self.row(what, unit, goal=goal, note=note)
        row.curve, row.at = curve, at
        row.add(side, value)

    def fail(self, what: str, unit: str, side: Side, reason: str) -> None:
        self.row(what, unit).failures[side] = one_line(reason)


def row_from(raw: Mapping[str, Any]) -> Row:
    return Row(**raw)


def row_to(row: Row) -> dict[str, Any]:
    return asdict(row)


def merged(kept: Mapping[str, Any], found: Mapping[str, Any]) -> dict[str, Any]:
    """The groups of an earlier run with those of this one in their place."""
    return {**kept, **found}


def merged_rows(kept: Iterable[Mapping[str, Any]], found: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The rows of an earlier run with those of this one in their place, new ones behind them."""
    rows = {(row["what"], row["unit"]): dict(row) for row in kept}
    return list((rows | {(row["what"], row["unit"]): dict(row) for row in found}).values())


def one_line(text: str, limit: int = 200) -> str:
    """The words of an error without line breaks, cut in the middle."""
    words = " ".join(text.split()).replace("|", "/")
    return words if len(words) <= limit else f"{words[: limit // 2]} … {words[-limit // 2 :]}"


def percentile(ordered: Sequence[float], share: float) -> float:
    """Of values in ascending order; *share* between 0 and 1. Raises ValueError without values."""
    if not ordered:
        raise ValueError("no values")
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)]


# --------------------------------------------------------------------------------------------- text


def figure(value: float) -> str:
    """Three figures that matter, thousands set off."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    if abs(value) >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}" if abs(value) >= 0.1 or value == 0 else f"{value:.2g}"


def spread(values: Sequence[float]) -> str:
    """`median [least..most]`; of one round only the number."""
    middle = figure(statistics.median(values))
    return middle if len(values) == 1 else f"{middle} [{figure(min(values))}..{figure(max(values))}]"


def cell(row: Row, side: Side) -> str:
    values, reason = row.values.get(side), row.failures.get(side)
    if values:
        return spread(values) + (f" (one failed: {reason})" if reason else "")
    return f"failed: {reason}" if reason else NOTHING


def ratio_text(row: Row) -> str:
    return NOTHING if row.ratio is None else figure(row.ratio)


def goal_text(row: Row) -> str:
    if not row.goal:
        return ""
    shown = row.goal.replace(">=", "≥").replace("<=", "≤")
    return {None: shown, True: f"{shown}: met", False: f"{shown}: **not met**"}[row.goal_met]


NOTHING: Final = "–"
_MILLIONS: Final = re.compile(r"\d{1,3}(?:,\d{3}){2,}")
HEAD: Final = ("what", "unit", "Apache", "ours", "goal", "ratio")


def cells(row: Row) -> tuple[str, ...]:
    what = f"{row.what} ({row.note})" if row.note else row.what
    return (what, row.unit, cell(row, "apache"), cell(row, "ours"), goal_text(row), ratio_text(row))


def markdown(rows: Iterable[Row], earlier: Iterable[Row] = ()) -> str:
    """*earlier*: the rows of another run, whose ratios stand in a column of their own."""
    before = {(_in_millions(row.what), row.unit): _verdict(row) for row in earlier}
    lines = ["| " + " | ".join((*HEAD, "earlier") if before else HEAD) + " |"]
    lines.append("|---|---|---|---|---|---:|" + "---:|" * bool(before))
    for row in rows:
        more = (before.get((_in_millions(row.what), row.unit), NOTHING),) if before else ()
        lines.append("| " + " | ".join((*cells(row), *more)) + " |")
    return "\n".join(lines)


def _verdict(row: Row) -> str:
    """The ratio, or ours alone where there is none, and whether the goal was met."""
    met = {None: "", True: ", met", False: ", not met"}[row.goal_met]
    return (cell(row, "ours") if row.ratio is None else ratio_text(row)) + met


def _in_millions(what: str) -> str:
    """*what* with its very large numbers rounded: a run that ends after some seconds has a few entries more or less."""
    return _MILLIONS.sub(lambda number: f"{round(int(number[0].replace(',', '')), -6):,}", what)


def plain(rows: Iterable[Row]) -> str:
    """For a terminal."""
    table = [HEAD, *(cells(row) for row in rows)]
    widths = [min(max(len(line[column]) for line in table), 72) for column in range(len(HEAD))]
    return "\n".join(
        "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip() for line in table
    )
