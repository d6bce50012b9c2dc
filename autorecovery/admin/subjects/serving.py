"""Calls about whether a bookie takes entries: as it is registered, and turned by an operator through its own HTTP.

    GET  /bookies/{bookie}/serving
    PUT  /bookies/{bookie}/serving     {"mode": "read-only", "why": "disk check"}

Rules:

1. What a bookie does is asked of the metadata store, where clients look, too.
2. A bookie whose state is not active is not made writable: it would take entries while its ledgers are moved away
   (I74). Its state is changed instead.
3. An operator sets and clears one reason. A bookie that has others, such as a full disk, stays read-only; the answer
   says so.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from autorecovery.admin.calls import Access, Call, CheckedCall, Refused, bookie_of
from autorecovery.admin.schema import STRING, answer_of, array, closed, one_of
from autorecovery.admin.shapes import AWAY, MODE, READ_ONLY, WHY, WRITABLE, mode_of
from magnetar_core.bookkeeper.metadata.bookies.bookie_states import BookieStates, UnknownBookie
from magnetar_core.bookkeeper.metadata.bookies.lifecycle import State
from magnetar_core.bookkeeper.metadata.bookies.register import BookieDirectory
from magnetar_core.bookkeeper.metadata.stores.store import MetadataError, MetadataStore
from magnetar_core.runtime.clock import Clock
from magnetar_core.runtime.types import MagnetarError

SUBJECT: Final = "serving"

Turn = Callable[[str, bool, str], Awaitable[bool]]
"""Turns a bookie through its own HTTP: (bookie, whether it is to be read-only, the reason that is shown) → whether it
is read-only now. Raises MagnetarError, which says why that cannot be done, and the way out."""

_SERVING: Final = answer_of(
    {
        "bookie": STRING,
        "mode": MODE,
        "reasons": array(STRING, description="why it is read-only or away, as far as it is known"),
        "http": {"type": ["string", "null"], "description": "where its own HTTP answers"},
    },
    title="Serving state",
)


class ServingCalls:
    """The calls. Used on the loop."""

    def __init__(self, store: MetadataStore, root: str, clock: Clock, turn: Turn) -> None:
        self._directory = BookieDirectory(store, root, clock)
        self._states = BookieStates(store, root)
        self._turn = turn

    def calls(self) -> Sequence[Call]:
        path = "/bookies/{bookie}/serving"
        unknown = {404: "no bookie has this id"}
        return (
            Call(
                method="GET", path=path, name="getServing", subject=SUBJECT, access=Access.READ,
                summary="Whether a bookie takes entries, and why not.",
                handler=self._get, answer=_SERVING, refusals=unknown,
            ),
            Call(
                method="PUT", path=path, name="setServing", subject=SUBJECT, access=Access.WRITE,
                summary="Turn a bookie, ours or Apache's, through its own HTTP. It stays read-only while there is "
                "another reason for it.",
                handler=self._set, body=closed({"mode": one_of((WRITABLE, READ_ONLY)), "why": WHY}, "why"),
                answer=_SERVING,
                refusals=unknown | {409: "the bookie is away, is not active, has no HTTP, or refused"},
            ),
        )  # fmt: skip

    async def _get(self, checked: CheckedCall) -> dict[str, Any]:
        return await self._describe_bookie(bookie_of(checked))

    async def _describe_bookie(self, bookie_id: str) -> dict[str, Any]:
        mode = mode_of(bookie_id, await self._directory.read_writable(), await self._directory.read_read_only())
        state = (await self._states.read(bookie_id)).lifecycle.state
        if mode == AWAY:
            if bookie_id not in (known := await self._states.bookies()):
                raise UnknownBookie(f"there is no bookie {bookie_id}; known are: {', '.join(known) or 'none'}")
            return {"bookie": bookie_id, "mode": AWAY, "reasons": ["it is not registered"], "http": None}
        info = await self._directory.info_of(bookie_id)
        reasons = [info.read_only_reason] if info.read_only_reason else []
        if mode == READ_ONLY and not reasons and state is not State.ACTIVE:
            reasons = [f"its state is {state}"]
        return {
            "bookie": bookie_id,
            "mode": mode,
            "reasons": [] if mode == WRITABLE else reasons,
            "http": info.http_url,
        }

    async def _set(self, checked: CheckedCall) -> dict[str, Any]:
        bookie_id, wanted = bookie_of(checked), checked.body["mode"]
        before = await self._describe_bookie(bookie_id)
        if before["mode"] == AWAY:
            raise Refused(409, f"bookie {bookie_id} is not registered: nobody can turn it before it is back")
        state = (await self._states.read(bookie_id)).lifecycle.state
        if wanted == WRITABLE and state is not State.ACTIVE:
            raise Refused(
                409, f"bookie {bookie_id} is {state}, so it takes no entries; set its state to active first",
                state=str(state),
            )  # fmt: skip
        detail = f"{checked.body.get('why', '')} ({checked.caller.name})".strip()
        try:
            is_read_only = await self._turn(bookie_id, wanted == READ_ONLY, detail)
        except MetadataError:
            raise
        except MagnetarError as error:
            raise Refused(409, f"bookie {bookie_id} was not turned: {error}") from error
        # The bookie answers first, and changes its registration in the metadata store after that.
        after = await self._describe_bookie(bookie_id)
        mode = READ_ONLY if is_read_only else WRITABLE
        return after if after["mode"] == mode else {**after, "mode": mode, "reasons": [detail] if is_read_only else []}
