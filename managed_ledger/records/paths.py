"""Where topics and cursors stand in the metadata store. (docs/formats/metadata.md) No IO."""

from typing import Final

from magnetar_core.topics.topic_name import encode

ROOT: Final = "/managed-ledgers"


def ledger_path(name: str) -> str:
    """The node of a managed ledger named `<tenant>/<namespace>/persistent/<encoded topic>`."""
    return f"{ROOT}/{name}"


def cursor_path(name: str, cursor: str) -> str:
    return f"{ROOT}/{name}/{encode(cursor)}"
