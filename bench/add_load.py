"""A load generator for bookies, in a process of its own: `python -m bench.add_load zk:… --size 1024 …`.

Keeps a bounded window of unacknowledged entries, or sends at a fixed rate, and prints one JSON line: adds, those of the
first second before them (warm), seconds, latency percentiles (ms).
"""

import argparse
import asyncio
import json
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Final

import uvloop

from magnetar_core.bookkeeper.client.client import BookKeeper
from magnetar_core.bookkeeper.client.errors import BookKeeperError
from magnetar_core.bookkeeper.client.write_handle import LedgerWriteHandle
from magnetar_core.bookkeeper.metadata.stores.url import open_store
from magnetar_core.runtime.clock import Clock, LoopClock

# Entries that a fixed rate may be behind; the bookies do not keep up with it then, and the rest is not sent.
BEHIND_MAX: Final = 100_000

TICK_S: Final = 0.001
"""A fixed rate sends what is due as often as this."""


class Sender(ABC):
    """Sends entries and times every 16th."""

    def __init__(self, handle: LedgerWriteHandle, clock: Clock, payload: bytes) -> None:
        self._handle = handle
        self._clock = clock
        self._payload = payload
        self._sent_at: dict[int, float] = {}
        self.latencies_ms: list[float] = []
        self.acknowledged = 0
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.stopped = False
        handle.listener = self

    @property
    def under_way(self) -> int:
        return self._handle.last_add_pushed + 1 - self.acknowledged

    @abstractmethod
    def send(self) -> None:
        """Send what is due now."""

    def _append(self, count: int, due: Callable[[int], float]) -> None:
        """*due*: entry → the time from which it is timed."""
        if count > 0 and not self.stopped:
            first = self._handle.append([self._payload] * count)
            for entry_id in range(first + (-first % 16), first + count, 16):
                self._sent_at[entry_id] = due(entry_id)

    def on_acknowledged(self, up_to: int) -> None:
        now = self._clock.monotonic()
        for entry_id in range(self.acknowledged + (-self.acknowledged % 16), up_to + 1, 16):
            self.latencies_ms.append((now - self._sent_at.pop(entry_id)) * 1000)
        self.acknowledged = up_to + 1

    def on_failed(self, error: BookKeeperError) -> None:
        if not self.failed.done() and not self.stopped:
            self.failed.set_exception(error)


class Window(Sender):
    """So many entries are under way at all times."""

    def __init__(self, handle: LedgerWriteHandle, clock: Clock, payload: bytes, window: int) -> None:
        super().__init__(handle, clock, payload)
        self._window = window

    def send(self) -> None:
        now = self._clock.monotonic()
        self._append(self._window - self.under_way, lambda _: now)

    def on_acknowledged(self, up_to: int) -> None:
        super().on_acknowledged(up_to)
        self.send()


class Paced(Sender):
    """So many entries a second, evenly; each is timed from when it was due, whether it was sent then or not."""

    def __init__(self, handle: LedgerWriteHandle, clock: Clock, payload: bytes, rate: int) -> None:
        super().__init__(handle, clock, payload)
        self._rate = rate
        self._began = clock.monotonic()

    def send(self) -> None:
        due = int((self._clock.monotonic() - self._began) * self._rate)
        count = due - (self._handle.last_add_pushed + 1)
        self._append(min(count, BEHIND_MAX - self.under_way), lambda entry_id: self._began + entry_id / self._rate)
        if not self.stopped:
            self._clock.call_later(TICK_S, self.send)


async def main(options: argparse.Namespace) -> None:
    clock = LoopClock()
    store = await open_store(options.metadata, clock)
    bookkeeper = BookKeeper(store, clock)
    await bookkeeper.open()
    ensemble, write, ack = map(int, options.quorums.split("/"))
    handle = await bookkeeper.create_ledger(ensemble_size=ensemble, write_quorum=write, ack_quorum=ack)
    sender: Sender
    if options.rate:
        sender = Paced(handle, clock, bytes(options.size), options.rate)
    else:
        sender = Window(handle, clock, bytes(options.size), options.window)
    sender.send()
    await asyncio.wait([sender.failed], timeout=1.0)  # warm
    sender.latencies_ms.clear()
    before, began = sender.acknowledged, clock.monotonic()
    await asyncio.wait([sender.failed], timeout=options.seconds)
    if sender.failed.done():
        sender.failed.result()
    adds, seconds = sender.acknowledged - before, clock.monotonic() - began
    sender.stopped = True
    ordered = sorted(sender.latencies_ms)
    shares = (("p50", 0.5), ("p99", 0.99), ("p999", 0.999))
    at = {name: ordered[int(len(ordered) * share)] for name, share in shares}
    print(json.dumps({"adds": adds, "warm": before, "seconds": seconds, **at}))
    sys.stdout.flush()
    await bookkeeper.close()
    await store.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("metadata")
    parser.add_argument("--size", type=int, default=1024)
    parser.add_argument("--quorums", default="3/3/2", help="E/Qw/Qa")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--window", type=int, default=4000, help="entries under way")
    parser.add_argument("--rate", type=int, default=0, help="entries a second, evenly, instead of a window")
    uvloop.run(main(parser.parse_args()))
