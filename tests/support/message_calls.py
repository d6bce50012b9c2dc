"""The calls about messages and backlogs that were recorded from Apache's broker, and what clients do between them.

`tests/golden/record_messages.py` makes them of an Apache broker and writes its answers into `tests/vectors/messages`;
`tests/golden/test_messages.py` makes the same ones of ours. `LEDGER` in a path or body is the topic's ledger.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import pulsar

NS: Final = "/admin/v2/namespaces/m1/n1"
_ALL: Final = "/admin/v2/persistent/m1/n1"
TOP: Final = f"{_ALL}/top"
_TOPIC: Final = "persistent://m1/n1/top"
_PARTED: Final = f"{_ALL}/parted"
_BUNDLE: Final = f"{NS}/0x00000000_0xffffffff"

LEDGER: Final = "LEDGER"


class Step(NamedTuple):
    """A call; or, without a method, something that clients do (`DEEDS`)."""

    method: str
    path: str
    body: Any = None

    def with_ledger(self, ledger_id: int) -> "Step":
        body = json.loads(json.dumps(self.body).replace(f'"{LEDGER}"', str(ledger_id)))
        return Step(self.method, self.path.replace(LEDGER, str(ledger_id)), body)


def _peek(subscription: str, number: int = 1) -> Step:
    return Step("GET", f"{TOP}/subscription/{subscription}/position/{number}")


def _reset(entry_id: int, **more: Any) -> tuple[Step, Step]:
    body = {"ledgerId": LEDGER, "entryId": entry_id, **more}
    return Step("POST", f"{TOP}/subscription/p/resetcursor", body), _peek("p")


def steps(cluster: str) -> list[Step]:
    return [
        Step("PUT", "/admin/v2/tenants/m1", {"adminRoles": [], "allowedClusters": [cluster]}),
        Step("PUT", NS, {"bundles": {"numBundles": 1}}),
        Step("PUT", TOP),
        Step("PUT", f"{_PARTED}/partitions", 2),
        Step("PUT", f"{TOP}/subscription/p", {"ledgerId": -1, "entryId": -1, "properties": {"a": "b"}}),
        Step("PUT", f"{TOP}/subscription/part", {"ledgerId": -1, "entryId": -1}),
        Step("PUT", f"{_PARTED}/subscription/ps", {"ledgerId": -1, "entryId": -1, "properties": {"a": "b"}}),
        Step("GET", f"{TOP}/subscription/p/properties"),
        Step("GET", f"{TOP}/examinemessage"),
        Step("POST", f"{TOP}/subscription/p/analyzeBacklog"),
        Step("", "fill"),
        Step("", "acknowledge some"),
        *[_peek("p", number) for number in (1, 2, 6, 7, 8)],
        *[_peek("part", number) for number in (1, 2, 3, 5, 6)],
        Step("GET", f"{_ALL}/none/subscription/p/position/1"),
        Step("GET", f"{_PARTED}/subscription/ps/position/1"),
        *[Step("GET", f"{TOP}/ledger/{one}") for one in ("LEDGER/entry/0", "LEDGER/entry/77", "999999/entry/0")],
        Step("GET", f"{_PARTED}/ledger/1/entry/1"),
        *[
            Step("GET", f"{TOP}/examinemessage{query}")
            for query in (
                "", "?messagePosition=3", "?initialPosition=earliest&messagePosition=6",
                "?initialPosition=earliest&messagePosition=99", "?initialPosition=latest&messagePosition=99",
                "?initialPosition=elsewhere&messagePosition=2", "?messagePosition=0",
            )
        ],
        Step("GET", f"{_ALL}/none/examinemessage"),
        Step("GET", f"{_PARTED}/examinemessage"),
        Step("POST", f"{TOP}/subscription/p/analyzeBacklog"),
        Step("POST", f"{TOP}/subscription/p/analyzeBacklog", {"ledgerId": LEDGER, "entryId": 3}),
        Step("POST", f"{TOP}/subscription/part/analyzeBacklog"),
        Step("POST", f"{_PARTED}/subscription/ps/analyzeBacklog"),
        *[
            Step("PUT", f"{TOP}/backlogSize", {"ledgerId": ledger, "entryId": entry})
            for ledger, entry in ((-1, -1), (LEDGER, 3), (LEDGER, 6), (LEDGER, 99), (999_999, 0))
        ],
        Step("PUT", f"{_PARTED}/backlogSize", {"ledgerId": -1, "entryId": -1}),
        Step("PUT", f"{TOP}/subscription/p/properties", {"x": "y"}),
        Step("GET", f"{TOP}/subscription/p/properties"),
        Step("PUT", f"{TOP}/subscription/p/properties", {}),
        Step("GET", f"{TOP}/subscription/p/properties"),
        Step("GET", f"{_PARTED}/subscription/ps/properties"),
        Step("PUT", f"{_PARTED}/subscription/ps/properties", {"c": "d"}),
        Step("GET", f"{_PARTED}/subscription/ps/properties"),
        Step("GET", f"{_PARTED}/subscription/none/properties"),
        Step("PUT", f"{_PARTED}/subscription/none/properties", {"c": "d"}),
        Step("GET", f"{TOP}/internal-info"),
        Step("GET", f"{_PARTED}/internal-info"),
        *_reset(5, batchIndex=1, excluded=False),
        *_reset(5, batchIndex=1, excluded=True),
        *_reset(5, batchIndex=2, excluded=True),
        *_reset(5, batchIndex=9, excluded=True),
        *_reset(4, batchIndex=0, excluded=True),
        *_reset(4, batchIndex=-1, excluded=True),
        *_reset(4),
        Step("", "stay"),
        Step("POST", f"{TOP}/subscription/live/skip_all"),
        Step("GET", f"{TOP}/subscription/live/position/1"),
        Step("DELETE", f"{TOP}/truncate"),
        _peek("p"),
        Step("DELETE", f"{_PARTED}/truncate"),
        Step("DELETE", f"{_ALL}/none/truncate"),
        Step("POST", f"{NS}/clearBacklog"),
        Step("POST", f"{_BUNDLE}/clearBacklog"),
        Step("POST", f"{NS}/0x00000000_0x7fffffff/clearBacklog"),
        Step("POST", f"{NS}/unsubscribe/live"),
        Step("POST", f"{NS}/unsubscribe/part"),
        Step("POST", f"{_BUNDLE}/unsubscribe/part"),
        Step("POST", f"{NS}/unsubscribe/none"),
        Step("GET", f"{TOP}/subscriptions"),
    ]  # fmt: skip


# ------------------------------------------------------------------------------- what clients do


def _fill(client: pulsar.Client) -> None:
    """Five messages, a batch of three, and one for later."""
    single = client.create_producer(_TOPIC, producer_name="one", batching_enabled=False)
    for number in range(5):
        single.send(
            b"message %d" % number,
            properties={"i": str(number)},
            partition_key=f"k{number}",
            ordering_key="o",
            event_timestamp=1_700_000_000_000,
        )
    batched = client.create_producer(
        _TOPIC,
        producer_name="two",
        batching_enabled=True,
        batching_max_publish_delay_ms=1000,
        compression_type=pulsar.CompressionType.LZ4,
    )
    for number in range(3):
        batched.send_async(b"in a batch %d" % number, lambda *_: None, properties={"b": str(number)})
    batched.flush()
    single.send(b"later", deliver_at=1_900_000_000_000)


def _acknowledge_some(client: pulsar.Client) -> None:
    """The subscription `part` has the second and the fourth message."""
    consumer = client.subscribe(_TOPIC, "part", pulsar.ConsumerType.Shared)
    for number in range(5):
        message = consumer.receive(10_000)
        if number in (1, 3):
            consumer.acknowledge(message)
    consumer.close()


def _stay(client: pulsar.Client) -> None:
    """A consumer that is there until the end."""
    client.subscribe(_TOPIC, "live", initial_position=pulsar.InitialPosition.Earliest)


DEEDS: Final[Mapping[str, Callable[[pulsar.Client], None]]] = {
    "fill": _fill,
    "acknowledge some": _acknowledge_some,
    "stay": _stay,
}


# ---------------------------------------------------------------------------- what is the same twice

_OWN: Final = frozenset({"version", "creationDate", "modificationDate", "timestamp", "cursorsLedgerId", "reason"})
"""Members of which only the type is compared: each server has its own."""


def same(value: Any, ledger_id: int, name: str = "") -> Any:
    """*value* with what differs from server to server and from time to time replaced."""
    if isinstance(value, dict):
        return {key: same(one, ledger_id, key) for key, one in value.items()}
    if isinstance(value, list):
        found = [same(one, ledger_id) for one in value]
        return sorted(found) if all(isinstance(one, str) for one in found) else found
    if name == "ledgerId":
        return LEDGER if value == ledger_id else "another"
    if name in _OWN or name.endswith("publish-time"):
        return type(value).__name__
    if isinstance(value, str):
        return value.replace(f"{ledger_id}:", f"{LEDGER}:")
    return value
