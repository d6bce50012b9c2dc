"""Proof that the tests find defects: each mutant of the catalogues is put into a copy of the sources and is caught.

    python -m tests.mutants                  every mutant, against the tests that it names
    python -m tests.mutants -k fence         those with `fence` in their name or place
    python -m tests.mutants --images 1500    against drawn crash images instead: what these find by themselves
    python -m tests.mutants --lives 20       against lives of whole clusters instead (`tests.simulation.stack`)
    python -m tests.mutants --reach 25       which of so many lives come to its place; with --lives 9: and try it with
                                             so many of those at most
    python -m tests.mutants --history        the mended faults of the history instead; also with --lives
    python -m tests.mutants --lot 30 --seed 7 --places bookie,broker/topic      thirty of them, drawn by lot

Prints a table; ends with 1 if a mutant survives, if its place is gone, or if a test fails without any mutant.
"""

import argparse
import contextlib
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

from tests.mutants import (
    abuse,
    auto_recovery,
    backups,
    broker,
    clients_bytes,
    http,
    ledger_client,
    managed_ledger,
    older_metadata,
    policies,
    rights,
    security,
    shares,
    spark,
    state_log,
    topic_clients,
)
from tests.mutants.catalogue import MUTANTS as BOOKIE_MUTANTS
from tests.mutants.catalogue import Mutant
from tests.mutants.history import HISTORY, hidden_by
from tests.mutants.reach import LIVE, line_of, probed
from tests.simulation.stack.__main__ import LIFE_S

MUTANTS = (
    *BOOKIE_MUTANTS, *ledger_client.MUTANTS, *managed_ledger.MUTANTS, *broker.MUTANTS, *auto_recovery.MUTANTS,
    *policies.MUTANTS, *security.MUTANTS, *spark.MUTANTS, *state_log.MUTANTS, *older_metadata.MUTANTS,
    *backups.MUTANTS,
    *http.MUTANTS, *clients_bytes.MUTANTS, *shares.MUTANTS, *abuse.MUTANTS, *rights.MUTANTS,
    *topic_clients.MUTANTS,
)  # fmt: skip

ROOT = Path(__file__).parent.parent.parent
COPIED = (
    "autorecovery",
    "bookie",
    "broker",
    "connectors",
    "docs",
    "magnetar",
    "magnetar_core",
    "managed_ledger",
    "tests",
    "pyproject.toml",
)

# A mutant that makes a server wait for ever is caught by this limit; the tests of one mutant never take as long.
_TIMEOUT_S = 180.0

# All tests that are named, in one run without a mutant.
_HEALTHY_TIMEOUT_S = 1800.0

_FAILED = re.compile(r"^FAILED (\S+?)(?:\[| |$)", re.MULTILINE)

# A life that broke a rule, and the beginning of what it says; those before it end with their figures.
_BROKEN = re.compile(r"\bseed \d+: (?!\d+ s, ).{1,78}")


class Outcome(NamedTuple):
    mutant: Mutant
    caught_by: str
    """Empty: it survived."""
    seconds: float
    problem: str


class Lived(NamedTuple):
    """A life of a cluster."""

    digest: str
    error: str
    """Empty: no rule was broken."""
    reached: frozenset[int]
    """Numbers of the places to which it came."""


