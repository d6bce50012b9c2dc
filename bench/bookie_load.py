"""A load process that speaks the wire protocol to one bookie: `python -m bench.bookie_load …`.

    adds       so many entries as fast as a window allows, or at a fixed rate; a JSON line for each step
    reads      entries of one ledger, one by one or in batches; one JSON line
    backlog    batch reads through ledgers again and again, until it is told to stop; one JSON line

Protocol v2, one connection. At a fixed rate a latency counts from the moment at which the add was due. So a bookie that
pauses is charged for every add that was due during the pause.
"""

import argparse
import asyncio
import json
import signal
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, cast

import uvloop

from magnetar_core.bookkeeper.wire.codec_v2 import add_request_head, batch_read_request, parse_response, read_request
from magnetar_core.bookkeeper.wire.entry import HEADER_BYTES, DigestType, EntryCodec, master_key
from magnetar_core.bookkeeper.wire.framing import MAX_FRAME_BYTES, FrameSplitter

TICK_S = 0.002
WRITE_BYTES = 64 * 1024
BATCH_BYTES = 4 * 1024 * 1024
PASSWORD = b""


class Peer(asyncio.Protocol):
    """Gives the answers of each chunk to *on_answers*."""

    def __init__(self, on_answers: Callable[[list[memoryview]], None]) -> None:
        self._splitter = FrameSplitter(MAX_FRAME_BYTES)
        self._on_answers = on_answers
        self.transport: asyncio.Transport
        self.may_write = True
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(high=1 << 20)

    def data_received(self, data: bytes) -> None:
        self._on_answers(self._splitter.feed(data))

    def pause_writing(self) -> None:
        self.may_write = False

    def resume_writing(self) -> None:
        self.may_write = True

    def connection_lost(self, error: Exception | None) -> None:
        if not self.lost.done():
            self.lost.set_exception(error or ConnectionError("the bookie closed the connection"))
            self.lost.exception()


async def connect(options: argparse.Namespace, on_answers: Callable[[list[memoryview]], None]) -> Peer:
    _, peer = await asyncio.get_running_loop().create_connection(lambda: Peer(on_answers), options.host, options.port)
    return peer


def say(**values: Any) -> None:
    print(json.dumps(values), flush=True)


def check(frame: memoryview) -> None:
    code = int.from_bytes(frame[4:8], "big")
    if code:
        raise SystemExit(f"the bookie answered {code}")


def entries_of(frame: memoryview) -> int:
    """The number of entries in the answer to a batch read."""
    entries = parse_response(frame)[4]
    assert isinstance(entries, list)
    return len(entries)


