"""`docs/limits.md` against the code: every row is true, and every constant that looks like a limit has a row.

The rule for "looks like a limit": a constant of a module of the servers (or of the clients here), a number, whose name
ends in one of `ENDINGS`. What ends like that and limits nothing stands in `NO_LIMITS`, with the reason. Settings are
found by their rows only.
"""

import ast
import dataclasses
import functools
import importlib
import re
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from bookie.config import BookieConfig
from broker.settings.config import BrokerConfig
from magnetar_core.bookkeeper.client.config import ClientConfig

ROOT: Final = Path(__file__).parents[2]
TABLE: Final = ROOT / "docs/limits.md"

PACKAGES: Final = (
    "broker", "managed_ledger", "magnetar_core/bookkeeper/client", "magnetar_core/topics", "bookie", "magnetar/client",
)  # fmt: skip
ENDINGS: Final = (
    "MAX", "BYTES", "ENTRIES", "RECORDS", "READS", "ROWS", "LOCATIONS", "BATCH", "WINDOW", "BURST", "BACKLOG",
    "AT_ONCE", "PER_TURN", "PER_PAGE", "PER_SECOND", "PER_ANSWER", "PER_CONSUMER", "QUEUE_SIZE", "FRAME_MESSAGES",
)  # fmt: skip
LIMIT: Final = re.compile(rf"_?(?:[A-Z0-9_]+_)?(?:{'|'.join(ENDINGS)})")

NO_LIMITS: Final = {
    "bookie.serving.cold_reads:_REST_S_MAX": "a wait",
    "bookie.serving.listings:_HEAD_BYTES": "what stands around a list in its answer",
    "bookie.serving.recovery_lane:BULK_BYTES": "from where on copies count as many",
    "bookie.serving.recovery_lane:REST_S_MAX": "a wait",
    "bookie.serving.tls_listener:_HEAD_BYTES": "the format of a frame",
    "bookie.storage.entry_log.files:_LARGE_ENTRY_BYTES": "from where on less is read beyond an entry",
    "bookie.storage.index:_WITHIN_AT_ONCE": "looked up before it is asked whether more is needed",
    "bookie.storage.ledger_storage:_SMALL_BYTES": "entries of less may be read in vain",
    "bookie.storage.entry_log.files:_PAGE_BYTES": "the system's pages",
    "bookie.storage.entry_log.files:_PIECE_BYTES": "a unit",
    "bookie.storage.entry_log.format:HEADER_BYTES": "the format of a log",
    "bookie.storage.journal.format:HEADER_BYTES": "the format of a journal",
    "bookie.storage.journal.format:OLD_HEADER_BYTES": "the format of a journal",
    "bookie.storage.journal.format:VERSION_MAX": "the newest format of a journal that is known",
    "bookie.storage.journal.writer:PAGE_BYTES": "the system's pages",
    "bookie.serving.protocol:ALL_READS": "a bit: why a connection is not read",
    "bookie.storage.write_cache:ENTRY_OVERHEAD_BYTES": "what an entry counts for in a limit",
    "broker.grpc.deliveries:MESSAGE_BYTES": "what a message counts for in a limit",
    "broker.grpc.publishing.grouping:OVERHEAD_BYTES": "what a message counts for in a limit",
    "broker.grpc.partial:_OVERHEAD_BYTES": "what a batch counts for in a limit",
    "broker.grpc.publishing.writer:_METADATA_BYTES": "what a message counts for in a limit",
    "broker.topic.clients.properties:ITEM_BYTES": "what a property counts for in a limit",
    "magnetar_core.bookkeeper.client.wire.connection:_REFUSE_S_MAX": "a wait between two tries",
    "magnetar_core.topics.batch_encoding:_HEAD_BYTES": "what a message counts for in a limit",
    "managed_ledger.cursors.cursor_store:_BATCH_BYTES": "what a batch counts for in a limit",
    "managed_ledger.cursors.cursor_store:_WORD_BYTES": "what 64 messages count for in a limit",
    "managed_ledger.reading.entry_cache:_OVERHEAD_BYTES": "what an entry counts for in a limit",
    "magnetar_core.bookkeeper.client.deciding.writer:_ADD_OVERHEAD_BYTES": "what an entry counts for in a limit",
}

CONFIGS: Final = {
    "Broker": BrokerConfig,
    "Managed ledger": BrokerConfig,
    "Client of the bookies": ClientConfig,
    "Bookie": BookieConfig,
}
UNITS: Final = {"KiB": 1024, "MiB": 1024**2, "GiB": 1024**3}


class Row(NamedTuple):
    section: str
    limit: str
    where: str
    default: str
    why: str
    effect: str
    test: str


def read_table(text: str) -> list[Row]:
    rows, section = [], ""
    for line in text.splitlines():
        if line.startswith("## "):
            section = line[3:]
        elif line.startswith("|") and not line.startswith(("| Limit", "|---")):
            cells = [cell.strip().strip("`") for cell in line.strip("|").split("|")]
            rows.append(Row(section, *cells))
    return rows


ROWS: Final = read_table(TABLE.read_text())


def value_of(text: str) -> float:
    """A default as the table writes it: `1,000`, `64 KiB`, `2**31 - 1`, `0.5`."""
    if power := re.fullmatch(r"2\*\*(\d+) - 1", text):
        return (1 << int(power[1])) - 1
    number, _, unit = text.partition(" ")
    return float(number.replace(",", "")) * (UNITS[unit] if unit else 1)


def default_of(row: Row) -> Any:
    """What the code says."""
    module, colon, name = row.where.partition(":")
    if not colon:
        fields = dataclasses.fields(CONFIGS[row.section.split(",")[0]])
        (found,) = [field.default for field in fields if field.metadata.get("name") == row.where]
        return found
    owner, dot, field = name.partition(".")
    found = getattr(importlib.import_module(module), owner)
    return found._field_defaults[field] if dot else found


@functools.cache
def names_of_tests(path: str) -> frozenset[str]:
    tree = ast.parse((ROOT / path).read_text())
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def constants() -> dict[str, Any]:
    """`module:NAME` → value, of the numbers that look like limits in the servers' packages."""
    found: dict[str, Any] = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            if path.stem.endswith(("_pb2", "_pb2_grpc")):
                continue
            module = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
            for node in ast.parse(path.read_text()).body:
                target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
                if isinstance(target, ast.Name) and LIMIT.fullmatch(target.id):
                    found[f"{module}:{target.id}"] = getattr(importlib.import_module(module), target.id)
    return {name: value for name, value in found.items() if isinstance(value, int | float)}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.where)
def test_a_row_is_true(row: Row) -> None:
    assert value_of(row.default) == default_of(row)
    assert row.limit
    assert row.why
    assert row.effect
    path, _, name = row.test.partition("::")
    assert name.startswith("test_")
    assert name in names_of_tests(path)


def test_a_limit_has_one_row() -> None:
    places = [(row.section.split(",")[0], row.where) for row in ROWS]
    assert len(places) == len(set(places))
    assert len(places) > 150, "the table was read"


def test_every_constant_that_looks_like_a_limit_stands_in_the_table() -> None:
    found, told = constants(), {row.where for row in ROWS}
    assert sorted(found.keys() - told - NO_LIMITS.keys()) == []
    assert sorted(NO_LIMITS.keys() & told) == []
    assert sorted(NO_LIMITS.keys() - found.keys()) == [], "what is gone needs no excuse"
