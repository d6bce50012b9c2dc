"""The page of benchmarks, from the rows of its groups as data.

`docs/benchmarks/GROUP.json` holds the last runs of a group, newest last: date, machine, command, notes, rows with a
number a round. From them come `docs/benchmarks/rows.md` (all rows), and in `docs/BENCHMARKS.md` the table between the
two marks, and the picture; between such marks in `docs/spark.md`, what questions cost.
"""

import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from bench.apache.headlines import LESS, MORE, Shown, shown, table
from bench.apache.quiet import Quiet
from bench.apache.rig import ROOT
from bench.apache.table import NOTHING, Row, cell, figure, markdown, row_from

DOCS: Final = ROOT / "docs"
RUNS_KEPT: Final = 2
"""Of a group: the ratios of the run before stand beside those of the newest."""
BEGIN: Final = "<!-- made by bench.apache: begin -->"
END: Final = "<!-- made by bench.apache: end -->"
APACHE_COLOUR: Final = "#d95f02"
OUR_COLOUR: Final = "#1b6ca8"

TITLES: Final = {
    "bookie": "Adds to bookies",
    "perf": "Publish and consume",
    "start": "Standalone: start, memory, idle",
    "takeover": "Takeover",
    "repair": "Lost copies given back",
    "reads": "Entries read back",
    "disk": "The disk",
    "spark": "Into Spark",
    "spark-costs": "What questions cost in Spark",
    "profile": "Where our servers spend their time",
    "growth": "From one to very many",
}

TEXTS: Final = {
    "bookie": """\
BookKeeper's own `BenchThroughputLatency` against three bookies of each kind, both with `fdatasync` before an
add is confirmed. Its `-throttle` is at once the number of adds under way and the most it sends a second: "at
20,000/s" it is 20,000; for saturation 60,000 (64 KiB: 1,200) at 3/3/2 and 150,000 (6,000) at 1/1/1, so latencies there
are those of a full queue. At a fixed rate it begins with a second's worth of adds at once, before its virtual machine
is warm: in a run of five seconds these are a fifth of all adds, and so the 99th percentile. The generator runs on the
same cores and takes its share of them, more than a bookie does; the rows "Magnetar's client" are of our ledger client,
which takes less: 4,000 adds under way, or 20,000 a second, sent evenly after a second of the same and timed from when
they were due. 64 KiB at 20,000/s would be 1.3 GB/s and is not run. A run of 64 KiB ends after 6,000 entries, at 1/1/1
after 30,000.""",
    "perf": """\
`pulsar-perf` against one broker on three bookies, 2/2/2, at most 10,000 messages under way. Rates are from the
first send to the last, by the times of the tool's log. A backlog, of as many messages on both sides, is consumed when
the servers are idle again, with the tool's own settings. Latencies at 5,000 messages a second are the median of three
times ten seconds, after ten that are not counted: the tool's virtual machines get warm in them.""",
    "start": """\
From the command to the first acknowledged message, over a plain socket. Apache's standalone does not sync
(`journalSyncData=false` in its `standalone.conf`), ours does. Apache's garbage collector (ZGC) maps its heap
three times and `VmRSS` counts it three times; `Pss` counts a page once.""",
    "takeover": """\
Two brokers, three bookies, 2/2/2; the official Python client publishes a message every 5 ms. The broker that
owns the topic is killed with `kill -9`; what counts is the time until the next acknowledgement. With many topics
each has a producer and a message every half a second; the client knows the address of the broker that stays.""",
    "repair": """\
Four bookies and one node of auto-recovery; ledgers of two copies; one bookie is killed with `kill -9`. Rates
count what the dead bookie held, from the end of its session (ours 2 s, Apache's 6 s) to the last changed record;
for the rate of ledgers, from the first changed record. Apache's node runs with its default settings and with
`rereplicationEntryBatchSize=1000`, the best that we found for it. Each side is measured in a cluster of its own,
one after the other; the rates without a writer. The writer waits for each of its entries of 1 KiB, which all three
bookies that stay must have stored (3/3/3): each of them has a client and takes copies.""",
    "reads": """\
1 KiB, 3/3/2, protocol v2; 20,000 entries of a ledger, read from the first on, in one process of each client.
Cold: the bookies were restarted and the page cache dropped; cached: the same once more. A batch of 500 goes past the
page cache of our bookies the first time, so that their second read is the one that fills it.""",
    "disk": """\
What this machine's disk does with one writer that syncs every write: the most that journals could reach without
grouping. No server runs.""",
    "spark": """\
Topics on bookies of each kind into Spark's `noop` sink, `local[2]`, everything on the same cores. "Our source" reads
the bookies; "through the broker" is what a source without them does: one task a partition, which reads it with the
official client from the first message to the last. Parquet of the same rows is the floor. The ceiling is a Python
source that yields one prepared Arrow batch of the same columns again and again; the rows of a share of it are our
figure by that. What is left of the time stands in the stages: seconds of both cores for a million rows. The picture
shows the rates of four partitions.""",
    "spark-costs": """\
Seconds of processor time that a question takes, of all processes that have a part in it. Apache's servers do not run
here. A count of the default columns shows what Spark's own copying of each row takes: it asks a Python source for all
columns, whatever the question needs, and the ceiling pays that, too.""",
    "profile": """\
Samples of the main thread's processor time, the load as above.""",
    "growth": """\
One bookie, or one broker on one bookie, from one ledger, topic, consumer or entry to very many; 1/1/1, 100 B, loads
that speak the wire protocols on the same cores. Apache's servers do not run here. A flat line means that one more costs
what the first did.

What is not flat is what is handled in groups. The loads have as much under way whatever the number of topics, ledgers
or consumers is: 2,000 messages of one topic come some hundreds in a write and become runs of adds and receipts, of
1,000 topics each is a run of its own. Measured beside (2026-11-28, µs of the broker's processor time a message): one
topic 25, with 8 messages under way 58; 100 topics 87, with 20,000 under way 54; 1,000 topics 85 and 59. In the same way
one consumer with 1,000 permits costs 19, with 20 permits 32, with 4 permits 103; 1,000 consumers 46. Adds are sent
ten of a ledger in a row, which are longer runs only where there is one ledger. The memory for a backlog stays what it
is from 10 million messages on.""",
}

