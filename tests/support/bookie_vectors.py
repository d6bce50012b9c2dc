"""The recorded conversations with Apache's bookies, as tests want them (tests/vectors/wire/bk*)."""

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

VECTORS = Path(__file__).parent.parent / "vectors"


def segments(name: str) -> Iterator[dict[str, Any]]:
    """The rows of a conversation in order of arrival, `data` as bytes."""
    with (VECTORS / "wire" / f"{name}.jsonl").open() as rows:
        for line in rows:
            row = json.loads(line)
            row["data"] = base64.b64decode(row.get("data", ""))
            yield row


def decoded(name: str) -> list[dict[str, Any]]:
    """One row per frame, with the values it must have."""
    with (VECTORS / "wire" / f"{name}.decoded.jsonl").open() as rows:
        return [json.loads(line) for line in rows]


def streams(name: str) -> dict[tuple[int, str], bytes]:
    """All bytes of each (connection, direction)."""
    joined: dict[tuple[int, str], bytes] = {}
    for row in segments(name):
        key = (row["conn"], row["dir"])
        joined[key] = joined.get(key, b"") + row["data"]
    return joined
