"""Turns a bookie read-only or writable through its HTTP. An operator may ask it of any bookie; a drain asks it of
Apache's, which do not know the state in the metadata."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

from magnetar_core.runtime.data.json_text import parse_json
from magnetar_core.runtime.types import MagnetarError

if TYPE_CHECKING:
    from aiohttp import ClientSession

    from magnetar_core.bookkeeper.metadata.bookies.register import BookieDirectory

log = logging.getLogger(__name__)

# A bookie answers this in milliseconds; a drain asks again later.
_ANSWER_S: Final = 5.0

# The answer is a few words; an error of Apache's may be a page.
_ANSWER_BYTES: Final = 4_096


class CannotTurn(MagnetarError):
    """The bookie was not turned; the text says why, and what helps."""


async def turn_for_drain(bookies: "BookieDirectory", bookie_id: str, read_only: bool) -> None:
    """Ask a bookie of Apache's to take no entries, for a drain, or to take them again, when it was called off.

    Raises CannotTurn, MetadataError.
    """
    async with _session_with(bookies, bookie_id) as (session, base):
        if await _is_ours(session, base):
            if not read_only:
                return  # it follows its state
            raise CannotTurn(f"it is one of ours and has not read its state yet; its log says why ({base})")
        await _turn(session, base, {"readOnly": read_only})
    log.warning("bookie %s was turned %s through %s", bookie_id, "read-only" if read_only else "writable", base)


async def turn(bookies: "BookieDirectory", bookie_id: str, read_only: bool, detail: str) -> bool:
    """Ask a bookie, ours or Apache's, to take no entries, or to take them again, as an operator wants it.

    Our bookies report *detail* as the reason. Returns whether the bookie is read-only now: it may have other reasons.
    Raises CannotTurn, MetadataError.
    """
    async with _session_with(bookies, bookie_id) as (session, base):
        body: dict[str, Any] = {"readOnly": read_only}
        if await _is_ours(session, base):  # Apache's refuses members that it does not know
            body |= {"reason": "operator", "detail": detail}
        answer = await _turn(session, base, body)
    log.warning("bookie %s was asked to be %s through %s", bookie_id, "read-only" if read_only else "writable", base)
    try:
        facts = parse_json(answer)
    except ValueError:
        facts = None
    now_read_only = facts.get("readOnly") if isinstance(facts, dict) else None
    return now_read_only if isinstance(now_read_only, bool) else read_only


@asynccontextmanager
async def _session_with(bookies: "BookieDirectory", bookie_id: str) -> "AsyncIterator[tuple[ClientSession, str]]":
    """A session, and where the API of the bookie's HTTP begins. Raises CannotTurn, MetadataError."""
    import aiohttp

    url = (await bookies.info_of(bookie_id)).http_url
    if url is None:
        raise CannotTurn("its registration names no HTTP; start it with httpServerEnabled=true, or stop it")
    base = f"{url}/api/v1"
    try:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_ANSWER_S)) as session:
            yield session, base
    except (TimeoutError, aiohttp.ClientError, OSError) as error:
        raise CannotTurn(f"its HTTP at {base} does not answer: {error!r}") from error


async def _is_ours(session: "ClientSession", base: str) -> bool:
    async with session.get(f"{base}/magnetar/status") as answer:
        return answer.status == 200


async def _turn(session: "ClientSession", base: str, body: dict[str, Any]) -> str:
    async with session.put(f"{base}/bookie/state/readonly", json=body) as answer:
        text = (await answer.content.read(_ANSWER_BYTES)).decode(errors="replace")
        if answer.status != 200:
            raise CannotTurn(f"{base}/bookie/state/readonly answered {answer.status}: {text[:200]}")
        return text
