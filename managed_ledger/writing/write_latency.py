"""How long the present ledger takes to confirm what it was sent. No IO and no clock.

    sent(3) at 10.0 s, sent(2) at 10.1 s ──▶ stored(4) at 10.2 s:  three took 200 ms, one 100 ms; one is under way

What is sent at once is one number of entries with one time: nothing is kept for a single entry.
"""

from magnetar_core.runtime.data.buckets import LATENCY_BOUNDS, Buckets


class WriteLatency:
    """The entries under way to one ledger after the other, and how long the confirmed ones took."""

    __slots__ = ("_under_way", "latencies")

    def __init__(self) -> None:
        self.latencies = Buckets(LATENCY_BOUNDS)
        """Microseconds."""
        # Entries, and when they were sent; oldest first. A list: few runs are under way, and an empty deque takes 760
        # bytes.
        self._under_way: list[tuple[int, float]] = []

    def sent(self, entries: int, now_s: float) -> None:
        """Note that so many entries were handed to the ledger."""
        self._under_way.append((entries, now_s))

    def stored(self, entries: int, now_s: float) -> None:
        """Note that so many entries, the oldest first, are confirmed."""
        under_way, stored_count = self._under_way, 0
        for index, (sent, since_s) in enumerate(under_way):
            if not entries:
                break
            done = min(sent, entries)
            self.latencies.add(max(int((now_s - since_s) * 1_000_000), 0), done)
            entries -= done
            if done < sent:
                under_way[index] = sent - done, since_s
            else:
                stored_count += 1
        del under_way[:stored_count]

    def forget(self) -> None:
        """Forget what is under way: the ledger failed, or another one is begun."""
        self._under_way.clear()
