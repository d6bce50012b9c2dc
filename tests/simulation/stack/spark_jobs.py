"""Spark's planner and follower in a life: jobs that read a topic while others write to it, straight from the bookies.

Two kinds, with the parts of the connector that decide, and a reading of the entries that is as plain as it goes:

- A batch job is planned now and then. All that was acknowledged before is in its plan, or the plan is refused.
- A query follows the topic; it dies now and then, and goes on from its checkpoint, or repeats the batch that it was in.
  Each entry comes once, a repeated batch has the same entries, and in the end all that was acknowledged has come.
"""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Final

from connectors.spark.options.read import parse_options
from connectors.spark.plan.cluster import Freezer, TopicMissing
from connectors.spark.plan.planning import TopicRange, plan
from connectors.spark.ranges import Position, Run
from connectors.spark.stream.follower import Follower
from connectors.spark.stream.offsets import EARLIEST, Part
from magnetar.testing.simulated.cluster import ROOT
from magnetar.testing.simulated.loop import VirtualClock
from magnetar_core.bookkeeper.client.client import BookKeeper
from magnetar_core.bookkeeper.client.config import ClientConfig
from magnetar_core.bookkeeper.metadata.stores.store import MetadataStore
from magnetar_core.runtime.types import MagnetarError
from magnetar_core.topics.topic_name import TopicName
from managed_ledger.messages import messages_of
from tests.simulation.stack.applications import World

READ_BYTES: Final = 64 * 1024

# A life that has healed lets a query read within this.
PATIENCE_S: Final = 180.0

Placed = Mapping[str, tuple[int, int]]
"""Message → its position; (-1, -1) where nobody was told."""


