"""Calls about cookies: the record that a bookie belongs to the cluster, and with which directories.

    GET     /bookies/{bookie}/cookie
    PUT     /bookies/{bookie}/cookie     {"cookie": "5\\nbookieHost: …"}   only where there is none
    DELETE  /bookies/{bookie}/cookie     the bookie is removed from the cluster

Rules:

1. A cookie is only made, never replaced: the directories that it names are those of a bookie with data.
2. A cookie that the bookie itself would not accept is not stored.
3. It is deleted, together with the state, only from a drained bookie that is stopped and that no record names
   (`retirement`, I74).
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

from autorecovery.admin.calls import Access, Call, CheckedCall, Refused, bookie_of
from autorecovery.admin.schema import BOOLEAN, STRING, answer_of, closed
from autorecovery.admin.shapes import ledgers_json
from autorecovery.lifecycle.retirement import BookieLifecycle, StillNeeded
from magnetar_core.bookkeeper.metadata.bookies.bookie_states import BookieStates, UnknownBookie, cookie_path
from magnetar_core.bookkeeper.metadata.bookies.lifecycle import IllegalMove
from magnetar_core.bookkeeper.metadata.ledgers.ledger_store import instance_id
from magnetar_core.bookkeeper.metadata.stores.store import NO_NODE, MetadataStore, OutcomeUnknown, VersionConflict
from magnetar_core.runtime.clock import Clock
from magnetar_core.runtime.types import Corruption

SUBJECT: Final = "cookies"

# A cookie names some directories; ZooKeeper's limit for a value is 1 MiB.
COOKIE_CHARS_MAX: Final = 64 * 1024

ParseCookie = Callable[[bytes, str], tuple[str, str]]
"""(the text of a cookie, what to call it in errors) → (id of its bookie, id of its cluster, which may be empty). Raises
Corruption. It is the bookie's own parser."""

_COOKIE: Final = answer_of({"bookie": STRING, "cookie": STRING}, title="Cookie")


class CookieCalls:
    """The calls. Used on the loop."""

    def __init__(self, store: MetadataStore, root: str, clock: Clock, parse: ParseCookie) -> None:
        self._store = store
        self._root = root
        self._lives = BookieLifecycle(store, root, clock)
        self._states = BookieStates(store, root)
        self._parse = parse

    def calls(self) -> Sequence[Call]:
        path = "/bookies/{bookie}/cookie"
        text = {"type": "string", "minLength": 1, "maxLength": COOKIE_CHARS_MAX}
        none = {404: "the bookie has no cookie"}
        return (
            Call(
                method="GET", path=path, name="getCookie", subject=SUBJECT, access=Access.READ,
                summary="The cookie of a bookie, as it stands in the metadata store.",
                handler=self._get, answer=_COOKIE, refusals=none,
            ),
            Call(
                method="PUT", path=path, name="createCookie", subject=SUBJECT, access=Access.WRITE,
                summary="Store a cookie where there is none, for example one that was deleted by mistake.",
                handler=self._create, status=201, body=closed({"cookie": text}), answer=_COOKIE,
                refusals={400: "it is no cookie, or one of another bookie or cluster", 409: "there is one already"},
            ),
            Call(
                method="DELETE", path=path, name="deleteCookie", subject=SUBJECT, access=Access.WRITE,
                summary="Remove a drained and stopped bookie from the cluster, cookie and state. Reads all records "
                "first.",
                handler=self._delete, answer=answer_of({"bookie": STRING, "removed": BOOLEAN}), is_long=True,
                refusals=none
                | {409: "the bookie is not drained, is still registered (stop it; the session of one that was killed "
                   "ends within 40 s), or ledgers name it: `state` has its state, `ledgers` those ledgers"},
            ),
        )  # fmt: skip

    async def _get(self, checked: CheckedCall) -> dict[str, Any]:
        bookie_id = bookie_of(checked)
        node = await self._store.get(cookie_path(self._root, bookie_id))
        if node is None:
            raise UnknownBookie(f"bookie {bookie_id} has no cookie in this cluster")
        return {"bookie": bookie_id, "cookie": node.value.decode("utf-8", "replace")}

    async def _create(self, checked: CheckedCall) -> dict[str, Any]:
        bookie_id, text = bookie_of(checked), checked.body["cookie"]
        try:
            value = text.encode()
            named, cluster = self._parse(value, "the text")
        except (Corruption, UnicodeEncodeError) as error:
            raise Refused(400, str(error)) from error
        if named != bookie_id:
            raise Refused(400, f"the cookie is that of bookie {named}, not of {bookie_id}")
        own = await instance_id(self._store, self._root)
        if cluster and cluster != own:
            raise Refused(400, f"the cookie is of the cluster {cluster}; this one is {own}")
        try:
            await self._store.put(cookie_path(self._root, bookie_id), value, NO_NODE)
        except VersionConflict:
            raise Refused(409, f"bookie {bookie_id} has a cookie already; it is never replaced") from None
        except OutcomeUnknown:
            node = await self._store.get(cookie_path(self._root, bookie_id))
            if node is None or node.value != value:
                raise
        return {"bookie": bookie_id, "cookie": text}

    async def _delete(self, checked: CheckedCall) -> dict[str, Any]:
        bookie_id = bookie_of(checked)
        if not await self._store.exists(cookie_path(self._root, bookie_id)):
            raise UnknownBookie(f"bookie {bookie_id} has no cookie in this cluster")
        try:
            await self._lives.remove(bookie_id, checked.caller.name)
        except (StillNeeded, IllegalMove) as error:
            state = str((await self._states.read(bookie_id)).lifecycle.state)
            ledgers = error.ledgers if isinstance(error, StillNeeded) else {}
            named = ledgers_json(ledgers)
            raise Refused(409, str(error), state=state, ledgers=named, ledgers_total=len(ledgers)) from error
        return {"bookie": bookie_id, "removed": True}