class Workshop:
    """A copy of the sources in which one mutant at a time lives."""

    def __init__(self, directory: Path, timeout_s: float) -> None:
        self.directory = directory
        self._timeout_s = timeout_s
        self._written_s = 1_000_000_000
        for name in COPIED:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, directory / name, ignore=shutil.ignore_patterns("__pycache__", "*.png"))
            else:
                shutil.copy2(source, directory / name)
        for package in ("autorecovery", "bookie", "broker", "magnetar", "magnetar_core", "managed_ledger"):
            found = self._python("-c", f"import {package}; print({package}.__file__)").stdout.strip()
            assert Path(found).is_relative_to(directory), f"the copy is not what is imported, {found} is"

    def test(
        self, arguments: Sequence[str], *, timeout_s: float = 0.0, environment: Mapping[str, str] | None = None
    ) -> tuple[int, str]:
        """Exit code of pytest and what it said; -1 if it took too long."""
        timeout_s = timeout_s or self._timeout_s
        options = ("-m", "pytest", "-x", "-q", "-p", "no:cacheprovider")
        try:
            done = self._python(*options, *arguments, timeout_s=timeout_s, environment=environment)
        except subprocess.TimeoutExpired:
            return -1, f"nothing within {timeout_s:.0f} s"
        return done.returncode, done.stdout + done.stderr

    def try_mutant(
        self,
        mutant: Mutant,
        arguments: Sequence[str],
        environment: Mapping[str, str] | None = None,
        also: Sequence[Mutant] = (),
    ) -> Outcome:
        """*also*: others that are put in with it."""
        try:
            with self.mutated((mutant, *also)):
                return self._try(mutant, arguments, environment)
        except LookupError as error:
            return Outcome(mutant, "", 0, str(error))

    @contextlib.contextmanager
    def mutated(self, mutants: Sequence[Mutant]) -> Iterator[None]:
        """With *mutants* in the copy. LookupError if the place of one is gone."""
        originals: dict[Path, str] = {}
        try:
            for each in mutants:
                path = self.directory / each.path
                text = path.read_text()
                count = text.count(each.old)
                if count != 1:
                    raise LookupError(f"its place is {'gone' if count == 0 else f'there {count} times'}")
                originals.setdefault(path, text)
                self._write(path, text.replace(each.old, each.new))
            yield
        finally:
            for path, text in originals.items():
                self._write(path, text)

    def reached(self, mutants: Sequence[Mutant], seeds: Sequence[int]) -> dict[int, Lived]:
        """Live *seeds* without a mutant; which places of *mutants* they reach, by the number of the mutant."""
        lines: dict[str, dict[int, int]] = {}
        for number, mutant in enumerate(mutants):
            line = line_of(mutant, (self.directory / mutant.path).read_text())
            lines.setdefault(mutant.path, {})[number] = line
        originals = {self.directory / path: (self.directory / path).read_text() for path in lines}
        try:
            for path in lines:
                file = self.directory / path
                self._write(file, probed(originals[file], lines[path]))
            return self.live(seeds)
        finally:
            for file, text in originals.items():
                self._write(file, text)

    def live(self, seeds: Sequence[int]) -> dict[int, Lived]:
        """The lives of *seeds*, up to the first that breaks a rule."""
        try:
            done = self._python(
                "-c", LIVE, *map(str, seeds), timeout_s=LIFE_S * len(seeds), environment={"PYTHONHASHSEED": "0"}
            )
            printed, failure = done.stdout, done.stderr[-200:].replace("\n", " ") if done.returncode else ""
        except subprocess.TimeoutExpired as expired:
            printed, failure = (expired.stdout or b"").decode(), "it hangs"
        lives: dict[int, Lived] = {}
        for line in printed.splitlines():
            fields = line.split("\t")
            if len(fields) == 4:
                seed, digest, error, numbers = fields
                lives[int(seed)] = Lived(digest, error.removeprefix("-"), frozenset(map(int, numbers.split())))
        if failure:
            lives[seeds[len(lives)]] = Lived("", failure, frozenset())
        return lives

    def _write(self, path: Path, text: str) -> None:
        """Each time with another time of change: what was compiled of the former text is not used for this one."""
        path.write_text(text)
        self._written_s += 1
        os.utime(path, (self._written_s, self._written_s))

    def _try(self, mutant: Mutant, arguments: Sequence[str], environment: Mapping[str, str] | None) -> Outcome:
        """What the tests say of the copy as it is now."""
        began = time.monotonic()
        code, text = self.test(arguments, environment=environment)
        seconds = time.monotonic() - began
        if code == 0:
            return Outcome(mutant, "", seconds, "")
        broken = _BROKEN.search(text)
        if code == 1 and broken is not None:
            return Outcome(mutant, broken[0], seconds, "")
        failed = _FAILED.search(text)
        if code == 1 and failed is not None:
            return Outcome(mutant, failed[1].rpartition("::")[2].removeprefix("test_"), seconds, "")
        if code == -1:
            return Outcome(mutant, text, seconds, "")
        return Outcome(mutant, "", seconds, f"pytest ended with {code}:\n{text[-2000:]}")

    def _python(
        self, *arguments: str, timeout_s: float = 60.0, environment: Mapping[str, str] | None = None
    ) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=self.directory,
            env={
                **os.environ,
                "PYTHONDONTWRITEBYTECODE": "",
                "PYTHONPYCACHEPREFIX": str(self.directory / "compiled"),
                "PYTHONPATH": str(self.directory),
                **(environment or {}),
            },
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )


def healthy(workshop: Workshop, mutants: Sequence[Mutant]) -> str:
    """The failures without a mutant, with which the tests would prove nothing; empty if there are none."""
    files = sorted({argument for mutant in mutants for argument in mutant.tests if argument.endswith(".py")})
    code, text = workshop.test(files, timeout_s=_HEALTHY_TIMEOUT_S)
    return "" if code == 0 else text[-3000:]


