"""The answers of the HTTP admin: JSON, text, errors with Apache's status, and streams of unknown length."""

import asyncio
import contextlib
import json
import logging
from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

from aiohttp import web

from bookie.admin.bodies import Members
from bookie.admin.questions import Refused
from magnetar_core.bookkeeper.metadata.stores.store import NoNode
from magnetar_core.runtime.types import KIB, MagnetarError

log = logging.getLogger(__name__)

# A client that takes longer to read such an answer is cut off, because it keeps others waiting.
LONG_ANSWER_TIMEOUT_S: Final = 600.0

# Bytes of a streamed answer that are gathered before they are written.
CHUNK_BYTES: Final = 64 * KIB

_TEXT: Final = "text/plain"

# Entries of ledgers hold arbitrary bytes: a browser must not show them as a page.
HEADERS: Final = {"X-Content-Type-Options": "nosniff"}

RawHandler: TypeAlias = Callable[[web.Request], Awaitable[web.StreamResponse]]


def is_of_others(request: web.Request) -> bool:
    """The address belongs to an application that is mounted into this one."""
    return len(request.match_info.apps) > 1


@web.middleware
async def answer_errors(request: web.Request, handler: RawHandler) -> web.StreamResponse:
    """Turn the errors of a handler into answers: text for people, with Apache's status."""
    if is_of_others(request):
        return await handler(request)
    try:
        return await handler(request)
    except Refused as error:
        return text_answer(str(error), error.status)
    except MagnetarError as error:
        if not isinstance(error, NoNode):  # a missing node is a mistake in the request, so it is not logged
            log.warning("%s %s: %s", request.method, request.path_qs, error)
        return text_answer(str(error), 500)
    except web.HTTPException as error:
        return text_answer(error.text or error.reason, error.status)
    except Exception as error:
        log.exception("%s %s failed", request.method, request.path_qs)
        return text_answer(f"{type(error).__name__}: {error}", 500)


def json_answer(value: object) -> web.Response:
    return web.Response(
        body=(json.dumps(value, indent=2) + "\n").encode(), content_type="application/json", headers=HEADERS
    )


def json_refusal(text: str, status: int) -> web.Response:
    """A refusal as applications of others make it."""
    body = (json.dumps({"reason": text}) + "\n").encode()
    return web.Response(body=body, status=status, content_type="application/json", headers=HEADERS)


def text_answer(text: str, status: int = 200) -> web.Response:
    return web.Response(text=text, status=status, content_type=_TEXT, headers=HEADERS)


async def stream_answer(request: web.Request, members: Members) -> web.StreamResponse:
    """Stream an object of *members*, one a line. An error before the first one is an ordinary refusal. After it the
    connection is cut, so that a part is not taken for the whole answer."""
    async with contextlib.aclosing(members):
        first = await anext(members, None)
        answer = web.StreamResponse(headers=HEADERS)
        answer.content_type = "application/json"
        await answer.prepare(request)
        if request.method == "HEAD":  # a body would be taken for the answer to the next request
            return answer
        try:
            async with asyncio.timeout(LONG_ANSWER_TIMEOUT_S):
                await _write(answer, first, members)
        except Exception as error:
            log.warning("%s %s breaks off: %s", request.method, request.path_qs, str(error) or "the client is too slow")
            if request.transport is not None:
                request.transport.abort()
        return answer


async def _write(answer: web.StreamResponse, first: tuple[str, object] | None, members: Members) -> None:
    lines = ["{"] if first is None else ["{", _line(first)]
    size = 0
    async for member in members:
        lines.append(",")
        lines.append(_line(member))
        size += len(lines[-1])
        if size >= CHUNK_BYTES:
            await answer.write("".join(lines).encode())
            lines, size = [], 0
    await answer.write("".join([*lines, "\n}\n"]).encode())
    await answer.write_eof()


def _line(member: tuple[str, object]) -> str:
    name, value = member
    return f"\n  {json.dumps(name)}: {json.dumps(value)}"
