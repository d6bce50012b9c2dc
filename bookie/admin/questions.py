"""What a request to the HTTP admin asks: its body and its parameters, checked. A wrong one raises `Refused`."""

from collections.abc import Mapping
from typing import Any

from aiohttp import web

from magnetar_core.runtime.data.json_text import parse_json
from magnetar_core.runtime.http.bodies import BODIES, BodyRefused


class Refused(Exception):
    """An answer other than success."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


async def bytes_of(request: web.Request) -> bytes:
    """The body of a request. Raises Refused."""
    try:
        return await BODIES.read(request, request.client_max_size)
    except BodyRefused as error:
        raise Refused(error.status, str(error)) from None


async def json_body(request: web.Request, *, optional: bool = False) -> dict[str, Any]:
    """The body, a JSON object; {} if it is *optional* and empty.

    Raises Refused with the statuses of Apache's bookies: 400 for an empty body, 500 for anything else that is wrong.
    """
    data = await bytes_of(request)
    if not data.strip():
        if optional:
            return {}
        raise Refused(400, "Empty request body")
    try:
        body = parse_json(data)
    except ValueError as error:
        raise Refused(500, f"the body is not JSON: {error}") from None
    if not isinstance(body, dict):
        raise Refused(500, f"the body must be a JSON object, not {type(body).__name__}")
    return body


def flag(body: Mapping[str, Any], name: str, default: bool | None = None) -> bool:
    value = body.get(name, default)
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    if isinstance(value, bool):
        return value
    raise Refused(400, f"{name} must be true or false" if name in body else f"{name} is missing: true or false")


async def compaction_kinds(request: web.Request, verb: str) -> tuple[bool, bool]:
    """(major, minor) of a call about compactions."""
    body = await json_body(request)
    major, minor = flag(body, f"{verb}Major", False), flag(body, f"{verb}Minor", False)
    if not (major or minor):
        raise Refused(400, f"{verb}Major or {verb}Minor must be true")
    return major, minor


def query_flag(request: web.Request, name: str) -> bool:
    return request.query.get(name, "").lower() == "true"


def query_number(request: web.Request, name: str, *, least: int) -> int | None:
    text = request.query.get(name)
    if text is None:
        return None
    try:
        number = int(text)
    except ValueError:
        raise Refused(400, f"{name} ({text!r}) must be a number") from None
    if not least <= number < 2**63:
        raise Refused(400, f"{name} ({number}) must be at least {least}, and below 2^63")
    return number


def ledger_id_of(request: web.Request, method: str) -> int:
    ledger_id = query_number(request, "ledger_id", least=0)
    if ledger_id is None:
        raise Refused(404, f"Not found method. Should be {method} method, with the parameter ledger_id")
    return ledger_id
