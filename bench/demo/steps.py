"""A demonstration on a cluster of its own: what it prints, and how it begins and ends."""

import shutil
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path

from magnetar.processes.cluster import Cluster
from magnetar_core.runtime.process.daemon import new_clock
from magnetar_core.runtime.types import MagnetarError


class DemoFailed(MagnetarError):
    """A result differs from what was expected; the text says which."""


class Steps(ABC):
    """The steps of one run, over *cluster*, whose folder is `directory/cluster`."""

    def __init__(self, directory: Path, cluster: Cluster) -> None:
        self.directory = directory
        self.cluster = cluster
        self.clock = new_clock()
        self.steps: list[tuple[str, float]] = []
        self._begun = self.clock.monotonic()

    @abstractmethod
    def run(self) -> None:
        """Raises MagnetarError."""

    def say(self, text: str) -> None:
        print(text, flush=True)

    def done(self, text: str) -> None:
        """Print the result of a step and the time it took."""
        now = self.clock.monotonic()
        self.note(text, now - self._begun)
        self.say(f"  {text}  ({now - self._begun:.1f} s)")
        self._begun = now

    def note(self, text: str, seconds: float) -> None:
        """A time for the summary alone."""
        self.steps.append((text, seconds))

    def summary(self) -> None:
        self.say("")
        self.say("What happened:")
        for text, seconds in self.steps:
            self.say(f"  {seconds:6.1f} s  {text}")


def perform(name: str, make: Callable[[Path], Steps]) -> int:
    """Run a demonstration in `out/NAME`, which is made anew, and stop its cluster; the exit code."""
    directory = Path("out", name).resolve()
    former = Cluster(directory / "cluster")
    if (former.directory / "cluster.json").exists():
        former.down()
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    demo = make(directory)
    try:
        demo.run()
    except MagnetarError as error:
        print(f"demo failed: {error}", file=sys.stderr)
        return 1
    finally:
        if (demo.cluster.directory / "cluster.json").exists():
            demo.cluster.down()
    return 0