ROWS_HEAD: Final = """\
# All rows of the benchmarks

Made by `python -m bench.apache --docs-only` from the files beside this page; [the page on benchmarks](../BENCHMARKS.md)
says how they were measured and which of them matter. The ratio is ours divided by Apache's. Cells show the median of
the rounds, least and most. The last column has the ratio of the run before (where there is no ratio: what was ours),
and whether the goal was met."""

Runs = list[dict[str, Any]]
"""Of one group, newest last."""


def write(results: Mapping[str, Any], docs: Path = DOCS) -> None:
    """Keep the *results* (of a run of groups, `bench.apache`) as data, then make both pages and both pictures anew."""
    folder = docs / "benchmarks"
    folder.mkdir(parents=True, exist_ok=True)
    for name, result in results.items():
        path = folder / f"{name}.json"
        path.write_text(data(kept(runs_of(path), run_of(result))))
    groups = {name: runs for name in TITLES if (runs := runs_of(folder / f"{name}.json"))}
    (folder / "rows.md").write_text(rows_page(groups))
    newest = {name: rows_in(runs[-1]) for name, runs in groups.items()}
    if any(row.curve for row in newest.get("growth", ())):
        draw_curves(newest["growth"], TITLES["growth"], folder / "growth.png")
    lines = shown(newest)
    if lines:
        draw(lines, folder / "headlines.png")
    page = docs / "BENCHMARKS.md"
    page.write_text(with_table(page.read_text(), f"{table(lines)}\n\n{machines(groups)}"))
    if "spark-costs" in groups:
        guide = docs / "spark.md"
        guide.write_text(with_table(guide.read_text(), costs(groups["spark-costs"][-1])))


def runs_of(path: Path) -> Runs:
    runs: Runs = json.loads(path.read_text()) if path.exists() else []
    return runs


def data(runs: Runs) -> str:
    """JSON with a line a row, so that two runs can be compared line by line."""
    blocks = []
    for run in runs:
        rows = ",\n   ".join(json.dumps(row, ensure_ascii=False) for row in run["rows"])
        rest = json.dumps({key: value for key, value in run.items() if key != "rows"}, ensure_ascii=False, indent=1)
        blocks.append(f'{rest[:-2]},\n "rows": [\n   {rows}\n ]\n}}')
    return "[\n" + ",\n".join(blocks) + "\n]\n"


