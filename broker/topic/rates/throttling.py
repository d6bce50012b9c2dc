"""Rates of one topic: what producers send, what consumers get, how often a consumer subscribes. No IO.

A rate that is not set costs one comparison.
"""

from math import inf
from typing import Final, Protocol

from broker.errors import NotAllowed
from broker.settings.quotas import DispatchRate, PublishRate, SubscribeRate
from broker.topic.rates.token_bucket import TokenBucket

# Consumers whose subscribing is counted; those that came first are forgotten above it. Each takes some 300 bytes.
SUBSCRIBERS_MAX: Final = 10_000


# A client that has to wait longer is looked at again after so long: the rate may have been raised meanwhile.
HOLD_STEP_MS: Final = 1_000


class PublishHold(Protocol):
    """A reason why a client sends nothing for a while."""

    def wait_ms(self, now_ms: int) -> float:
        """How long nothing may be published; 0 or less: the client may go on."""
        ...


class PublishThrottle:
    """The rate of all producers of a topic, or of a broker, together."""

    def __init__(self) -> None:
        self._bucket: TokenBucket | None = None
        self.times = 0
        """How often producers had to wait."""

    @property
    def is_on(self) -> bool:
        return self._bucket is not None

    def use(self, rate: PublishRate, now_ms: int) -> None:
        """This rate holds from now on."""
        self._bucket = _bucket(self._bucket, rate.messages, rate.bytes, 1, now_ms)

    def spend(self, messages: int, size_bytes: int, now_ms: int) -> float:
        """So much was published. Returns for how many milliseconds its sender shall send nothing."""
        bucket = self._bucket
        if bucket is None:
            return 0.0
        bucket.spend(messages, size_bytes, now_ms)
        wait_ms = bucket.wait_ms(now_ms)
        if wait_ms > 0:
            self.times += 1
        return wait_ms

    def room(self, now_ms: int) -> tuple[float, float]:
        """(messages, bytes) that may be published before somebody has to wait; infinite without a rate."""
        messages, size_bytes = (None, None) if self._bucket is None else self._bucket.room(now_ms)
        return inf if messages is None else messages, inf if size_bytes is None else size_bytes

    def wait_ms(self, now_ms: int) -> float:
        """How long nothing may be published."""
        return 0.0 if self._bucket is None else self._bucket.wait_ms(now_ms)


class DispatchThrottle:
    """The rate at which the consumers of a topic, or of one subscription, get messages."""

    def __init__(self) -> None:
        self._bucket: TokenBucket | None = None
        self.by_messages = 0
        """How often messages had to wait because of their number."""
        self.by_bytes = 0

    def use(self, rate: DispatchRate, published: tuple[float, float], now_ms: int) -> None:
        """This rate holds from now on; *published*: messages and bytes that come in a second, for a rate that follows
        them."""
        messages, size = rate.messages, rate.bytes
        if rate.is_relative:
            messages = messages + int(published[0] * rate.period_s) if messages > 0 else messages
            size = size + int(published[1] * rate.period_s) if size > 0 else size
        self._bucket = _bucket(self._bucket, messages, size, rate.period_s, now_ms)

    @property
    def is_on(self) -> bool:
        return self._bucket is not None

    def wait_ms(self, now_ms: int) -> float:
        """How long nothing may be dispatched."""
        bucket = self._bucket
        if bucket is None:
            return 0.0
        wait_ms = bucket.wait_for_one_ms(now_ms)
        if wait_ms > 0:
            messages, size = bucket.room(now_ms)
            self.by_messages += messages == 0
            self.by_bytes += size == 0
        return wait_ms

    def room(self, now_ms: int) -> tuple[int | None, int | None]:
        """(messages, bytes) that may be dispatched now; None: any number."""
        return (None, None) if self._bucket is None else self._bucket.room(now_ms)

    def spend(self, messages: int, size_bytes: int, now_ms: int) -> None:
        """So much was dispatched."""
        if self._bucket is not None:
            self._bucket.spend(messages, size_bytes, now_ms)


def _bucket(
    former: TokenBucket | None, messages: int, size_bytes: int, period_s: int, now_ms: int
) -> TokenBucket | None:
    """The bucket for a changed rate: none without a rate, and the former one keeps what it owes."""
    if messages <= 0 and size_bytes <= 0:
        return None
    if former is None:
        return TokenBucket(messages, size_bytes, period_s, now_ms)
    former.change(messages, size_bytes, period_s, now_ms)
    return former


class SubscribeThrottle:
    """How often one consumer, by its address and name, may subscribe."""

    def __init__(self) -> None:
        self._rate: SubscribeRate | None = None
        self._buckets: dict[tuple[str, str], TokenBucket] = {}

    def use(self, rate: SubscribeRate) -> None:
        """This rate holds from now on; what was counted before is forgotten if it is another one."""
        new_rate = rate if rate.subscribes > 0 else None
        if new_rate != self._rate:
            self._rate = new_rate
            self._buckets.clear()

    def check(self, address: str, name: str, now_ms: int) -> None:
        """A consumer subscribes. Raises NotAllowed: too often."""
        if self._rate is None:
            return
        key = (address.rpartition(":")[0], name)
        bucket = self._buckets.get(key)
        if bucket is None:
            while len(self._buckets) >= SUBSCRIBERS_MAX:
                del self._buckets[next(iter(self._buckets))]
            bucket = self._buckets[key] = TokenBucket(self._rate.subscribes, 0, self._rate.period_s, now_ms)
        messages, _ = bucket.room(now_ms)
        if not messages:
            raise NotAllowed("Subscribe limited by subscribe rate limit per consumer.")
        bucket.spend(1, 0, now_ms)
