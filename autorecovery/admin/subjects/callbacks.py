"""Calls of the management interface that register callbacks and show what was delivered to them.

A callback is a part of the cluster, not of the node that answers: it stands in the metadata store, and the auditor
delivers (`autorecovery/callbacks/delivery.py`). The secret is in the answer to the registration and in no other.
"""

from typing import Any, Final

from autorecovery.admin.calls import Access, Call, CheckedCall, JsonSchema, Refused
from autorecovery.admin.schema import INTEGER, STRING, answer_of, array, closed, one_of
from autorecovery.callbacks import rules
from autorecovery.callbacks.registry import CallbackRegistry, NoSuchCallback, TooMany
from autorecovery.callbacks.rules import BadCallback, Callback, Line
from magnetar_core.runtime.clock import Clock
from magnetar_core.runtime.types import Corruption

SUBJECT: Final = "callbacks"

_STATES: Final[JsonSchema] = array(one_of(rules.STATES))

_CALLBACK: Final = answer_of(
    {
        "id": STRING,
        "url": STRING,
        "states": _STATES,
        "bookies": array(STRING),
        "by": STRING,
        "created_ms": INTEGER,
        "pending": {"type": "integer", "description": "events that wait to be delivered"},
    },
    title="Callback",
)

_LINE: Final = answer_of(
    {
        "event": STRING,
        "bookie": STRING,
        "to": STRING,
        "outcome": one_of(tuple(rules.Outcome)),
        "attempts": INTEGER,
        "last_ms": INTEGER,
        "answer": {"type": "string", "description": "the status, or why there was none"},
    },
    title="Delivery",
)

_REGISTRATION: Final = closed(
    {
        "url": {"type": "string", "description": "http:// or https://, where events are POSTed to"},
        "states": {**_STATES, "description": "only changes that end in one of these; left out: all"},
        "bookies": array(STRING, description="only changes of these bookies; left out: all"),
        "secret": {"type": "string", "description": "signs the requests; left out: one is drawn"},
    },
    "states", "bookies", "secret",
)  # fmt: skip


def _with_field(schema: JsonSchema, name: str, member: JsonSchema) -> JsonSchema:
    return answer_of({**schema["properties"], name: member})


class CallbackCalls:
    """Registers, shows, tests and deletes callbacks."""

    def __init__(self, registry: CallbackRegistry, clock: Clock) -> None:
        self._registry = registry
        self._clock = clock

    def calls(self) -> list[Call]:
        gone = {404: "no callback has this id"}
        return [
            Call(
                method="POST", path="/callbacks", name="registerCallback", subject=SUBJECT, access=Access.WRITE,
                summary="Have an address told of changes in the life of bookies. The answer has the secret, once.",
                handler=self._register, body=_REGISTRATION, status=201, answer=_with_field(_CALLBACK, "secret", STRING),
                refusals={409: "there are as many callbacks as there may be"},
            ),
            Call(
                method="GET", path="/callbacks", name="listCallbacks", subject=SUBJECT, access=Access.READ,
                summary="List the callbacks.", handler=self._list,
                answer=answer_of({"callbacks": array(_CALLBACK)}),
            ),
            Call(
                method="GET", path="/callbacks/{callback}", name="getCallback", subject=SUBJECT, access=Access.READ,
                summary="Show one callback and the last deliveries to it, the newest first.", handler=self._get,
                answer=_with_field(_CALLBACK, "log", array(_LINE)),
                refusals={**gone, 409: "its record cannot be read"},
            ),
            Call(
                method="DELETE", path="/callbacks/{callback}", name="deleteCallback", subject=SUBJECT,
                access=Access.WRITE, summary="Delete a callback, and the events that wait for it.",
                handler=self._delete, refusals=gone,
                answer=answer_of({"deleted": STRING}),
            ),
            Call(
                method="POST", path="/callbacks/{callback}/test", name="testCallback", subject=SUBJECT,
                access=Access.WRITE, status=202,
                summary="Send an event that tells of nothing, once. What came of it is in the log a moment later.",
                handler=self._test, refusals={**gone, 409: "too many events wait for it, or it cannot be read"},
                answer=answer_of({"event": STRING}),
            ),
        ]  # fmt: skip

    async def _register(self, checked: CheckedCall) -> Any:
        body = checked.body
        try:
            callback = await self._registry.register(
                body["url"],
                body.get("secret"),
                body.get("states", ()),
                body.get("bookies", ()),
                checked.caller.name,
                self._clock.wall_ms(),
            )
        except BadCallback as error:
            raise Refused(400, str(error)) from error
        except TooMany as error:
            raise Refused(409, str(error)) from error
        return {**_facts(callback, 0), "secret": callback.secret}

    async def _list(self, checked: CheckedCall) -> Any:
        return {"callbacks": [await self._described(registered.callback) for registered in await self._registry.all()]}

    async def _get(self, checked: CheckedCall) -> Any:
        callback_id = checked.path["callback"]
        try:
            callback = (await self._registry.read(callback_id)).callback
        except NoSuchCallback as error:
            raise Refused(404, str(error)) from error
        except Corruption as error:
            raise Refused(409, str(error)) from error
        lines = await self._registry.log_of(callback_id)
        return {**await self._described(callback), "log": [_line_facts(line) for line in reversed(lines)]}

    async def _delete(self, checked: CheckedCall) -> Any:
        callback_id = checked.path["callback"]
        try:
            await self._registry.remove(callback_id)
        except NoSuchCallback as error:
            raise Refused(404, str(error)) from error
        return {"deleted": callback_id}

    async def _test(self, checked: CheckedCall) -> Any:
        try:
            event_id = await self._registry.test(checked.path["callback"], checked.caller.name, self._clock.wall_ms())
        except NoSuchCallback as error:
            raise Refused(404, str(error)) from error
        except (TooMany, Corruption) as error:
            raise Refused(409, str(error)) from error
        return {"event": event_id}

    async def _described(self, callback: Callback) -> dict[str, Any]:
        return _facts(callback, len(await self._registry.pending(callback.id)))


def _facts(callback: Callback, pending: int) -> dict[str, Any]:
    return {
        "id": callback.id,
        "url": callback.url,
        "states": list(callback.states),
        "bookies": list(callback.bookies),
        "by": callback.by,
        "created_ms": callback.created_ms,
        "pending": pending,
    }


def _line_facts(line: Line) -> dict[str, Any]:
    facts = line._asdict()
    facts["to"] = facts.pop("after")
    facts["outcome"] = str(line.outcome)
    return facts
