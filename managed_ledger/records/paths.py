"""Where topics and cursors stand in the metadata store. (docs/formats/metadata.md) No IO."""

from typing import Final
from urllib.parse import quote_plus, unquote_plus

ROOT: Final = "/managed-ledgers"


def encode(text: str) -> str:
    """Java's URLEncoder: letters, digits and `.-*_` stay, a space becomes `+`, the rest `%XX` in UTF-8."""
    return quote_plus(text, safe="*-._").replace("~", "%7E")


def decode(text: str) -> str:
    """What `encode` was given."""
    return unquote_plus(text)


def ledger_path(name: str) -> str:
    """The node of a managed ledger named `<tenant>/<namespace>/persistent/<encoded topic>`."""
    return f"{ROOT}/{name}"


def cursor_path(name: str, cursor: str) -> str:
    return f"{ROOT}/{name}/{encode(cursor)}"
