"""A load generator for bookies, in a process of its own: `python -m bench.add_load zk:… --size 1024 …`.

Keeps a bounded window of unacknowledged entries and prints one JSON line: adds, those of the first second before them
(warm), seconds, latency percentiles (ms).
"""

import argparse
import asyncio
import json
import sys

import uvloop

from magnetar_core.bookkeeper.client.client import BookKeeper
from magnetar_core.bookkeeper.client.errors import BookKeeperError
from magnetar_core.bookkeeper.client.write_handle import LedgerWriteHandle
from magnetar_core.bookkeeper.metadata.url import open_store
from magnetar_core.runtime.clock import Clock, LoopClock


class Window:
    """Sends as entries are acknowledged; every 16th entry is timed."""

    def __init__(self, handle: LedgerWriteHandle, clock: Clock, payload: bytes, window: int) -> None:
        self._handle = handle
        self._clock = clock
        self._payload = payload
        self._window = window
        self._sent_at: dict[int, float] = {}
        self.latencies_ms: list[float] = []
        self.acknowledged = 0
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.stopped = False
        handle.listener = self

    def fill(self) -> None:
        room = self._window - (self._handle.last_add_pushed + 1 - self.acknowledged)
        if room > 0 and not self.stopped:
            first = self._handle.append([self._payload] * room)
            now = self._clock.monotonic()
            for entry_id in range(first + (-first % 16), first + room, 16):
                self._sent_at[entry_id] = now

    def on_acknowledged(self, up_to: int) -> None:
        now = self._clock.monotonic()
        for entry_id in range(self.acknowledged + (-self.acknowledged % 16), up_to + 1, 16):
            self.latencies_ms.append((now - self._sent_at.pop(entry_id)) * 1000)
        self.acknowledged = up_to + 1
        self.fill()

    def on_failed(self, error: BookKeeperError) -> None:
        if not self.failed.done() and not self.stopped:
            self.failed.set_exception(error)


async def main(options: argparse.Namespace) -> None:
    clock = LoopClock()
    store = await open_store(options.metadata, clock)
    bookkeeper = BookKeeper(store, clock)
    await bookkeeper.open()
    ensemble, write, ack = map(int, options.quorums.split("/"))
    handle = await bookkeeper.create_ledger(ensemble_size=ensemble, write_quorum=write, ack_quorum=ack)
    window = Window(handle, clock, bytes(options.size), options.window)
    window.fill()
    await asyncio.wait([window.failed], timeout=1.0)  # warm
    window.latencies_ms.clear()
    before, began = window.acknowledged, clock.monotonic()
    await asyncio.wait([window.failed], timeout=options.seconds)
    if window.failed.done():
        window.failed.result()
    adds, seconds = window.acknowledged - before, clock.monotonic() - began
    window.stopped = True
    ordered = sorted(window.latencies_ms)
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
    parser.add_argument("--window", type=int, default=4000)
    uvloop.run(main(parser.parse_args()))