class SparkJobs:
    """Jobs that read *topic*, of which *sent* is what was acknowledged to its producers so far."""

    def __init__(self, world: World, topic: str, sent: Placed, rng: random.Random) -> None:
        self._world = world
        self._topic = TopicName.parse(topic)
        self._sent = sent
        self._rng = rng
        self._options = parse_options({"metadata.url": "zk:metadata:2181", "topic": topic})
        self._process, _ = world.client("spark")
        self._clock = VirtualClock(world.cluster.loop)
        self._checkpoint: Position = EARLIEST
        """What stands before it was read by the query."""
        self._planned: Position | None = None
        """Up to which the batch goes that was begun and not ended; it was written down before it was begun."""
        self._runs: list[tuple[int, int, int]] = []
        """Ledger, first and last entry of what that batch has."""
        self._read: dict[Position, list[str]] = {}
        """What the query has read."""

    async def run(self) -> None:
        """While there are faults."""
        await self._process.run(self._while_faulty())

    async def finish(self) -> None:
        """All that was acknowledged has been read, or is now."""
        await self._process.run(self._finish())

    async def _while_faulty(self) -> None:
        await asyncio.gather(self._batch_jobs(), self._query())

    @contextlib.asynccontextmanager
    async def _connected(self) -> AsyncIterator[tuple[MetadataStore, BookKeeper]]:
        """As `connectors.spark.plan.cluster.connected`."""
        store = self._world.cluster.server.session(self._clock)
        bookkeeper = BookKeeper(store, self._clock, ClientConfig(timeout_s=self._options.read_timeout_s), root=ROOT)
        try:
            await store.sync()
            await bookkeeper.open()
            yield store, bookkeeper
        finally:
            await bookkeeper.close()
            await store.close()

    # -------------------------------------------------------------------------------- batch jobs

    async def _batch_jobs(self) -> None:
        while self._world.is_faulty:
            await asyncio.sleep(self._rng.uniform(1.0, 8.0))
            await self._batch_job()

    async def _batch_job(self) -> bool:
        """Whether it could be planned, and has all that was acknowledged before."""
        acknowledged = {text: place for text, place in self._sent.items() if place[0] >= 0}
        try:
            async with self._connected() as (store, bookkeeper):
                (frozen,) = await Freezer(self._options, store, bookkeeper).ranges(self._topic)
        except TopicMissing:
            if acknowledged:
                self._world.problem(f"Spark does not find {self._topic}, which has {len(acknowledged)} messages")
            return not acknowledged
        except MagnetarError as error:
            self._world.note(f"Spark's job is refused: {error}")
            return False
        missing = [text for text, place in acknowledged.items() if not _has(frozen.runs, place)]
        self._world.counts["planned for Spark"] += len(acknowledged)
        if missing:
            some = [(text, acknowledged[text]) for text in missing[:3]]
            self._world.problem(
                f"a job of Spark leaves out {len(missing)} that were acknowledged, {some}; its last: {frozen.runs[-3:]}"
            )
        return not missing

    # -------------------------------------------------------------------------------- the query

    async def _query(self) -> None:
        while self._world.is_faulty:
            with contextlib.suppress(MagnetarError):
                await self._lifetime(self._rng.randint(1, 8))
            await asyncio.sleep(self._rng.uniform(0.1, 3.0))

    async def _lifetime(self, triggers: int) -> None:
        """So many batches of one process. Raises MagnetarError."""
        async with self._connected() as (store, bookkeeper):
            follower = Follower(self._options, store, bookkeeper, self._clock)
            try:
                for _ in range(triggers):
                    await self._batch(follower, bookkeeper)
                    await asyncio.sleep(self._rng.choice((0.1, 1.0, 3.0)))
            finally:
                follower.close()

    async def _batch(self, follower: Follower, bookkeeper: BookKeeper) -> None:
        """Read what is new. Raises MagnetarError; what is read then counts as not read."""
        part = Part(str(self._topic), -1)
        if self._planned is None:
            await follower.look()
            parts = follower.ends()
            if not parts:
                return
            ((part, end),) = parts.items()
            follower.check_whole(part, self._checkpoint, None)
            if end <= self._checkpoint:
                return
            self._planned = end
        else:  # another process has planned it
            await follower.look()
            ((part, _),) = follower.ends().items()
            await follower.look_up_to({part: self._planned})
            follower.check_known(part, self._planned)
        follower.reach(part, self._planned)
        batch = follower.range(part, self._checkpoint, self._planned)
        runs = [(run.ledger_id, run.first, run.last) for run in batch.runs]
        if self._runs and runs != self._runs:
            self._world.problem(f"Spark's query repeats a batch as {runs} that was {self._runs}")
        self._runs = runs
        entries = await self._entries(bookkeeper, [batch])
        again = next((place for place in entries if place in self._read), None)
        if again is not None:
            self._world.problem(f"Spark's query gets the entry {again} of {self._topic} twice")
        self._read.update(entries)
        self._checkpoint, self._planned, self._runs = self._planned, None, []
        self._world.counts["read by Spark"] += sum(map(len, entries.values()))

    async def _entries(self, bookkeeper: BookKeeper, ranges: Sequence[TopicRange]) -> dict[Position, list[str]]:
        """What the tasks of a batch read. Raises MagnetarError."""
        entries: dict[Position, list[str]] = {}
        for split in plan(ranges, target_bytes=self._rng.choice((1_000, 100_000)), min_partitions=1):
            for run in split.runs:
                for place, texts in (await self._run(bookkeeper, run)).items():
                    if place in entries:
                        self._world.problem(f"two tasks of Spark read the entry {place} of {self._topic}")
                    entries[place] = texts
        return entries

    async def _run(self, bookkeeper: BookKeeper, run: Run) -> dict[Position, list[str]]:
        entries: dict[Position, list[str]] = {}
        handle = await bookkeeper.open_ledger(run.ledger_id, recovery=False)
        try:
            entry_id = run.first
            while entry_id <= run.last:
                answer = await handle.read_batch_unconfirmed(entry_id, run.last - entry_id + 1, READ_BYTES)
                for entry in answer:
                    texts = [bytes(each.payload).decode() for each in messages_of(entry.payload)[1]]
                    entries[run.ledger_id, entry.entry_id] = texts
                entry_id = answer[-1].entry_id + 1
        finally:
            await handle.close()
        return entries

    # -------------------------------------------------------------------------------- the end

    async def _finish(self) -> None:
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + PATIENCE_S
        while True:
            problem = ""
            try:
                if not await self._batch_job():
                    problem = "a job is refused"
                await self._lifetime(2)
            except MagnetarError as error:
                problem = repr(error)
            if not problem:
                problem = self._unread()
            if not problem:
                return
            if loop.time() > deadline_s:
                self._world.problem(f"Spark, after all faults: {self._topic}: {problem}")
                return
            await asyncio.sleep(1.0)

    def _unread(self) -> str:
        there = {text for texts in self._read.values() for text in texts}
        for text, place in self._sent.items():
            if text not in there if place[0] < 0 else text not in self._read.get(place, ()):
                return f"the query, which is at {self._checkpoint}, has not read {text} at {place}"
        return ""


def _has(runs: Sequence[Run], place: Position) -> bool:
    return any(run.ledger_id == place[0] and run.first <= place[1] <= run.last for run in runs)
