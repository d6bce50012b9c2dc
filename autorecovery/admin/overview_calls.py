"""The call behind the dashboard: everything an operator looks at, in one value."""

from typing import Any, Final

from autorecovery.admin.calls import Access, Asked, Call, JsonSchema
from autorecovery.admin.cluster_status import ClusterStatus


def _object(**members: JsonSchema) -> JsonSchema:
    return {"type": "object", "properties": members, "required": list(members)}


def _list(of: JsonSchema) -> JsonSchema:
    return {"type": "array", "items": of}


def _or_null(schema: JsonSchema) -> JsonSchema:
    return {"anyOf": [schema, {"type": "null"}]}


_TEXT: Final[JsonSchema] = {"type": "string"}
_NUMBER: Final[JsonSchema] = {"type": "integer"}
_FLAG: Final[JsonSchema] = {"type": "boolean"}
_FACTS: Final[JsonSchema] = {"type": "object"}
_WALL_MS: Final[JsonSchema] = {"type": "integer", "description": "wall clock, milliseconds since 1970"}
_FAILED: Final = _object(ledger_id=_NUMBER, why=_TEXT)

_BOOKIE: Final = _object(
    id=_TEXT,
    serving={"enum": ["writable", "read-only", "away"]},
    read_only_reason=_TEXT,
    state=_or_null({"enum": ["active", "draining", "draining-failed", "drained"]}),
    state_problem={"type": "string", "description": "why the state cannot be read; then it is null"},
    by=_TEXT,
    why=_TEXT,
    since_ms=_or_null(_WALL_MS),
    began_ms=_or_null(_WALL_MS),
    failed_ledgers=_list(_FAILED),
    failed_ledgers_total=_NUMBER,
    rack=_or_null(_TEXT),
    disk=_or_null(_object(total_bytes=_NUMBER, free_bytes=_NUMBER)),
    drain=_or_null({"type": "object", "description": "how far its drain is, as the auditor tells"}),
)

_LEDGER: Final = _object(
    ledger_id=_NUMBER,
    owner={"type": "string", "description": "the topic, cursor or schema whose entries it has; empty: not known"},
    missing_on=_list(_TEXT),
    marked_ms=_or_null(_WALL_MS),
    is_locked={"type": "boolean", "description": "somebody repairs it at this moment"},
    problem=_or_null(_object(kind=_TEXT, text=_TEXT, since_ms=_WALL_MS, attempts=_NUMBER, lost=_list(_list(_NUMBER)))),
)

OVERVIEW: Final = _object(
    now_ms=_WALL_MS,
    is_enabled=_FLAG,
    lost_bookie_delay_s=_or_null(_NUMBER),
    auditor=_object(name=_or_null(_TEXT), tells=_or_null(_FACTS)),
    nodes=_list({"type": "object", "properties": {"name": _TEXT}, "required": ["name"]}),
    bookies=_list(_BOOKIE),
    under_replicated=_object(total=_NUMBER, ledgers=_list(_LEDGER)),
    history=_list(
        {
            "type": "array",
            "description": "begin of half a minute (wall clock, ms), entries copied a second, bytes copied a second",
            "prefixItems": [_NUMBER, {"type": "number"}, {"type": "number"}],
            "minItems": 3,
            "maxItems": 3,
        }
    ),
)


class OverviewCalls:
    """`GET /overview`."""

    def __init__(self, status: ClusterStatus) -> None:
        self._status = status

    def calls(self) -> list[Call]:
        return [
            Call(
                method="GET",
                path="/overview",
                name="getOverview",
                subject="overview",
                summary="Bookies, drains, ledgers that lack copies, nodes, and what was copied in the last hour.",
                access=Access.READ,
                handler=self._overview,
                answer=OVERVIEW,
            )
        ]

    async def _overview(self, asked: Asked) -> dict[str, Any]:
        return await self._status.read()
