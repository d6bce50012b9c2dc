"""Callbacks over the management interface; the handlers are asked as its server asks them."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from autorecovery.admin.calls import Access, Call, Caller, CheckedCall, Refused
from autorecovery.admin.subjects.callbacks import CallbackCalls
from autorecovery.callbacks import rules
from autorecovery.callbacks.registry import CallbackRegistry
from autorecovery.callbacks.rules import Line, Outcome
from magnetar_core.bookkeeper.metadata.stores.memory import MemoryStore
from magnetar_core.runtime.clock import LoopClock


@contextmanager
def telling_of(statuses: set[int]) -> Iterator[None]:
    """A refusal has one of these statuses."""
    try:
        yield
    except Refused as refused:
        if refused.status not in statuses:
            raise AssertionError(f"{refused.status} is not told of: {refused}") from refused
        raise


class Asking:
    """Makes calls by their names."""

    def __init__(self) -> None:
        clock = LoopClock()
        self.store = MemoryStore(clock)
        self.registry = CallbackRegistry(self.store)
        self.calls: dict[str, Call] = {call.name: call for call in CallbackCalls(self.registry, clock).calls()}

    async def ask(self, name: str, callback: str = "", **body: Any) -> Any:
        call = self.calls[name]
        path = {"callback": callback} if "{callback}" in call.path else {}
        caller = Caller("ann", call.access is Access.WRITE)
        with telling_of({400, *call.refusals}):
            found = await call.handler(CheckedCall(caller, path, {}, body))
        if call.answer["type"] == "object":
            assert set(found) == set(call.answer["required"]) == set(call.answer["properties"])
        return found


@pytest.fixture
def asking() -> Asking:
    return Asking()


async def test_a_callback_is_registered_with_a_secret_that_is_shown_once(asking: Asking) -> None:
    made = await asking.ask("registerCallback", url="http://10.0.0.9/x", states=["drained"])
    assert (made["by"], made["states"], made["bookies"], made["pending"]) == ("ann", ["drained"], [], 0)
    secret = made.pop("secret")
    assert len(secret) == 64
    assert await asking.ask("listCallbacks") == {"callbacks": [made]}
    assert await asking.ask("getCallback", made["id"]) == {**made, "log": []}
    own = await asking.ask("registerCallback", url="https://h/", bookies=["b-1"], secret="0123456789abcdef")
    assert own["secret"] == "0123456789abcdef"


async def test_what_is_no_callback_is_refused_with_the_reason(asking: Asking) -> None:
    for body in ({"url": "10.0.0.9"}, {"url": "http://h/", "states": ["gone"]}, {"url": "http://h/", "secret": "x"}):
        with pytest.raises(Refused) as refused:
            await asking.ask("registerCallback", **body)
        assert refused.value.status == 400
    assert await asking.ask("listCallbacks") == {"callbacks": []}


async def test_so_many_callbacks_are_registered(asking: Asking) -> None:
    for _ in range(rules.CALLBACKS_MAX):
        await asking.ask("registerCallback", url="http://h/")
    with pytest.raises(Refused, match="there are 100 callbacks, which is the limit") as refused:
        await asking.ask("registerCallback", url="http://h/")
    assert refused.value.status == 409


async def test_the_log_is_shown_the_newest_first(asking: Asking) -> None:
    made = await asking.ask("registerCallback", url="http://h/")
    for number in range(2):
        event = (await asking.ask("testCallback", made["id"]))["event"]
        assert (await asking.ask("listCallbacks"))["callbacks"][0]["pending"] == 1
        await asking.registry.note(made["id"], Line(event, "", "", Outcome.DELIVERED, 1, number, "200"))
    log = (await asking.ask("getCallback", made["id"]))["log"]
    assert [(line["last_ms"], line["outcome"], line["answer"]) for line in log] == [
        (1, "delivered", "200"),
        (0, "delivered", "200"),
    ]


async def test_a_callback_is_deleted_and_then_unknown(asking: Asking) -> None:
    made = await asking.ask("registerCallback", url="http://h/")
    await asking.ask("testCallback", made["id"])
    assert await asking.ask("deleteCallback", made["id"]) == {"deleted": made["id"]}
    for name in ("getCallback", "deleteCallback", "testCallback"):
        with pytest.raises(Refused) as refused:
            await asking.ask(name, made["id"])
        assert refused.value.status == 404


async def test_a_callback_for_which_too_much_waits_is_not_tested(
    asking: Asking, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rules, "PENDING_MAX", 2)
    made = await asking.ask("registerCallback", url="http://h/")
    for _ in range(2):
        await asking.ask("testCallback", made["id"])
    with pytest.raises(Refused, match="2 events wait") as refused:
        await asking.ask("testCallback", made["id"])
    assert refused.value.status == 409


async def test_a_record_that_cannot_be_read_says_so_and_can_be_deleted(asking: Asking) -> None:
    """I60"""
    made = await asking.ask("registerCallback", url="http://h/")
    await asking.store.put(f"/ledgers/underreplication/magnetar/callbacks/{made['id']}", b"{}")
    with pytest.raises(Refused, match="delete the callback") as refused:
        await asking.ask("getCallback", made["id"])
    assert refused.value.status == 409
    assert await asking.ask("listCallbacks") == {"callbacks": []}
    await asking.ask("deleteCallback", made["id"])