def run_of(result: Mapping[str, Any]) -> dict[str, Any]:
    """What is kept of a group's result: its machine as a sentence, and of its rows what is not empty."""
    machine = result["machine"]
    versions = ", ".join(f"{what} {number}" for what, number in machine["versions"].items())
    return {
        "date": result["date"],
        "machine": f"{machine['cores']} cores, {machine['memory_mb']:,} MB, {machine['system']}; {versions}",
        "command": result["command"],
        "took_s": result["took_s"],
        "quiet": Quiet(**result["quiet"]).told if "quiet" in result else "",
        "failed": result["failed"],
        "notes": result["notes"],
        "rows": [{key: value for key, value in row.items() if value} for row in result["rows"]],
    }


def kept(runs: Runs, run: dict[str, Any]) -> Runs:
    """*runs* with *run* behind them; the same command of the same day takes its place."""
    others = [other for other in runs if (other["date"], other["command"]) != (run["date"], run["command"])]
    return sorted([*others, run], key=lambda each: str(each["date"]))[-RUNS_KEPT:]


def rows_in(run: Mapping[str, Any]) -> list[Row]:
    return [row_from(raw) for raw in run["rows"]]


def with_table(page: str, text: str) -> str:
    """*page* with *text* between the two marks. Raises ValueError if one of them is not there."""
    before, begin, behind = page.partition(BEGIN)
    _, end, after = behind.partition(END)
    if not begin or not end:
        raise ValueError(f"the page of benchmarks has no {BEGIN} … {END}")
    return f"{before}{BEGIN}\n\n{text}\n\n{END}{after}"


def machines(groups: Mapping[str, Runs]) -> str:
    """Day, machine and versions of each group's newest run."""
    lines: dict[str, list[str]] = {}
    for name, runs in groups.items():
        lines.setdefault(f"{runs[-1]['date']}; {runs[-1]['machine']}", []).append(name)
    return "\n".join(f"- {', '.join(names)}: {line}." for line, names in lines.items())


def costs(run: Mapping[str, Any]) -> str:
    """What questions cost, a line each with a column a way, and the state of the machine. The rows of *run* are called
    `question: way`."""
    lines: dict[str, dict[str, str]] = {}
    for row in rows_in(run):
        question, _, way = row.what.rpartition(": ")
        lines.setdefault(question, {})[way] = cell(row, "ours")
    ways = list(dict.fromkeys(way for cells in lines.values() for way in cells))
    head = [f"| seconds of processor time, a million rows | {' | '.join(ways)} |", "|---|" + "---:|" * len(ways)]
    body = [
        f"| {question} | {' | '.join(cells.get(way, NOTHING) for way in ways)} |" for question, cells in lines.items()
    ]
    return "\n".join([*head, *body, "", f"{run['date']}; {run['machine']}. {run['quiet']} {run['notes'][-1]}."])


def rows_page(groups: Mapping[str, Runs]) -> str:
    parts = [ROWS_HEAD]
    for name, title in TITLES.items():
        runs = groups.get(name, [])
        parts += [f"## {title}", TEXTS[name]]
        parts += section(name, runs) if runs else [f"Not run yet: `python -m bench.apache {name}`."]
    return "\n\n".join(parts) + "\n"


def section(name: str, runs: Runs) -> list[str]:
    """The parts of a group's section behind its text."""
    run, parts = runs[-1], []
    if run.get("failed"):
        parts.append(f"**The group failed**: {run['failed']}")
    if run["rows"]:
        parts.append(markdown(rows_in(run), rows_in(runs[-2]) if len(runs) > 1 else ()))
    if name == "growth":
        parts.append("![What one more costs](growth.png)")
    lines = [note for note in run["notes"] if "\n" not in note]
    if lines:
        parts.append("\n".join(f"- {note}" for note in lines))
    parts += [f"```\n{note}\n```" for note in run["notes"] if "\n" in note]
    days = f"{run['date']}" if len(runs) == 1 else f"{run['date']}; the run before {runs[-2]['date']}"
    return [*parts, f"`{run['command']}`, {days}, {run['took_s'] / 60:.1f} minutes. {run['quiet']}".strip()]


