"""Run programs at both brokers, several at a time: `python -m tests.differ 0 200 --minutes 5`.

Without seeds it begins with one that it draws, and goes on until the time is over; with one it runs that.

Each program has a process of its own, since a client that crashes or hangs must not end the run. Prints the story of
each difference; the exit code is 1 if one is not listed.
"""

import argparse
import itertools
import multiprocessing
import os
import pickle
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Final

from tests.differ import servers
from tests.differ.compare import Comparison, Finding, story
from tests.differ.events import Program, program_of
from tests.differ.program import program_of_seed
from tests.differ.runner import run as run_program
from tests.differ.servers import Address, Pair
from tests.support.mixed_cluster import is_there

KEPT: Final = Path(__file__).parent / "kept.txt"
# A program takes seconds; one that differs is shrunk, which takes minutes. What takes longer hangs.
PROGRAM_S: Final = 900
ALONE_S: Final = 90

Task = tuple[str, Program]


def kept() -> list[Task]:
    """The programs of `kept.txt`, each behind a line that begins with `##` and names it."""
    parts = re.split(r"(?m)^## *", KEPT.read_text(encoding="utf-8"))[1:]
    return [(part.partition("\n")[0], program_of(part.partition("\n")[2].splitlines())) for part in parts]


def _compare(pair: Pair, name: str, program: Program, is_shrunk: bool, answer: Connection) -> None:
    finding = Comparison(pair, name).finding(program, is_shrunk=is_shrunk)
    answer.send_bytes(pickle.dumps(finding))
    answer.close()
    os._exit(0)


def plain_name(name: str) -> str:
    """Of a namespace."""
    return re.sub(r"\W+", "-", name)[:40]


def _of_whom(pair: Pair, name: str, finding: Finding) -> Finding:
    """The client crashed or hung: with which broker? It is the client's own fault if it does so with Apache's, too."""
    context = multiprocessing.get_context("fork")
    ends: list[bool] = []
    for address in pair:
        process = context.Process(target=run_program, args=(finding.program, address, f"public/{name}-{len(ends)}"))
        process.start()
        process.join(ALONE_S)
        ends.append(process.exitcode == 0)
        process.kill()
    is_ours = ends == [True, False]
    return finding._replace(kind=f"{finding.kind} with ours" if is_ours else f"the client {finding.kind}")


def run(
    pair: Pair, tasks: Iterable[Task], *, jobs: int, end_s: float, is_shrunk: bool = True
) -> list[tuple[Task, Finding]]:
    """What was found, as it comes. No program begins after *end_s*, of `time.monotonic`."""
    context = multiprocessing.get_context("fork")
    begun = f"{int(time.time()):x}"  # servers that are used again know the namespaces of former runs
    findings: list[tuple[Task, Finding]] = []
    running: dict[Connection, tuple[Task, Any, float]] = {}
    waiting = itertools.takewhile(lambda _: time.monotonic() < end_s, tasks)
    is_over = False
    while running or not is_over:
        while len(running) < jobs and not is_over:
            task = next(waiting, None)
            if task is None:
                is_over = True
                break
            name, program = task
            ours, theirs = context.Pipe(duplex=False)
            arguments = (pair, f"{plain_name(name)}-{begun}", program, is_shrunk, theirs)
            process = context.Process(target=_compare, args=arguments)
            process.start()
            theirs.close()
            running[ours] = (task, process, time.monotonic())
        ready = wait(list(running), timeout=1.0)
        for pipe, (task, process, began_s) in list(running.items()):
            if pipe not in ready and time.monotonic() - began_s < PROGRAM_S:
                continue
            try:
                finding = pickle.loads(pipe.recv_bytes()) if pipe in ready else Finding("hung", task[1])
            except EOFError:
                finding = Finding("crashed", task[1])
            process.kill()
            process.join()
            del running[pipe]
            if finding.kind in ("hung", "crashed"):
                finding = _of_whom(pair, plain_name(task[0]) + "-alone-" + begun, finding)
            findings.append((task, finding))
            if finding.kind == "listed":
                print(f"{task[0]}: listed, {finding.reason}", flush=True)
            elif finding.difference is not None:
                print(*story(finding, task[0]), sep="\n", flush=True)
            elif finding.kind != "same":
                print(f"{task[0]}: {finding.kind}", *finding.program, sep="\n    ", flush=True)
    return findings


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("first", type=int, nargs="?", help="the first seed")
    parser.add_argument("end", type=int, nargs="?", help="the first seed that is not run; one more than the first")
    parser.add_argument("--minutes", type=float, default=600.0, help="no program begins later")
    parser.add_argument("--jobs", type=int, default=6)
    parser.add_argument("--program", type=Path, help="a file with a program, instead of seeds")
    parser.add_argument("--kept", action="store_true", help="the kept programs first")
    parser.add_argument("--whole", action="store_true", help="do not shrink what differs")
    parser.add_argument("--at", help="four addresses of servers that run: Apache's broker and HTTP, ours")
    options = parser.parse_args()
    if not is_there():
        print("Apache's servers are not there: run `python deploy/fetch_apache.py`")
        return 2
    if options.program is not None:
        tasks: Iterable[Task] = [(options.program.stem, program_of(options.program.read_text().splitlines()))]
    else:
        first = int(time.time()) if options.first is None else options.first
        many = sys.maxsize - first if options.first is None else 1
        seeds = range(first, first + many if options.end is None else options.end)
        print(f"seeds from {first}", flush=True)
        tasks = ((f"seed {seed}", program_of_seed(seed)) for seed in seeds)
    tasks = itertools.chain(kept() if options.kept else (), tasks)
    log: Path | None = None
    with tempfile.TemporaryDirectory() as folder:
        began_s = time.monotonic()

        def all_of(pair: Pair) -> list[tuple[Task, Finding]]:
            end_s = time.monotonic() + options.minutes * 60
            return run(pair, tasks, jobs=options.jobs, end_s=end_s, is_shrunk=not options.whole)

        if options.at:
            words = options.at.split()
            findings = all_of(Pair(Address(*words[:2]), Address(*words[2:4])))
        else:
            with servers.running(Path(folder)) as (pair, log):
                print(f"both brokers are ready after {time.monotonic() - began_s:.0f} s", flush=True)
                began_s = time.monotonic()
                findings = all_of(pair)
        minutes = (time.monotonic() - began_s) / 60
        counts = Counter(finding.kind for _, finding in findings)
        events = sum(len(program) for (_, program), _ in findings)
        text = ", ".join(f"{number} {kind}" for kind, number in sorted(counts.items()))
        print(f"{len(findings)} programs, {events} events, {len(findings) / minutes:.0f} programs a minute: {text}")
        reasons = Counter(finding.reason for _, finding in findings if finding.kind == "listed")
        print(*(f"    {number} {reason}" for reason, number in reasons.most_common()), sep="\n")
        errors = [] if log is None else re.findall(r"(?m)^Traceback.*(?:\n.*){1,12}", log.read_text(errors="replace"))
        print(*errors[:3], sep="\n")
        return int(bool(errors or counts.keys() - {"same", "listed", "once", "the client crashed", "the client hung"}))


if __name__ == "__main__":
    sys.exit(main())
