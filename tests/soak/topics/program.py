"""The process whose clients are soaked: `python -m tests.soak.topics.program`, with what `main` takes.

    round ──▶ what `rounds` draws; its client is closed, dropped, or in a child
          ──▶ threads, tasks, descriptors: as before it
          ──▶ a new consumer takes what is left: each confirmed message was received, and the backlog is 0
          ──▶ the server has no producer and no consumer of it any more; the topic is deleted

SIGUSR1 shows where threads and tasks are.
"""

import asyncio
import faulthandler
import gc
import os
import random
import signal
import sys
import threading
import time
import traceback
from typing import Any, Final

import magnetar
from tests.soak.topics.rounds import KINDS, OPTIONS, PATIENCE_S, SUBSCRIPTION, Round, RoundFailed

DESCRIPTORS_MORE: Final = 4
"""Above those of the first rounds: gRPC's threads have one each, and their number varies."""

WARM_ROUNDS: Final = 10


class Remains:
    """What this process has between two rounds."""

    def __init__(self) -> None:
        self._descriptors: list[int] = []

    def check(self) -> str:
        """Wait until nothing is left of the round; returns what there is. Raises RoundFailed."""
        gc.collect()
        deadline = time.monotonic() + PATIENCE_S / 2
        while True:
            threads = [one.name for one in threading.enumerate() if one is not threading.main_thread()]
            descriptors = len(os.listdir("/proc/self/fd"))
            allowed = max(self._descriptors[:WARM_ROUNDS], default=0) + DESCRIPTORS_MORE
            is_warm = len(self._descriptors) >= WARM_ROUNDS
            if not threads and not (is_warm and descriptors > allowed):
                break
            if time.monotonic() > deadline:
                raise RoundFailed(f"threads left: {threads}; {descriptors} descriptors, of {allowed}: {_descriptors()}")
            time.sleep(0.02)
        gc.collect()
        self._descriptors.append(descriptors)
        pages = int(open("/proc/self/statm").read().split()[1])  # noqa: SIM115
        system_threads = len(os.listdir("/proc/self/task"))
        return (
            f"{descriptors} descriptors, {system_threads} threads, {len(gc.get_objects())} objects, "
            f"{pages * 4 // 1024} MiB"
        )


def _descriptors() -> list[str]:
    places = list[str]()
    for name in os.listdir("/proc/self/fd"):
        try:
            places.append(os.readlink(f"/proc/self/fd/{name}"))
        except OSError:
            continue
    return sorted(places)


def drain(made: Round) -> None:
    """Raises RoundFailed if a confirmed message is not received, or something stays at the server."""
    books = made.books
    with magnetar.Client(made.address, **OPTIONS) as client:
        deadline = time.monotonic() + PATIENCE_S
        with client.consumer(made.topic, SUBSCRIPTION, type="shared", from_earliest=True) as consumer:
            while True:
                messages = consumer.receive_batch(1000, timeout_s=0.2)
                books.received.update(message.payload for message in messages)
                consumer.ack(messages)
                if messages:
                    continue
                consumer.flush()
                backlog = sum(
                    _each(client, made.topic, lambda stats: stats["subscriptions"][SUBSCRIPTION]["msgBacklog"])
                )
                if not backlog and books.confirmed <= books.received:
                    break
                if time.monotonic() > deadline:
                    lost = sorted(books.confirmed - books.received)
                    raise RoundFailed(f"{len(lost)} confirmed messages are lost: {lost[:10]}; backlog {backlog}")
        if strange := books.received - books.sent:
            raise RoundFailed(f"{len(strange)} messages were never sent: {sorted(strange)[:10]}")
        while left := [one for one in _each(client, made.topic, _clients_of) if one]:
            if time.monotonic() > deadline:
                raise RoundFailed(f"the server still has {left}")
            time.sleep(0.05)
        client.topics.delete(made.topic, force=True)


def _backlog_of(stats: dict[str, Any]) -> int:
    return int(stats["subscriptions"][SUBSCRIPTION]["msgBacklog"])


def _clients_of(stats: dict[str, Any]) -> list[Any]:
    consumers = {name: one["consumers"] for name, one in stats["subscriptions"].items() if one["consumers"]}
    return [*stats["publishers"], *consumers.items()]


def _each(client: magnetar.Client, topic: str, look: Any) -> list[Any]:
    """What *look* finds in the statistics of each partition."""
    count = client.topics.partitions(topic)
    names = [f"{topic}-partition-{number}" for number in range(count)] if count else [topic]
    return [look(client.topics.stats(name)) for name in names]


def _show(*_: Any) -> None:
    """Where every thread and every task is."""
    for thread, frame in sys._current_frames().items():
        print(f"\nthread {thread}", "".join(traceback.format_stack(frame)), sep="\n", file=sys.stderr)
    for one in gc.get_objects():
        if isinstance(one, asyncio.Task) and not one.done():
            one.print_stack(file=sys.stderr)
            print(f"  {one}", file=sys.stderr)
    sys.stderr.flush()


def main() -> None:
    address, namespace, seed, first, seconds, only = sys.argv[1:]
    weights = {kind: weight for kind, (_, weight) in KINDS.items() if not only or kind in only.split(",")}
    faulthandler.enable()
    signal.signal(signal.SIGUSR1, _show)
    remains, began = Remains(), time.monotonic()
    number = int(first)
    while number == int(first) or time.monotonic() - began < float(seconds):
        draw = random.Random(f"{seed}/{number}")
        (kind,) = draw.choices(list(weights), list(weights.values()))
        made = Round(address, f"persistent://{namespace}/round-{seed}-{number}", draw)
        print(f"round {number}: {kind}", end="", flush=True)
        round_began = time.monotonic()
        try:
            with magnetar.Client(address, **OPTIONS) as client:
                client.topics.create(made.topic, partitions=draw.choice([0, 0, 3]))
                client.consumer(made.topic, SUBSCRIPTION, type="shared", from_earliest=True).close()
            remains.check()
            KINDS[kind][0](made)
            if made.books.problems:
                raise RoundFailed("\n".join(made.books.problems[:10]))
            left = remains.check()
            drain(made)
            remains.check()
        except (RoundFailed, magnetar.TopicError) as error:
            _show()
            print(f"\nFOUND in round {number} of seed {seed}: {error}", flush=True)
            os._exit(1)  # what hangs may hold up an exit
        books = made.books
        print(
            f", {len(books.confirmed)} of {len(books.sent)} confirmed, {len(books.received)} received; {left}; "
            f"{time.monotonic() - round_began:.1f} s",
            flush=True,
        )
        number += 1


if __name__ == "__main__":
    main()
