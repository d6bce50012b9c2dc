"""The same benches by several Pythons, in turn: `python -m bench.pythons 3.11=python3.11 3.14=/opt/py314/bin/python`.

Each is a name and the command of an interpreter that has Magnetar and `requirements/dev.txt`; it runs servers and load.
The leading number of each row of `python -m bench GROUP` counts: the median of the rounds, and its ratio to that of the
Python that is named first.
"""

import argparse
import re
import shlex
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from bench.apache.table import figure

ROOT: Final = Path(__file__).resolve().parent.parent
GROUPS: Final = ("adds", "client", "start")
ROW: Final = re.compile(
    r"^(?P<label>\S.*?) {2,}(?P<number>[\d,]+(?:\.\d+)?)(?: ?(?P<unit>/s|s|ms|MB|%)(?!\w))?", re.MULTILINE
)

Figures = Mapping[str, float]
"""Label of a row, with its unit → its number."""


def parse_rows(text: str) -> dict[str, float]:
    """What `python -m bench` printed. Rows without a leading number are left out."""
    found = {}
    for row in ROW.finditer(text):
        unit = row["unit"]
        found[f"{row['label']} ({unit})" if unit else row["label"]] = float(row["number"].replace(",", ""))
    return found


def table(runs: Mapping[str, Sequence[Figures]]) -> list[str]:
    """Lines of Markdown. *runs*: name of a Python → its rounds, in the order of columns."""
    first, *others = runs
    lines = [
        f"| what | {' | '.join(runs)} | {' | '.join(f'{name} ÷ {first}' for name in others)} |",
        f"|---|{'---:|' * (len(runs) + len(others))}",
    ]
    for label in runs[first][0]:
        medians = {
            name: statistics.median(found) if (found := [one[label] for one in rounds if label in one]) else None
            for name, rounds in runs.items()
        }
        cells = [figure(value) if value is not None else "–" for value in medians.values()]
        base = medians[first]
        for name in others:
            value = medians[name]
            cells.append(f"{value / base:.2f}" if value is not None and base else "–")
        lines.append(f"| {label} | {' | '.join(cells)} |")
    return lines


def run(command: Sequence[str], group: str) -> dict[str, float]:
    print(f"{shlex.join(command)}: {group} …", file=sys.stderr, flush=True)
    done = subprocess.run([*command, "-m", "bench", group], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{shlex.join(command)} -m bench {group} ended with {done.returncode}")
    return parse_rows(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pythons", nargs="+", metavar="NAME=COMMAND")
    parser.add_argument("--group", action="append", dest="groups", help=f"of `python -m bench` ({', '.join(GROUPS)})")
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    commands = {}
    for given in options.pythons:
        name, equals, command = given.partition("=")
        if not (name and equals and command):
            parser.error(f"{given}: say NAME=COMMAND")
        commands[name] = shlex.split(command)
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in commands}
    for _ in range(max(options.rounds, 1)):
        for rounds in runs.values():
            rounds.append({})
        for group in options.groups or GROUPS:
            for name, command in commands.items():
                runs[name][-1].update(run(command, group))
    print("\n".join(table(runs)))


if __name__ == "__main__":
    main()
