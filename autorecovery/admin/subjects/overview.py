"""The call behind the dashboard: everything an operator looks at, in one value."""

from typing import Any, Final

from autorecovery.admin.calls import Access, Call, CheckedCall, JsonSchema
from autorecovery.admin.schema import INTEGER, STRING, answer_of, array, or_null
from autorecovery.admin.shapes import LEDGER_WHY, MARKED, MODE, TIME
from autorecovery.admin.subjects.cluster_status import ClusterStatus
from magnetar_core.bookkeeper.metadata.bookies.lifecycle import State

_FLAG: Final[JsonSchema] = {"type": "boolean"}

_TOLD: Final[JsonSchema] = {"type": ["object", "null"], "additionalProperties": True}

_NODE: Final[JsonSchema] = {
    "type": "object",
    "description": "what a node tells of itself; a newer one may tell more",
    "properties": {"name": STRING},
    "required": ["name"],
    "additionalProperties": True,
}

_DRAIN: Final[JsonSchema] = {**_TOLD, "description": "how far its drain is, as the auditor tells"}

_BOOKIE: Final = answer_of(
    {
        "id": STRING,
        "serving": MODE,
        "read_only_reason": STRING,
        "state": {"type": ["string", "null"], "enum": [*map(str, State), None]},
        "state_problem": {"type": "string", "description": "why the state cannot be read; then it is null"},
        "by": STRING,
        "why": STRING,
        "since_ms": TIME,
        "began_ms": TIME,
        "failed_ledgers": array(LEDGER_WHY),
        "failed_ledgers_total": INTEGER,
        "rack": or_null(STRING),
        "disk": or_null(answer_of({"total_bytes": INTEGER, "free_bytes": INTEGER})),
        "drain": _DRAIN,
    },
    title="Bookie with all that is known of it",
)

_STEP: Final[JsonSchema] = {
    "type": "array",
    "description": "begin of half a minute (wall clock, ms), entries copied a second, bytes copied a second; both null "
    "where no node that is there was there then",
    "items": {"type": ["number", "null"]},
    "minItems": 3,
    "maxItems": 3,
}

OVERVIEW: Final = answer_of(
    {
        "now_ms": TIME,
        "is_enabled": _FLAG,
        "lost_bookie_delay_s": or_null(INTEGER),
        "auditor": answer_of(
            {
                "name": or_null(STRING),
                "tells": {**_TOLD, "description": "null: it is none of ours, and tells nothing"},
            }
        ),
        "nodes": array(_NODE),
        "bookies": array(_BOOKIE),
        "under_replicated": answer_of({"total": INTEGER, "ledgers": array(MARKED)}),
        "history": array(_STEP),
    },
    title="Overview",
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

    async def _overview(self, checked: CheckedCall) -> dict[str, Any]:
        return await self._status.read()
