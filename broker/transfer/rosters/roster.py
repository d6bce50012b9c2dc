"""Which topics one broker serves, and what a successor needs of them: the state that its log holds. No IO.

    edit    {"serves": {"persistent://public/default/t": 7, …}, "not": ["persistent://…", …],
             "holds": {"persistent://public/default/t": [3, 41, {"sub": [17, 41, 5], …}], …}}           JSON, UTF-8
    state   the same without "not"

The number is the topic's traffic: messages a second, in and out, as a power of two (7: 64 to 127); 0: less than one.
"holds": the version of the topic's record, its last ledger, and of each cursor its ledger (-1: none) and the position
up to which all is acknowledged, as it was stored last (`managed_ledger.ledgers.holdings`).

Rules:

1. An edit replaces what the state says of the topics that it names, and nothing else.
2. Brokers that do not know "holds" pass over it, and their edits have none: every edit has "serves" and "not", and its
   reader takes what it understands. What is not as drawn changes nothing.
3. A topic that is not served has no holdings.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from managed_ledger.ledgers.holdings import Holdings, from_json, to_json

# Topics of one edit: some 200 bytes each, so an edit stays far below the 4 MiB that a state log takes.
TOPICS_OF_EDIT: Final = 2_000

# An edit that has so many bytes is full, since names of topics and cursors may be long.
EDIT_BYTES: Final = 256 * 1024

# The holdings of one topic. Longer ones, by long names of cursors, are not written: the successor reads them itself.
HOLDINGS_BYTES: Final = 4 * 1024


class Roster:
    """The topics of one broker. A `StateMachine` (`managed_ledger.state_log.replica`)."""

    def __init__(self) -> None:
        self.topics: dict[str, int] = {}
        """Name → traffic, as in the module's text."""
        self.holdings: dict[str, Holdings] = {}
        """Name → what a successor needs, of the topics that have it in the log."""

    def apply(self, edit: bytes, time_ms: int) -> int:
        """Apply an edit (rule 2); returns how many topics the broker serves then."""
        try:
            members: Any = json.loads(edit)
            serves = {str(name): int(traffic) for name, traffic in members["serves"].items()}
            ended = [str(name) for name in members["not"]]
            holds: Any = members.get("holds", {})
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return len(self.topics)
        self.topics |= serves
        for name in ended:
            self.topics.pop(name, None)
            self.holdings.pop(name, None)
        if isinstance(holds, dict):
            for name, raw in holds.items():
                holdings = from_json(raw)
                if holdings is not None and name in self.topics:
                    self.holdings[name] = holdings
        return len(self.topics)

    def snapshot(self) -> bytes:
        """The state as JSON, in the order of the names."""
        assert self.holdings.keys() <= self.topics.keys(), "a topic that is not served has no holdings (rule 3)"
        holds = {name: to_json(holdings) for name, holdings in self.holdings.items()}
        return json.dumps({"serves": self.topics, "holds": holds}, sort_keys=True).encode()

    def restore(self, state: bytes) -> None:
        """Raises ValueError for what `snapshot` did not make."""
        members = json.loads(state)
        if not isinstance(members, dict) or not isinstance(members.get("serves"), dict):
            raise ValueError("not the state of a log of who serves what")
        self.topics, self.holdings = {}, {}
        self.apply(json.dumps(members | {"not": []}).encode(), 0)

    def by_traffic(self) -> list[str]:
        """The busiest first."""
        return sorted(self.topics, key=lambda name: (-self.topics[name], name))


def traffic_of(messages_per_s: float) -> int:
    """A rate as it stands in an edit."""
    return int(messages_per_s).bit_length()


class _Edit:
    """One edit that is being made."""

    def __init__(self) -> None:
        self._serves: list[str] = []
        self._ended: list[str] = []
        self._holds: list[str] = []
        self._size_bytes = 0

    @property
    def is_empty(self) -> bool:
        return not self._size_bytes

    @property
    def is_full(self) -> bool:
        topics = max(len(self._serves), len(self._ended), len(self._holds))
        return topics >= TOPICS_OF_EDIT or self._size_bytes >= EDIT_BYTES

    def serves(self, name: str, traffic: int) -> None:
        self._add(self._serves, f"{json.dumps(name)}:{traffic}")

    def ended(self, name: str) -> None:
        self._add(self._ended, json.dumps(name))

    def holds(self, name: str, holdings: Holdings) -> None:
        text = json.dumps(to_json(holdings), separators=(",", ":"))
        if len(text) <= HOLDINGS_BYTES:
            self._add(self._holds, f"{json.dumps(name)}:{text}")

    def _add(self, to: list[str], text: str) -> None:
        to.append(text)
        self._size_bytes += len(text) + 1

    def encoded(self) -> bytes:
        serves, ended, holds = map(",".join, (self._serves, self._ended, self._holds))
        return f'{{"serves":{{{serves}}},"not":[{ended}],"holds":{{{holds}}}}}'.encode()


def _nothing(name: str) -> Holdings | None:
    return None


def edits(
    former: Mapping[str, int], now: Mapping[str, int], holdings_of: Callable[[str], Holdings | None] = _nothing
) -> Iterator[bytes]:
    """What turns the topics *former* into *now*, with the holdings of those that are new. A traffic that is one step
    higher or lower than in *former* is left as it is: a topic with a rate near a power of two would be in each."""
    ended = [name for name in former if name not in now]
    serves = {name: traffic for name, traffic in now.items() if name not in former or abs(former[name] - traffic) > 1}
    is_new = {name: name not in former for name in serves}
    edit = _Edit()
    for name in ended:
        edit.ended(name)
        if edit.is_full:
            yield edit.encoded()
            edit = _Edit()
    for name, traffic in serves.items():
        edit.serves(name, traffic)
        holdings = holdings_of(name) if is_new[name] else None
        if holdings is not None:
            edit.holds(name, holdings)
        if edit.is_full:
            yield edit.encoded()
            edit = _Edit()
    if not edit.is_empty:
        yield edit.encoded()


def holding_edits(former: Mapping[str, Holdings], now: Mapping[str, Holdings]) -> Iterator[bytes]:
    """The edits for holdings that differ from those in *former*."""
    edit = _Edit()
    for name, holdings in now.items():
        if former.get(name) != holdings:
            edit.holds(name, holdings)
            if edit.is_full:
                yield edit.encoded()
                edit = _Edit()
    if not edit.is_empty:
        yield edit.encoded()
