"""Live the lives of seeds, each in a process of its own: `python -m tests.simulation.stack 0 200 --story`.

Prints a line for each life, and the story of each that broke a rule; the exit code is the number of those, at most 99.
Hashes of texts are the same in each run (PYTHONHASHSEED=0), so that a seed is the same life everywhere.
"""

import argparse
import gc
import importlib
import json
import logging
import multiprocessing
import os
import resource
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any

from tests.simulation.stack import life as lives
from tests.simulation.stack.shrinking import read, shrink, spelled

# Seconds of real time: a life that takes longer hangs, also on a machine that is busy.
LIFE_S = 600

# What brokers load when they start: lives that begin in a fork need not do it again.
LOADED = ("autorecovery.node", "broker.admin.server", "broker.grpc.service")


def _live(seed: int, answer: Connection, level: str, without: Sequence[str]) -> None:
    if level == "NONE":
        logging.getLogger().addHandler(logging.NullHandler())
    else:
        logging.basicConfig(level=level, stream=sys.stderr)
    life = lives.Life.of(seed, without)
    outcome: dict[str, Any] = {"seed": seed, "error": None}
    try:
        life.live()
    except BaseException as error:
        outcome["error"] = f"{type(error).__name__}: {error}"
        if not isinstance(error, lives.Broken):
            outcome["error"] += "\n" + traceback.format_exc()
    used = resource.getrusage(resource.RUSAGE_SELF)
    outcome |= {
        "story": life.story, "counts": dict(life.counts), "virtual_s": life.loop.time(),
        "cpu_s": used.ru_utime + used.ru_stime, "digest": life.digest(),
        "parts": life.parts,
    }  # fmt: skip
    answer.send_bytes(json.dumps(outcome).encode())
    answer.close()
    os._exit(0)


def run(
    seeds: list[int], *, jobs: int, level: str = "NONE", until_broken: bool = False, without: Sequence[str] = (),
    show: Callable[[dict[str, Any]], None] | None = None,
) -> list[dict[str, Any]]:  # fmt: skip
    """The outcomes, as they come. *until_broken*: no life is begun after one has broken a rule. *without*: what is left
    out. *show* is given each outcome; it is printed otherwise."""
    for module in LOADED:
        importlib.import_module(module)
    gc.freeze()
    # When it comes depends on what else was made, and with it what weak references still have. A life is short.
    gc.disable()
    context = multiprocessing.get_context("fork")
    waiting = list(reversed(seeds))
    running: dict[Connection, tuple[int, Any, float]] = {}
    outcomes: list[dict[str, Any]] = []
    while waiting or running:
        while waiting and len(running) < jobs:
            seed = waiting.pop()
            ours, theirs = context.Pipe(duplex=False)
            process = context.Process(target=_live, args=(seed, theirs, level, without))
            process.start()
            theirs.close()
            running[ours] = (seed, process, time.monotonic())
        ready = wait(list(running), timeout=1.0)
        for pipe, (seed, process, began_s) in list(running.items()):
            if pipe not in ready and time.monotonic() - began_s < LIFE_S:
                continue
            try:
                outcome = json.loads(pipe.recv_bytes()) if pipe in ready else None
            except EOFError:
                outcome = None
            if outcome is None:
                outcome = {"seed": seed, "error": f"it hung for {LIFE_S} s, or its process died", "story": []}
                process.kill()
            process.join()
            del running[pipe]
            outcomes.append(outcome)
            (show or print_outcome)(outcome)
            if until_broken and outcome["error"] is not None:
                waiting.clear()
    return outcomes


def print_shrunk(outcome: dict[str, Any], without: Sequence[str]) -> None:
    """The story of a life that broke a rule, without what it does not need for that."""
    seed, parts = outcome["seed"], outcome.get("parts", [])
    smallest = outcome

    def is_broken(left_out: Sequence[str]) -> bool:
        nonlocal smallest
        (lived,) = run([seed], jobs=1, without=[*without, *left_out], show=lambda _: None)
        if lived["error"] is not None:
            smallest = lived
        return lived["error"] is not None

    needed = shrink(parts, is_broken)
    left_out = [*without, *(part for part in parts if part not in needed)]
    print_outcome(smallest)
    print(f"again: make sim SEED={seed} WITHOUT={spelled(left_out)}", flush=True)


def print_outcome(outcome: dict[str, Any]) -> None:
    """One line; with the story of a life that broke a rule."""
    if outcome["error"] is None:
        counts = ", ".join(f"{count} {what}" for what, count in sorted(outcome["counts"].items()))
        print(
            f"seed {outcome['seed']}: {outcome['virtual_s']:.0f} s, {outcome['cpu_s']:.2f} s of a processor; {counts}; "
            f"{outcome['digest']}",
            flush=True,
        )
        return
    print(
        f"\nseed {outcome['seed']}: {outcome['error']}",
        *(f"  {line}" for line in outcome["story"]),
        "",
        sep="\n",
        flush=True,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("first", type=int)
    parser.add_argument("end", type=int, nargs="?", help="the first seed that is not lived; one more than the first")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--story", action="store_true", help="print the story of each life")
    parser.add_argument("--log", default="NONE", help="level of the servers' log lines that are printed")
    parser.add_argument("--until-broken", action="store_true", help="end with the first life that breaks a rule")
    parser.add_argument("--without", default="", help="what is left out: names of applications, numbers of events")
    parser.add_argument("--shrink", action="store_true", help="leave out of broken lives what they do not need")
    options = parser.parse_args()
    without = read(options.without)
    end = options.first + 1 if options.end is None else options.end
    outcomes = run(
        list(range(options.first, end)), jobs=options.jobs, level=options.log, until_broken=options.until_broken,
        without=without,
    )  # fmt: skip
    for outcome in outcomes:
        if options.story and outcome["error"] is None:
            print(*outcome["story"], sep="\n")
        if options.shrink and outcome["error"] is not None:
            print_shrunk(outcome, without)
    bad = [outcome["seed"] for outcome in outcomes if outcome["error"] is not None]
    total: Counter[str] = Counter()
    for outcome in outcomes:
        total.update(outcome.get("counts", {}))
    virtual_s = sum(outcome.get("virtual_s", 0) for outcome in outcomes)
    cpu_s = sum(outcome.get("cpu_s", 0) for outcome in outcomes)
    print(
        f"{len(outcomes)} lives, {virtual_s / 3600:.1f} virtual hours, {cpu_s:.0f} s of processors; "
        + ", ".join(f"{count} {what}" for what, count in sorted(total.items()))
    )
    print(f"broke a rule: {bad or 'none'}")
    return min(len(bad), 99)


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":
        os.execve(
            sys.executable,
            [sys.executable, "-m", "tests.simulation.stack", *sys.argv[1:]],
            {**os.environ, "PYTHONHASHSEED": "0"},
        )
    sys.exit(main())
