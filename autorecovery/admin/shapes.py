"""Parts of answers that several subjects share. No IO."""

from collections.abc import Collection, Mapping
from typing import Any, Final

from autorecovery.admin.calls import JsonSchema
from autorecovery.admin.schema import INTEGER, STRING, answer_of, array, one_of, or_null

TIME: Final[JsonSchema] = {"type": ["integer", "null"], "description": "wall clock, milliseconds since 1970"}

WHY: Final[JsonSchema] = {"type": "string", "maxLength": 500, "description": "a short explanation that others can see"}

WRITABLE: Final = "writable"
READ_ONLY: Final = "read-only"
AWAY: Final = "away"

MODE: Final[JsonSchema] = one_of(
    (WRITABLE, READ_ONLY, AWAY), description="as it is registered; away: it is not, and its cookie is known"
)

LEDGER_WHY: Final[JsonSchema] = answer_of({"ledger_id": INTEGER, "why": STRING}, title="Ledger with a reason")

# Bookies of one call: a rack, a room. Their ledgers are looked for together.
BOOKIES_MAX: Final = 100

BOOKIES: Final[JsonSchema] = array(
    {"type": "string", "minLength": 1, "maxLength": 255}, minItems=1, maxItems=BOOKIES_MAX, uniqueItems=True
)

# Ledgers that one answer names in a list; the others are counted. It stays some 100 KiB.
LEDGERS_TOLD: Final = 1_000

PROBLEM_OF_LEDGER: Final[JsonSchema] = {
    **answer_of(
        {
            "kind": STRING,
            "text": STRING,
            "since_ms": INTEGER,
            "attempts": INTEGER,
            "worker": STRING,
            "lost": array(array(INTEGER, minItems=2, maxItems=2)),
        }
    ),
    "type": ["object", "null"],
    "description": "why it is not repaired, as the worker that tried tells; lost: ranges of entries, first and last",
}

MARKED: Final[JsonSchema] = answer_of(
    {
        "ledger_id": INTEGER,
        "owner": {"type": "string", "description": "whose entries it has: a topic, a cursor, a schema; empty: unknown"},
        "missing_on": array(STRING),
        "marked_ms": or_null(INTEGER),
        "is_locked": {"type": "boolean", "description": "somebody works on it"},
        "problem": PROBLEM_OF_LEDGER,
    },
    title="Under-replicated ledger",
)


def ledgers_json(reasons: Mapping[int, str]) -> list[dict[str, Any]]:
    """Ledgers with their reasons, ids ascending, LEDGERS_TOLD at most."""
    return [{"ledger_id": ledger_id, "why": reasons[ledger_id]} for ledger_id in sorted(reasons)[:LEDGERS_TOLD]]


def mode_of(bookie_id: str, writable: Collection[str], read_only: Collection[str]) -> str:
    """How a bookie is registered (`MODE`); while it changes it may be registered twice, and is still written to."""
    return WRITABLE if bookie_id in writable else READ_ONLY if bookie_id in read_only else AWAY
