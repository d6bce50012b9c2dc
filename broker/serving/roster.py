"""Which topics one broker serves: the state that its log holds. No IO.

    edit    {"serves": {"persistent://public/default/t": 7, …}, "not": ["persistent://…", …]}       JSON, UTF-8
    state   {"persistent://public/default/t": 7, …}

The number is the topic's traffic: messages a second, in and out, as a power of two (7: 64 to 127); 0: less than one. An
edit replaces what the state says of the topics that it names, and nothing else.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

# Topics of one edit: some 100 bytes each, so an edit stays far below the 4 MiB that a state log takes.
TOPICS_OF_EDIT: Final = 2_000


class Roster:
    """The topics of one broker with their traffic. A `StateMachine` (`managed_ledger.state_log.replica`)."""

    def __init__(self) -> None:
        self.topics: dict[str, int] = {}
        """Name → traffic, as in the module's text."""

    def apply(self, edit: bytes, time_ms: int) -> int:
        """Returns how many topics the broker serves then. What is no edit changes nothing."""
        try:
            told: Any = json.loads(edit)
            serves = {str(name): int(traffic) for name, traffic in told["serves"].items()}
            ended = [str(name) for name in told["not"]]
        except (ValueError, KeyError, TypeError, AttributeError):
            return len(self.topics)
        self.topics |= serves
        for name in ended:
            self.topics.pop(name, None)
        return len(self.topics)

    def snapshot(self) -> bytes:
        """The state as JSON, in the order of the names."""
        return json.dumps(self.topics, sort_keys=True).encode()

    def restore(self, state: bytes) -> None:
        """Raises ValueError for what `snapshot` did not make."""
        self.topics = dict(json.loads(state))

    def by_traffic(self) -> list[str]:
        """The busiest first."""
        return sorted(self.topics, key=lambda name: (-self.topics[name], name))


def traffic_of(messages_per_s: float) -> int:
    """A rate as an edit tells it."""
    return int(messages_per_s).bit_length()


def edits(former: Mapping[str, int], now: Mapping[str, int]) -> Iterator[bytes]:
    """What turns *former* into *now*. A traffic that is one step higher or lower than it was told is left as it is:
    topics whose rate is near a power of two would be told of all the time."""
    serves = {name: traffic for name, traffic in now.items() if name not in former or abs(former[name] - traffic) > 1}
    ended = [name for name in former if name not in now]
    names = list(serves)
    for start in range(0, max(len(names), len(ended)), TOPICS_OF_EDIT):
        part = names[start : start + TOPICS_OF_EDIT]
        gone = ended[start : start + TOPICS_OF_EDIT]
        yield json.dumps({"serves": {name: serves[name] for name in part}, "not": gone}).encode()