def try_lives(workshops: "SimpleQueue[Workshop]", mutants: Sequence[Mutant], options: argparse.Namespace) -> int:
    """What lives of clusters find of *mutants*: each is tried with those only that come to its place, in the order of
    their seeds. Prints for each: lives that come there, that were lived with it, of which something was another than
    without it, and what was broken."""
    workshop = workshops.get()
    seeds = range(options.first, options.first + options.reach)
    healthy_lives = workshop.reached(mutants, seeds)
    workshops.put(workshop)
    for seed, life in healthy_lives.items():
        if life.error:
            print(f"seed {seed} breaks a rule without any mutant: {life.error}")
            return 1
    width = max(len(mutant.name) for mutant in mutants)
    print(f"{'mutant':{width}}  reached  lived  other  {'broken' if options.lives else 'seeds'}", flush=True)

    def work(number: int) -> bool:
        mutant = mutants[number]
        reaching = [seed for seed, life in healthy_lives.items() if number in life.reached]
        lived: dict[int, Lived] = {}
        if reaching and options.lives:
            workshop = workshops.get()
            also = hidden_by(mutant) if options.history else ()
            try:
                with workshop.mutated((mutant, *also)):
                    lived = workshop.live(reaching[: options.lives])
            finally:
                workshops.put(workshop)
        others = sum(life.digest != healthy_lives[seed].digest for seed, life in lived.items())
        broken = next((f"seed {seed}: {life.error[:110]}" for seed, life in lived.items() if life.error), "")
        told = broken if options.lives else ",".join(map(str, reaching))
        print(f"{mutant.name:{width}}  {len(reaching):7}  {len(lived):5}  {others:5}  {told}", flush=True)
        return bool(broken)

    with ThreadPoolExecutor(options.n) as pool:
        broken = list(pool.map(work, range(len(mutants))))
    reached = frozenset[int]().union(*(life.reached for life in healthy_lives.values()))
    print(f"\n{len(reached)} of {len(mutants)} are reached by {len(healthy_lives)} lives; {sum(broken)} found")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description="Try the suite against mistakes.")
    parser.add_argument("-k", metavar="WORD", default="", help="only mutants with WORD in their name or place")
    parser.add_argument("-n", type=int, default=2, help="how many at a time (2)")
    parser.add_argument("--images", type=int, default=0, help="try so many drawn crash images instead of named tests")
    parser.add_argument("--lives", type=int, default=0, help="try so many lives of clusters instead of named tests")
    parser.add_argument("--reach", type=int, default=0, help="live so many lives first, and try those that come there")
    parser.add_argument("--first", type=int, default=0, help="the first seed of these lives (0)")
    parser.add_argument("--history", action="store_true", help="the mended faults of the history, and only these")
    parser.add_argument("--lot", type=int, default=0, help="only so many of them, drawn by lot")
    parser.add_argument("--seed", type=int, default=1, help="of the lot (1)")
    parser.add_argument("--places", default="", help="only mutants below these folders, with commas between them")
    parser.add_argument(
        "--patience", type=float, default=_TIMEOUT_S, help="seconds that a mutant's tests may take (180)"
    )
    options = parser.parse_args()
    places = tuple(options.places.split(","))
    mutants = [
        mutant
        for mutant in ([mended.fault for mended in HISTORY] if options.history else MUTANTS)
        if (options.k in mutant.name or options.k in mutant.path) and mutant.path.startswith(places)
    ]
    if not mutants:
        parser.error(f"no mutant has {options.k!r} in its name or place, below {options.places or 'any folder'}")
    if options.lot:
        mutants = random.Random(options.seed).sample(mutants, min(options.lot, len(mutants)))
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mutants-") as temporary:
        workshops: SimpleQueue[Workshop] = SimpleQueue()
        for number in range(options.n):
            workshops.put(Workshop(Path(temporary) / str(number), options.patience))
        if options.reach:
            return try_lives(workshops, mutants, options)
        if not options.images and not options.lives:
            workshop = workshops.get()
            problem = healthy(workshop, mutants)
            workshops.put(workshop)
            if problem:
                print(f"the tests fail without any mutant:\n{problem}")
                return 1

        def work(mutant: Mutant) -> Outcome:
            workshop = workshops.get()
            also = hidden_by(mutant) if options.history else ()
            try:
                if options.images:
                    return workshop.try_mutant(
                        mutant,
                        ["tests/crash/test_crash_images.py", "-k", "in_every_image"],
                        {"MAGNETAR_CRASH_IMAGES": str(options.images), "MAGNETAR_CRASH_SEED": "1"},
                        also,
                    )
                if options.lives:
                    return workshop.try_mutant(
                        mutant,
                        ["tests/simulation/test_stack_sim.py", "-k", "in_the_lives"],
                        {"MAGNETAR_LIVES": str(options.lives)},
                        also,
                    )
                return workshop.try_mutant(mutant, mutant.tests, also=also)
            finally:
                workshops.put(workshop)

        outcomes = []
        width = max(len(mutant.name) for mutant in mutants)
        print(f"{'mutant':{width}}  {'place':40}  {'caught by':90}  seconds")
        with ThreadPoolExecutor(options.n) as pool:
            for outcome in pool.map(work, mutants):
                outcomes.append(outcome)
                caught_by = outcome.caught_by or ("?" if outcome.problem else "NOBODY")
                print(
                    f"{outcome.mutant.name:{width}}  {outcome.mutant.path:40}  {caught_by:90}  {outcome.seconds:.1f}",
                    flush=True,
                )
    for outcome in outcomes:
        if outcome.problem:
            print(f"\n{outcome.mutant.name} ({outcome.mutant.path}): {outcome.problem}")
    caught = sum(bool(outcome.caught_by) for outcome in outcomes)
    print(f"\n{caught} of {len(outcomes)} caught, {time.monotonic() - began:.0f} s")
    return 0 if caught == len(outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