class Adds:
    """Entries for *ledgers* ledgers in turn, *run* of each at a time."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._frames = self._make_frames()
        self._peer: Peer
        self._sent = 0
        self._answered = 0
        self._latencies_ms: list[float] = []
        self._began = self._step_began = 0.0
        self._step_answered = 0
        self._next_step = options.step
        self._done: asyncio.Future[None]

    def _make_frames(self) -> Iterator[bytes]:
        options = self._options
        codec, key, payload = EntryCodec(DigestType.CRC32C, PASSWORD), master_key(PASSWORD), bytes(options.size)
        head = add_request_head(0, key, HEADER_BYTES + codec.digest_bytes + len(payload))
        for number in range(0, sys.maxsize, options.run):
            turn, index = divmod(number // options.run, options.ledgers)
            ledger_id = options.first_ledger + index
            for entry_id in range(
                options.first_entry + turn * options.run, options.first_entry + (turn + 1) * options.run
            ):
                length = len(payload) * (entry_id + 1)
                yield head + codec.head(ledger_id, entry_id, entry_id - 1, length, payload) + payload

    async def go(self) -> None:
        options = self._options
        self._peer = await connect(options, self._on_answers)
        self._done = asyncio.get_running_loop().create_future()
        self._began = self._step_began = time.perf_counter()
        if options.rate:
            await self._at_rate()
        else:
            self._fill()
        await asyncio.wait([self._done, self._peer.lost], return_when=asyncio.FIRST_COMPLETED)
        if not self._done.done():
            self._peer.lost.result()
        seconds = time.perf_counter() - self._began
        found = {"adds": self._answered, "seconds": seconds, "per_s": self._answered / seconds}
        if options.rate:
            ordered = sorted(self._latencies_ms)
            found |= {f"p{share * 100:g}": ordered[int(len(ordered) * share)] for share in (0.5, 0.99, 0.999)}
        say(**found)

    def _fill(self) -> None:
        """As many as the window allows, in writes of some size."""
        options = self._options
        room = min(options.window - (self._sent - self._answered), options.entries - self._sent)
        if not self._peer.may_write:
            return
        # Not one by one as answers come: a chunk of them, as clients have.
        if room < min(options.window // 4, options.entries - self._sent):
            return
        frames: list[bytes] = []
        size = 0
        for _ in range(room):
            frame = next(self._frames)
            frames.append(frame)
            size += len(frame)
            if size > WRITE_BYTES:
                self._peer.transport.write(b"".join(frames))
                frames, size = [], 0
        if frames:
            self._peer.transport.write(b"".join(frames))
        self._sent += room

    async def _at_rate(self) -> None:
        options = self._options
        loop = asyncio.get_running_loop()
        while self._sent < options.entries and not self._peer.lost.done():
            due = min(int((time.perf_counter() - self._began) * options.rate), options.entries)
            if due > self._sent:
                self._peer.transport.write(b"".join([next(self._frames) for _ in range(due - self._sent)]))
                self._sent = due
            woken = loop.create_future()
            loop.call_later(TICK_S, woken.set_result, None)
            await woken

    def _on_answers(self, frames: list[memoryview]) -> None:
        for frame in frames:
            check(frame)
        options, now = self._options, time.perf_counter()
        if options.rate:
            # In order: one connection, one journal. The first second is for warming up.
            for number in range(self._answered + (-self._answered % 8), self._answered + len(frames), 8):
                if number > options.rate:
                    self._latencies_ms.append((now - self._began - number / options.rate) * 1000)
        self._answered += len(frames)
        if options.step and self._answered >= self._next_step:
            self._next_step += options.step
            per_s = (self._answered - self._step_answered) / (now - self._step_began)
            say(step=self._answered, per_s=per_s)
            self._step_answered, self._step_began = self._answered, now
        if self._answered >= options.entries:
            if not self._done.done():
                self._done.set_result(None)
        elif not options.rate:
            self._fill()


class Reads:
    """Reads of *entries* entries of one ledger, *window* requests under way."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._peer: Peer
        self._next = 0
        self._received = 0
        self._requests = 0
        self._done: asyncio.Future[None]

    async def go(self) -> None:
        options = self._options
        self._peer = await connect(options, self._on_answers)
        self._done = asyncio.get_running_loop().create_future()
        began = time.perf_counter()
        self._fill()
        await asyncio.wait([self._done, self._peer.lost], return_when=asyncio.FIRST_COMPLETED)
        if not self._done.done():
            self._peer.lost.result()
        seconds = time.perf_counter() - began
        say(entries=self._received, requests=self._requests, seconds=seconds, per_s=self._received / seconds)

    def _fill(self) -> None:
        options = self._options
        requests: list[bytes] = []
        under_way = (self._next - self._received + options.step_entries - 1) // options.step_entries
        while under_way < options.window and self._next < options.entries:
            if options.batch:
                count = min(options.batch, options.entries - self._next)
                self._requests += 1
                requests.append(
                    batch_read_request(options.first_ledger, self._next, self._requests, count, BATCH_BYTES)
                )
                self._next += count
            else:
                requests.append(read_request(options.first_ledger, self._next))
                self._requests += 1
                self._next += 1
            under_way += 1
        if requests:
            self._peer.transport.write(b"".join(requests))

    def _on_answers(self, frames: list[memoryview]) -> None:
        for frame in frames:
            check(frame)
            self._received += entries_of(frame) if self._options.batch else 1
        if self._options.batch:
            # A batch may bring less than it was asked for: the next one begins where it ended.
            self._next = self._received
        if self._received >= self._options.entries:
            if not self._done.done():
                self._done.set_result(None)
        else:
            self._fill()


class Backlog:
    """A reader that is far behind: batches through all ledgers, over and over."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._peer: Peer
        self._entries = 0
        self._at = (0, 0)
        self._requests = 0

    async def go(self) -> None:
        self._peer = await connect(self._options, self._on_answers)
        stop: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set_result, None)
        began = time.perf_counter()
        for _ in range(self._options.window):
            self._ask()
        await asyncio.wait([stop, self._peer.lost], return_when=asyncio.FIRST_COMPLETED)
        seconds = time.perf_counter() - began
        say(entries=self._entries, seconds=seconds, per_s=self._entries / seconds)

    def _ask(self) -> None:
        options = self._options
        index, entry_id = self._at
        self._requests += 1
        self._peer.transport.write(
            batch_read_request(options.first_ledger + index, entry_id, self._requests, options.batch, BATCH_BYTES)
        )
        following = entry_id + options.batch
        self._at = (index, following) if following < options.entries else ((index + 1) % options.ledgers, 0)

    def _on_answers(self, frames: list[memoryview]) -> None:
        for frame in frames:
            check(frame)
            self._entries += entries_of(frame)
            self._ask()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["adds", "reads", "backlog"])
    parser.add_argument("host")
    parser.add_argument("port", type=int)
    parser.add_argument("--first-ledger", type=int, default=0)
    parser.add_argument("--ledgers", type=int, default=1)
    parser.add_argument("--first-entry", type=int, default=0)
    parser.add_argument("--entries", type=int, required=True, help="in all; for a backlog: of each ledger")
    parser.add_argument("--run", type=int, default=10, help="entries of one ledger that follow each other")
    parser.add_argument("--size", type=int, default=1024)
    parser.add_argument("--window", type=int, default=4000, help="requests under way")
    parser.add_argument("--rate", type=int, default=0, help="adds a second; 0: as fast as the window allows")
    parser.add_argument("--step", type=int, default=0, help="tell the rate after every so many adds")
    parser.add_argument("--batch", type=int, default=0, help="entries in a batch read; 0: single reads")
    options = parser.parse_args()
    options.step_entries = max(options.batch, 1)
    kinds: dict[str, type[Adds | Reads | Backlog]] = {"adds": Adds, "reads": Reads, "backlog": Backlog}

    async def go() -> None:
        await kinds[options.what](options).go()

    uvloop.run(go())


if __name__ == "__main__":
    main()
