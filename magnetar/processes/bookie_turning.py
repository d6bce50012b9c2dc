"""Turning a bookie of Apache's read-only through its HTTP, for a drain: it does not know the state in the metadata."""

import logging
from typing import TYPE_CHECKING, Final

from magnetar_core.runtime.types import MagnetarError

if TYPE_CHECKING:
    from magnetar_core.bookkeeper.metadata.bookies import BookieDirectory

log = logging.getLogger(__name__)

# A bookie answers this in milliseconds; a drain asks again later.
_ANSWER_S: Final = 5.0


class CannotTurn(MagnetarError):
    """The bookie was not turned read-only; the text says why, and what helps."""


async def turn_read_only(bookies: "BookieDirectory", bookie_id: str) -> None:
    """Ask a bookie to take no entries. Raises CannotTurn, MetadataError."""
    import aiohttp

    info = await bookies.info_of(bookie_id)
    endpoint = next((one for one in info.endpoints if one.protocol == "http"), None)
    if endpoint is None:
        raise CannotTurn("its registration names no HTTP; start it with httpServerEnabled=true, or stop it")
    host = f"[{endpoint.host}]" if ":" in endpoint.host else endpoint.host
    base = f"http://{host}:{endpoint.port}/api/v1"
    try:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_ANSWER_S)) as session:
            async with session.get(f"{base}/magnetar/status") as answer:
                if answer.status == 200:
                    raise CannotTurn(f"it is one of ours and has not read its state yet; its log says why ({base})")
            async with session.put(f"{base}/bookie/state/readonly", json={"readOnly": True}) as answer:
                if answer.status != 200:
                    text = (await answer.text())[:200]
                    raise CannotTurn(f"{base}/bookie/state/readonly answered {answer.status}: {text}")
    except (TimeoutError, aiohttp.ClientError, OSError) as error:
        raise CannotTurn(f"its HTTP at {base} does not answer: {error!r}") from error
    log.warning("bookie %s was turned read-only through %s", bookie_id, base)