def draw(lines: Sequence[Shown], path: Path) -> None:
    """A bar a headline from 1 (as Apache) to its ratio, on a log scale; the goal is a line across the bar."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot
    from matplotlib.ticker import FuncFormatter, NullFormatter

    panels = [(better, [line for line in lines if line.headline.better == better]) for better in (LESS, MORE)]
    picture, all_axes = pyplot.subplots(
        2, 1, figsize=(10, 0.32 * len(lines) + 1.8), layout="constrained", sharex=True,
        gridspec_kw={"height_ratios": [max(len(found), 1) for _, found in panels]},
    )  # fmt: skip
    for axes, (better, found) in zip(all_axes, panels, strict=True):
        for place, line in enumerate(found):
            good = line.ratio <= 1 if better == LESS else line.ratio >= 1
            axes.barh(place, line.ratio - 1, left=1, color=OUR_COLOUR if good else APACHE_COLOUR, height=0.6)
            beside = (6, 0) if line.ratio >= 1 else (-6, 0)
            axes.annotate(
                figure(line.ratio), (line.ratio, place), xytext=beside, textcoords="offset points", va="center",
                ha="left" if line.ratio >= 1 else "right", fontsize=8,
                bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5},
            )  # fmt: skip
            if line.goal:
                axes.plot([line.goal, line.goal], [place - 0.4, place + 0.4], color="black", linewidth=1.5)
        axes.axvline(1, color="grey", linewidth=1)
        axes.set_yticks(range(len(found)), [line.headline.label for line in found], fontsize=8)
        axes.set_ylim(len(found) - 0.5, -0.5)
        axes.set_xscale("log")
        axes.set_title(better, loc="left", fontsize=9)
        axes.grid(axis="x", alpha=0.25)
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.xaxis.set_minor_formatter(NullFormatter())
    all_axes[1].set_xlim(min(line.ratio for line in lines) / 2, max(line.ratio for line in lines) * 2)
    all_axes[1].set_xlabel("ours ÷ Apache's; a black line: the goal")
    picture.savefig(path, dpi=110)
    pyplot.close(picture)


def draw_curves(rows: Sequence[Row], title: str, path: Path) -> None:
    """A line of panels a curve, a panel a unit: our median with a bar from least to most. Both axes are logarithmic;
    a panel spans a factor of ten at least, so that what is flat looks flat."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    curves = list(dict.fromkeys(row.curve for row in rows if row.curve))
    units = {curve: list(dict.fromkeys(row.unit for row in rows if row.curve == curve)) for curve in curves}
    width = max(map(len, units.values()))
    picture, all_axes = pyplot.subplots(
        len(curves), width, figsize=(4 * width, 2.6 * len(curves)), layout="constrained", squeeze=False
    )
    picture.suptitle(title)
    for line, curve in zip(all_axes, curves, strict=True):
        for axes, unit in zip(line, [*units[curve], *[""] * (width - len(units[curve]))], strict=True):
            found = sorted((row.at, row.values["ours"]) for row in rows if (row.curve, row.unit) == (curve, unit))
            if not found:
                axes.set_axis_off()
                continue
            places = [at for at, _ in found]
            medians = [statistics.median(values) for _, values in found]
            axes.vlines(
                places, [min(values) for _, values in found], [max(values) for _, values in found],
                color=OUR_COLOUR, alpha=0.5,
            )  # fmt: skip
            axes.plot(places, medians, "o-", color=OUR_COLOUR, markersize=4)
            axes.set_xscale("log")
            axes.set_yscale("log")
            middle = (min(medians) * max(medians)) ** 0.5
            axes.set_ylim(min(min(medians) / 1.2, middle / 10**0.5), max(max(medians) * 1.2, middle * 10**0.5))
            axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
            for axis in (axes.xaxis, axes.yaxis):
                axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
                axis.set_minor_formatter(NullFormatter())
            axes.set_ylabel(unit, fontsize=8)
            axes.grid(which="both", alpha=0.25)
            axes.tick_params(labelsize=7, which="both")
        line[0].set_title(curve, fontsize=9, loc="left")
    picture.savefig(path, dpi=110)
    pyplot.close(picture)
