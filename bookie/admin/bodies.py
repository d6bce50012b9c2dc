"""The answers of the bookie's HTTP admin as JSON values.

Apache's shapes have Apache's member names; ours have the names of our values in camelCase, so that one call of
`plain` turns any of them into JSON.
"""

import base64
import dataclasses
from collections.abc import AsyncGenerator, Iterable, Mapping
from enum import Enum
from typing import Any, Final, TypeAlias

from bookie.admin.operations import Info, LogMark, State
from bookie.config import BookieConfig
from bookie.maintenance.garbage.collector import GcStatus
from magnetar_core.bookkeeper.metadata.ledgers.ledger_store import Versioned
from magnetar_core.bookkeeper.wire.entry import DigestType

Members: TypeAlias = AsyncGenerator[tuple[str, object], None]
"""The members of a JSON object that is streamed: (name, value)."""

# Java's API has another name for this digest than the record.
_DIGESTS: Final[dict[DigestType, str]] = {DigestType.HMAC: "MAC"}


def plain(value: object) -> Any:
    """Dataclasses and named tuples become objects with camelCase members, enumerations their values."""
    if isinstance(value, Enum):
        return value.value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {_camel(field.name): plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return {_camel(name): plain(member) for name, member in value._asdict().items()}
    if isinstance(value, Mapping):
        return {str(plain(name)): plain(member) for name, member in value.items()}
    if isinstance(value, str | int | float) or value is None:
        return value
    if isinstance(value, Iterable):
        return [plain(member) for member in value]
    raise TypeError(f"no JSON for {value!r}")


def _camel(name: str) -> str:
    first, *rest = name.removeprefix("is_").split("_")
    return first + "".join(word.capitalize() for word in rest)


def settings_json(config: BookieConfig) -> dict[str, str]:
    """Every setting in force, as text. Empty ones are left out, as Apache leaves out settings that are not set."""
    settings = {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if "name" in field.metadata and value not in (None, ""):
            settings[field.metadata["name"]] = _setting_text(value)
    return settings


def _setting_text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def state_json(state: State) -> dict[str, Any]:
    return {
        "running": state.running,
        "readOnly": state.read_only,
        "shuttingDown": state.shutting_down,
        "availableForHighPriorityWrites": state.available_for_high_priority_writes,
    }


def info_json(info: Info) -> dict[str, int]:
    return {"freeSpace": info.free_bytes, "totalSpace": info.total_bytes}


def marks_json(marks: Iterable[LogMark]) -> dict[str, str]:
    return {f"LastLogMark: Journal Id - {mark.file_id}({mark.file_name})": f"Pos - {mark.offset}" for mark in marks}


def gc_details_json(status: GcStatus, started_ms: int) -> dict[str, Any]:
    """A time that is not known is shown as *started_ms*, when the bookie started, as Apache's bookie does."""

    def shown(wall_ms: int | None) -> int:
        return started_ms if wall_ms is None else wall_ms

    return {
        "forceCompacting": status.is_forced,
        "majorCompacting": status.phase == "major compaction",
        "minorCompacting": status.phase == "minor compaction",
        "lastMajorCompactionTime": shown(status.last_major_ms),
        "lastMinorCompactionTime": shown(status.last_minor_ms),
        "lastEntryLocationCompactionTime": shown(status.last_location_ms),
        "majorCompactionCounter": status.major_compactions,
        "minorCompactionCounter": status.minor_compactions,
        "entryLocationCompactionCounter": status.location_compactions,
    }


def ledger_json(ledger_id: int, record: Versioned) -> dict[str, Any]:
    """The record of a ledger; bytes are in base64. Format 1 has neither digest nor time."""
    metadata = record.metadata
    is_format_1 = metadata.format_version == 1
    return {
        "ledgerId": ledger_id,
        "metadataFormatVersion": metadata.format_version,
        "ensembleSize": metadata.ensemble_size,
        "writeQuorumSize": metadata.write_quorum,
        "ackQuorumSize": metadata.ack_quorum,
        "state": metadata.state.name,
        "length": metadata.length,
        "lastEntryId": metadata.last_entry_id,
        "ctime": -1 if is_format_1 else record.created_ms,
        "digestType": None if is_format_1 else _DIGESTS.get(metadata.digest_type, metadata.digest_type.name),
        "password": base64.b64encode(metadata.password).decode(),
        "customMetadata": {name: base64.b64encode(value).decode() for name, value in metadata.custom_metadata},
        "closed": metadata.is_closed,
        "allEnsembles": {
            str(segment.first_entry_id): [{"id": bookie_id} for bookie_id in segment.ensemble]
            for segment in metadata.segments
        },
        "ctoken": metadata.ctoken or 0,
    }


def readable_bytes(size_bytes: int) -> str:
    """`12345(12.345KB)`: thousands, three decimals that are cut off, none that are 0. (As Apache writes sizes.)"""
    units = ("", "KB", "MB", "GB", "TB")
    power = 0
    while power < len(units) - 1 and size_bytes >= 1000 ** (power + 1):
        power += 1
    if power == 0:
        return str(size_bytes)
    whole, rest = divmod(size_bytes * 1000 // 1000**power, 1000)
    text = f"{whole}.{rest:03}".rstrip("0").rstrip(".")
    return f"{size_bytes}({text}{units[power]})"
