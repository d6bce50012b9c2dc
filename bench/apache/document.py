"""Renders docs/BENCHMARKS.md and a picture for each group from the results in out/bench-apache.json."""

import re
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from bench.apache.quiet import Quiet
from bench.apache.rig import ROOT
from bench.apache.table import SIDES, Row, markdown, row_from

DOCS: Final = ROOT / "docs"
NEXT_SECTION: Final = "\n## "
_MACHINE: Final = re.compile(r"^(?:- ([a-z, ]+): )?(\d{4}-\d\d-\d\d; .*)$", re.MULTILINE)
COLOURS: Final[Mapping[str, str]] = {"apache": "#d95f02", "ours": "#1b6ca8"}

TITLES: Final = {
    "bookie": "Adds to bookies",
    "perf": "Publish and consume",
    "start": "Standalone: start, memory, idle",
    "takeover": "Takeover",
    "repair": "Lost copies given back",
    "reads": "Entries read back",
    "disk": "The disk",
    "spark": "Into Spark",
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

INTRODUCTION: Final = """\
Apache's servers and ours on one machine, in turn, round by round, by the same load tools. Read the ratios: ours
divided by Apache's. Cells show the median of the rounds, least and most. The digits are this machine's, of that
day; another machine has others."""

METHOD: Final = """\
While one side is measured, the processes of the other are stopped (`SIGSTOP`), so both keep what they have
warmed up, and what either wrote before is flushed to the disk first (`sync`). A first run of each kind is not
counted. Apache's bookies and brokers have the settings and the memory that they are shipped with, but for
ports, addresses, the limits of a full disk and the number of flushed journals that are kept (one, on both sides);
retention is without limit on both sides. Each side has a ZooKeeper of its own, of the same version and settings.
Both bookies sync before they confirm (`journalSyncData=true`, as shipped)."""

EARLIER: Final = """\
The last column, "earlier", has the ratios of another run (of what has no ratio: what was ours), and whether the goal
was met:

{machine}"""

NOT_MET: Final = """\
## What is not met, and why

The tables are of one night (2026-11-27 to 28) and of one state of the code, on a machine that was not quiet: the same
work took twice as long in one second as in the next, and at its best 1.6 times as long as on the machine of the column
"earlier"; with both cores busy, adds and messages cost two to three and a half times as much processor time. Where a
goal is met in one of the columns only, the machine is the likelier reason than the code, of which little changed in
between. The publish and consume group is the second of the night: the first one filled the disk, as each bookie kept
five flushed journals then (those of the other groups did, too).

- **Adds at saturation** (goal 1.5, with Magnetar's client 1.3): the generator's virtual machine takes most of two cores
  while it warms up, in a run of five seconds. On this machine neither side got 15,000 adds of 1 KiB a second from it at
  3/3/2. On the quicker one both sides took all that it sends at 1/1/1 (150,000 a second of 100 B over v2, 67,000 over
  v3) and of 64 KiB (1,200): a ratio of 1.5 cannot be seen there. At 3/3/2 the ratio differs from run to run, v2 of
  1 KiB 1.67, 1.50, 1.24 and 0.79 in four runs of 2026-11-26, v3 2.04, 1.56, 1.05 and 1.14. For one of its adds our
  bookies took 0.29 to 1.2 times their processor time. Magnetar's client saw 1.24 to 1.33 on the quicker machine, 1.02
  to 1.12 on this one.
- **p99 of adds**: at saturation it is the length of the generator's queue, and at 20,000/s that of its first second: it
  begins with 20,000 adds at once. Sent evenly by Magnetar's client, to warm bookies, the p99 was 0.03 to 1.7 times
  Apache's in this run, 0.1 to 1.1 in the one before, 0.05 to 1.1 in another of that evening. Until 2026-11-26
  it was 0.7 to 2.2 times: a flush sorted and listed all entries of the write cache and freed them at once, and the
  bookie's other threads waited 3 to 13 ms for the interpreter's lock
  (without flushes 3 to 4 ms were left of 8 to 12). What is left is the sync of the journals (0.2 ms alone, 2 to 4 ms
  where three journals and the entry logs share the device) and turns on two cores.
- **Consuming large batches** (goal 1.2 of 1 KiB; 1 of 100 B, met in this run): the tool's virtual machine takes most
  of the two cores: of a backlog of 2,000,000 messages of 1 KiB (2026-11-27, evening) 9 to 10 s of processor time a
  million, Apache's servers 3.3 s, ours 2.5 s; of a backlog of 300,000, as in the runs of 5 s of the column "earlier",
  36 to 60 s a million. Four runs of 20 s on this machine: one topic of 1 KiB 1.19, 1.14, 1.11 and 1.04, four partitions
  0.85, 1.08, 1.11 and 1.17; one topic of 100 B 0.84, 0.98, 1.04 and 1.03, four partitions 0.97, 1.07 and 1.05. If ours
  took nothing at all it would be 1.3. Of 100 B the broker takes 0.6 to 0.75 s a million, Apache's 0.3 to 0.6: a
  consumer asks for 500 messages at a time, half an entry, and each such turn of the dispatcher costs 0.3 ms.
- **Publishing**: with 10,000 messages under way the p99 is what the rate makes of it, and the rate what the tool leaves
  of the cores: 1.07 and 1.08 with one topic, 0.90 and 1.23 with four partitions of 1 KiB in two runs of this night. At
  5,000 a second the p99 is the sync of three journals on one disk: a journal's took 0.7 ms on this machine, one in a
  hundred 7 ms, and a message waits for two; Apache's virtual machines are warm then (in new clusters 23 and 17 ms
  beside Apache's 172 and 91).
- **Batches read by our client** (no goal): of the 0.2 s for 20,000 entries 0.13 are the client's own work on this
  machine, 0.06 a bookie's of ours; so the ratio is near 1 here.
- **A polite stop under 1,000 topics** (goal 0.5 s): 0.75 s on this machine, 0.31 on the quicker one; Apache 27 and
  11 s. **Opening a topic** (goal 2.5 ms): 2.83 ms here, 1.26 there.
- **Memory of a quiet topic with its producer** (goal 15 KB): 15.5 KB with 1,000 topics, 15.0 in the run before; 14.7
  with 10,000 in both.
- **Lost copies** (goal 10; 2 of Apache's best): ten times what Apache's copies of 16 KiB entries would be more than
  this disk writes; they were 1.7 and 1.6 times as fast here, 3.75 and 4.06 on the quicker machine, where it was 23
  times for entries of 1 KiB and 10.1 and 9.7 for small ledgers.
- **p99 beside lost copies** (goal 1.5, met in both runs): what a slow add waits for was traced (2026-11-26) down to the
  device: what was read ahead for copies and pieces of a flush, both cut to 256 KiB since, and the groups of the copies.
  With a writer on all three bookies, p99 beside copies divided by p99 before: 1.50, 1.91 and 1.34 where copies rest
  thirty-two times as long as they take, 1.44, 1.87 and 1.57 with sixty-four, 1.23, 1.20 and 1.10 with a hundred, which
  is what they do now. It has its price: 4 MiB a second beside such a writer, where it was 10 (`copiesRestMaxMs`).
- **Into Spark** (of 1,000 B 0.6 of the ceiling, 5 times a read through a broker): of 3 s of two cores for a million
  rows of 1,000 B (2026-11-27, warm, ours alone) Spark's JVM takes 0.9, as for the ceiling, whose Python takes 0.3; our
  Python workers take 1.2 and the bookies 0.55. Two thirds of the workers' time are copies from and to sockets, the copy
  into columns and two checksums; if the rest took nothing, the value alone would be at 0.54 of the ceiling. Where
  Spark's own cost of a task counts more (16 partitions), it is 0.63 to 0.81. A query without the value has a ceiling of
  nearly nothing but the start of a job, while each byte of the topic still comes from the bookies. Five times a read
  through our broker would be 0.8 of the ceiling.
- **An hour by its share of the day** (goal 1.3): the faster the whole day is read, the more the start of a job counts.
  An hour takes 1.4 to 2.1 s here, so that one slow second shows: 1.57 and 1.05 by default, 1.17 and 1.09 with
  publishTimeSlack=1m, from our and Apache's bookies; from both 1.18 and 1.12 on the quicker machine.

## Takeovers of more topics

`python -m bench.many_takeovers` (2026-11-26), ours alone, sessions of 2 s, two brokers, a producer a topic; in seconds
from the kill, or the longest wait for a receipt while a broker is stopped politely.

| topics | what | away | p50 | p90 | p99 | last | goal |
|---:|---|---:|---:|---:|---:|---:|---|
| 1,000 | kill -9 | 560 | 2.24 | 2.27 | 2.28 | 2.28 | p50 3, p99 4, last 5 |
| 1,000 | kill -9, again | 603 | 2.49 | 2.52 | 2.53 | 2.53 | |
| 1,000 | kill -9, again | 560 | 2.25 | 2.29 | 2.30 | 2.30 | |
| 1,000 | stopped politely | 1,000 | 0.01 | 0.07 | 0.14 | 0.19 | last 0.5 |
| 10,000 | kill -9 | 3,036 | 6.90 | 8.06 | 8.09 | 8.10 | last 20 |
| 10,000 | stopped politely | 10,000 | 0.02 | 0.18 | 0.36 | 0.39 | last 0.5 |
| 10,000 | stopped politely, again | 10,000 | 0.02 | 0.15 | 0.30 | 0.36 | |
| 10,000 | stopped politely, again | 10,000 | 0.02 | 0.08 | 0.22 | 0.52 | |

Under the load of 1,000 topics three brokers restarted in turn: no message failed, p99 of publishing 35 ms, longest 0.17
s (goal: p99 0.5 s); three bookies: none failed, 38 ms, 0.11 s. Of 10,000 topics, brokers: 130 ms and 0.76 s, 111 ms and
0.66 s, 128 ms and 0.96 s, 86 ms and 0.49 s in four runs. Bookies, right after the brokers: 166 ms and 0.42 s in one
run, 35 to 150 ms and 0.10 to 0.48 s for each in another, without a ledger that was marked; before auditors gave a
bookie that is restarted its delay 0.5 to 6.5 s and 2.9 to 10.6 s in four of six runs, as the restart of the bookie that
held the auditor marked all of its ledgers. Before bundles were cut a stopped broker's last topic of 10,000 waited 3.3
s. On a machine that does half as much (2026-11-25, evening, beside Apache's) p50 of 1,000 was 4.92 s, the last 5.44 s;
Apache's 19.2 s.

## Other Pythons

`python -m bench.pythons` (2026-11-25), each group once, in turn: 3.11.7, and 3.13 and 3.14.8 of Debian, which are built
by other compilers. The requirements have wheels for all three. Every start compiled all files anew, and is older than
what made it shorter (see above).

| what | 3.11 | 3.13 | 3.14 | 3.13 ÷ 3.11 | 3.14 ÷ 3.11 |
|---|---:|---:|---:|---:|---:|
| official Python client, publish 1 KiB, 2/2/2 (/s) | 21,152 | 21,929 | 29,211 | 1.04 | 1.38 |
| official Python client, consume 1 KiB, 2/2/2 (/s) | 333,738 | 407,287 | 485,831 | 1.22 | 1.46 |
| standalone, start to first acknowledged message, 1/1/1 (s) | 1.44 | 1.13 | 1.27 | 0.78 | 0.88 |
| standalone, resident memory after start (MB) | 98.0 | 100 | 110 | 1.02 | 1.12 |
| bookie adds, 100 B, 1/1/1 (/s) | 198,587 | 211,810 | 204,878 | 1.07 | 1.03 |
| bookie adds, 1,024 B, 1/1/1 (/s) | 136,427 | 171,641 | 179,377 | 1.26 | 1.31 |
| bookie adds, 65,536 B, 1/1/1 (/s) | 7,424 | 7,439 | 7,898 | 1.00 | 1.06 |
| bookie adds, 100 B, 3/3/2 (/s) | 96,474 | 115,697 | 129,396 | 1.20 | 1.34 |
| bookie adds, 1,024 B, 3/3/2 (/s) | 72,122 | 84,956 | 85,565 | 1.18 | 1.19 |
| bookie adds, 65,536 B, 3/3/2 (/s) | 2,948 | 3,565 | 3,033 | 1.21 | 1.03 |

## Tried and not kept

- **mypyc** for the pure parts (`python -m bench.compiled`, 2026-11-25): the writer of a ledger 1.17 times as fast with
  runs of 100 entries (1.39 one at a time), frames found in chunks 0.92, acknowledgements 1.10, a dispatcher 1.05 to
  1.16. These parts are a small share of a broker's time, most of which is in libraries that are compiled already; 1.3
  was wanted. `wire/entry.py` cannot be built (a named tuple with a memoryview).
- **Entry logs in the page cache** (`entryLogPageCacheMB`, 64): with 1,024 a bookie took twice the processor time for
  adds on this virtual machine, where pages that are touched for the first time are dear."""

PICTURED: Final = {
    "bookie": ("adds/s", "p99 ms"),
    "perf": ("msg/s", "p99 ms", "CPU s per million"),
    "start": ("s", "MB", "% of a core"),
    "takeover": ("s",),
    "reads": ("entries/s",),
    "disk": ("MB/s", "writes/s"),
    "spark": ("rows/s",),
    "growth": (),
}

PICTURED_ROWS: Final = {"spark": ", 4 partitions, "}
"""Where a picture of all rows would be too long: the words of those that it shows."""


def write(results: Mapping[str, Any], earlier: str = "") -> None:
    """Write the page and the pictures. What the page says of groups without a result here stays, with its date.
    *earlier*: such a page of another run (`document`)."""
    DOCS.mkdir(exist_ok=True)
    for name, units in PICTURED.items():
        rows = [row_from(raw) for raw in results.get(name, {}).get("rows", ())]
        if any(row.curve for row in rows):
            draw_curves(rows, TITLES[name], DOCS / f"bench-{name}.png")
        elif any(row.values for row in rows):
            shown = [row for row in rows if PICTURED_ROWS.get(name, "") in row.what]
            draw(shown, units, TITLES[name], DOCS / f"bench-{name}.png")
    page = DOCS / "BENCHMARKS.md"
    page.write_text(document(results, page.read_text() if page.exists() else "", earlier))


def document(results: Mapping[str, Any], before: str = "", earlier: str = "") -> str:
    """*before*: the page so far. *earlier*: the page of another run, whose ratios stand beside those of *results*."""
    parts = [
        "# Benchmarks",
        INTRODUCTION,
        "```\nmake bench-apache\n```",
        machine_text(results, before),
        METHOD,
        EARLIER.format(machine=machine_text({}, earlier)) if earlier else "",
    ]
    for name, title in TITLES.items():
        kept = None if name in results else section_of(before, title)
        parts.append(kept or section(name, title, results.get(name), section_of(earlier, title) or ""))
    parts.append(NOT_MET)
    return "\n\n".join(part for part in parts if part) + "\n"


def section_of(page: str, title: str) -> str | None:
    """The section of *title*; None if the page has none, or it says that nothing was run."""
    _, found, behind = page.partition(f"\n## {title}\n")
    text = f"## {title}\n{behind.partition(NEXT_SECTION)[0]}".strip()
    return text if found and "\nNot run yet: " not in text else None


def machine_text(results: Mapping[str, Any], before: str = "") -> str:
    """Versions, date, cores and memory of the runs; those of each group if they differ."""
    told = {
        name: line
        for names, line in _MACHINE.findall(before.partition(NEXT_SECTION)[0])
        for name in (names.split(", ") if names else TITLES)
    }
    lines: dict[str, list[str]] = {}
    for name in TITLES:
        if name not in results and name in told and section_of(before, TITLES[name]):
            lines.setdefault(told[name], []).append(name)
        if name in results:
            machine, date = results[name]["machine"], results[name]["date"]
            versions = ", ".join(f"{what} {number}" for what, number in machine["versions"].items())
            line = f"{date}; {machine['cores']} cores, {machine['memory_mb']:,} MB, {machine['system']}; {versions}."
            lines.setdefault(line, []).append(name)
    if len(lines) == 1:
        return next(iter(lines))
    return "\n".join(f"- {', '.join(names)}: {line}" for line, names in lines.items())


def section(name: str, title: str, found: Mapping[str, Any] | None, earlier: str = "") -> str:
    parts = [f"## {title}", TEXTS[name]]
    if found is None:
        return "\n\n".join([*parts, f"Not run yet: `python -m bench.apache {name}`."])
    rows = [row_from(raw) for raw in found["rows"]]
    if found["failed"]:
        parts.append(f"**The group failed**: {found['failed']}")
    if rows:
        parts.append(markdown(rows, earlier))
    if name in PICTURED and any(row.values for row in rows):
        parts.append(f"![{title}](bench-{name}.png)")
    blocks = [note for note in found["notes"] if "\n" in note]
    lines = [note for note in found["notes"] if "\n" not in note]
    if lines:
        parts.append("\n".join(f"- {note}" for note in lines))
    parts += [f"```\n{block}\n```" for block in blocks]
    parts.append(f"`{found['command']}`, {found['took_s'] / 60:.1f} minutes.")
    if "quiet" in found:
        parts[-1] += f" {Quiet(**found['quiet']).told}"
    return "\n\n".join(parts)


def draw(rows: Sequence[Row], units: Sequence[str], title: str, path: Path) -> None:
    """A panel a unit; a line a row with a dot for each side's median and a bar from least to most, on a log scale."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot
    from matplotlib.lines import Line2D
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    panels = [(unit, found) for unit in units if (found := [row for row in rows if row.unit == unit and row.values])]
    heights = [len(found) + 2 for _, found in panels]
    picture, all_axes = pyplot.subplots(
        len(panels), 1, figsize=(10, 0.28 * sum(heights) + 0.6), layout="constrained", squeeze=False,
        gridspec_kw={"height_ratios": heights},
    )  # fmt: skip
    picture.suptitle(title)
    names = {"apache": "Apache", "ours": "ours"}
    marks = [Line2D([], [], color=COLOURS[side], marker="o", linewidth=2, label=names[side]) for side in SIDES]
    picture.legend(handles=marks, loc="outside upper right", ncols=2, fontsize=8)
    for axes, (unit, found) in zip(all_axes[:, 0], panels, strict=True):
        for line, row in enumerate(found):
            for side in SIDES:
                middle = row.median(side)
                if middle is None:
                    continue
                values = row.values[side]
                axes.plot([min(values), max(values)], [line, line], color=COLOURS[side], linewidth=2, alpha=0.5)
                axes.plot([middle], [line], "o", color=COLOURS[side], markersize=6)
        axes.set_yticks(range(len(found)), [row.what for row in found], fontsize=8)
        axes.set_ylim(len(found) - 0.5, -0.5)
        if all(value > 0 for row in found for values in row.values.values() for value in values):
            axes.set_xscale("log")
            axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
            axes.xaxis.set_minor_formatter(NullFormatter())
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
        axes.set_xlabel(unit)
        axes.grid(axis="x", which="both", alpha=0.25)
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
                color=COLOURS["ours"], alpha=0.5,
            )  # fmt: skip
            axes.plot(places, medians, "o-", color=COLOURS["ours"], markersize=4)
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
