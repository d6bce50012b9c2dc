"""The page with the results of tests/interop."""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

COLUMNS: Final = ("our bookies", "Apache bookies", "two Apache, one ours")


class Outcome(NamedTuple):
    """The result of one test for one cell."""

    row: str
    column: str
    test: str
    outcome: str
    reason: str
    seconds: float


class Examples(NamedTuple):
    """How the examples of one page of Apache's documentation were answered; *others* are
    those that were refused or different, each with its reason."""

    page: str
    same: int
    refused: int
    others: tuple[tuple[str, str], ...]


def page(
    outcomes: Sequence[Outcome],
    versions: Mapping[str, str],
    day: str,
    examples: Sequence[Examples] = (),
    *,
    line: str = "",
) -> str:
    """docs/INTEROP.md: a matrix of the rows that have the three columns, a list of the others, and the reasons.

    *line*: whose servers ran, if not those of the distribution.
    """
    rows = list(dict.fromkeys(each.row for each in outcomes))
    matrix = [row for row in rows if any(each.row == row and each.column in COLUMNS for each in outcomes)]
    lines = [
        f"# Side by side with Apache {line}".rstrip(),
        "",
        "Real processes on one machine: ours beside those of the Apache distribution, on one ZooKeeper. Each cell",
        "publishes with an official client, kills an owner or a bookie in the middle, takes over, reads everything",
        "back from the start and compares it with what was acknowledged."
        + (" Brokers, bookies, auto-recovery and Java's client are" if line else ""),
        *(
            [f"of {line}; Apache's tools, its ledger client and other clients are those of the other page."]
            if line
            else []
        ),
        "",
        f"Written by `make interop{f' LINE={line}' if line else ''}` on {day}: "
        + ", ".join(f"{name} {text}" for name, text in versions.items())
        + ".",
        "",
        "| | " + " | ".join(COLUMNS) + " |",
        "|---|" + "---|" * len(COLUMNS),
    ]
    lines += ["| " + " | ".join([row, *(_sign(outcomes, row, column) for column in COLUMNS)]) + " |" for row in matrix]
    lines += ["", "✓ every test of the cell passed · ✗ see below · – not run", ""]
    others = [(row, column) for row in rows if row not in matrix for column in dict.fromkeys(
        each.column for each in outcomes if each.row == row)]  # fmt: skip
    if others:
        lines += ["| | | |", "|---|---|---|"]
        lines += [f"| {row} | {column} | {_sign(outcomes, row, column)} |" for row, column in others]
        lines.append("")
    red = [each for each in outcomes if each.outcome != "passed"]
    if red:
        lines += ["## Not green", ""]
        lines += [f"- {each.row}, {each.column} (`{each.test}`, {each.outcome}): {each.reason}" for each in red]
        lines.append("")
    lines += examples_section(examples)
    lines += [
        "## What runs",
        "",
        "`make interop` gets the distribution and the load generator with Maven into `.cache/apache` (245 MB, once),",
        "needs Java 17 with `javac` and, for its cells, Go, and runs [tests/interop](../tests/interop). Everything",
        "listens on free loopback ports.",
        "",
        "`make interop LINE=4.2.4` and `LINE=5.0.1` run what has servers of Apache's in it with those of",
        "[4.2](INTEROP-4.2.4.md) and [5.0](INTEROP-5.0.1.md), from plain jars.",
        "",
        "| cell | test | s |",
        "|---|---|---|",
        *(f"| {each.row}, {each.column} | `{each.test}` | {each.seconds:.0f} |" for each in outcomes),
        "",
    ]
    return "\n".join(lines)


def examples_section(examples: Sequence[Examples]) -> list[str]:
    """The lines about the documentation's examples; none where none were run."""
    if not examples:
        return []
    counts = [
        (each.page, each.same + len(each.others), each.same, each.refused, len(each.others) - each.refused)
        for each in examples
    ]
    sums = [sum(column) for column in list(zip(*counts, strict=True))[1:]]
    lines = [
        "## The documentation's examples",
        "",
        "Every command of `pulsar-admin` and every call that Apache's documentation of the admin API shows on these",
        "pages, with names of our own, at our broker and at Apache's. Exit codes, statuses and answers are compared;",
        "ids, times, sizes, rates and addresses are left out. Where both refuse, the texts need not be the same.",
        "",
        "| page | examples | as with Apache | refused by name | different |",
        "|---|---|---|---|---|",
        *(f"| {' | '.join(map(str, row))} |" for row in counts),
        f"| **all** | {' | '.join(map(str, sums))} |",
        "",
    ]
    others = dict.fromkeys(other for each in examples for other in each.others)  # a page may show a line twice
    if others:
        lines += ["Refused or different:", ""]
        lines += [f"- `{line}`: {reason}" for line, reason in others]
        lines.append("")
    return lines


def _sign(outcomes: Sequence[Outcome], row: str, column: str) -> str:
    found = {each.outcome for each in outcomes if (each.row, each.column) == (row, column)}
    if not found or found == {"skipped"}:
        return "–"
    return "✗" if "failed" in found else "✓"
