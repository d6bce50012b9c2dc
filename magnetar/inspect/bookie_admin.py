"""Asks the HTTP admin of a bookie, ours or Apache's. Standard library only."""

import json
import urllib.parse
from typing import Any

from magnetar_core.runtime.data.json_text import parse_json
from magnetar_core.runtime.http.request import ask
from magnetar_core.runtime.types import MagnetarError

# Enough for a sanity check of a busy disk, or for a page of records from a slow metadata store.
TIMEOUT_S = 60.0


class BookieAdminError(MagnetarError):
    """The bookie refused, or did not answer: then *status* is 0."""

    def __init__(self, text: str, status: int = 0) -> None:
        super().__init__(text)
        self.status = status


class BookieAdmin:
    """The admin of one bookie. All calls block and raise BookieAdminError."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")

    def get(self, path: str, **query: object) -> Any:
        return self._call("GET", path, query, None)

    def put(self, path: str, body: Any = None) -> Any:
        return self._call("PUT", path, {}, body)

    def delete(self, path: str, **query: object) -> Any:
        return self._call("DELETE", path, query, None)

    def overview(self) -> dict[str, Any] | None:
        """What the bookie's management interface knows of auto-recovery; None if it has none, or asks for a token."""
        try:
            overview: dict[str, Any] = parse_json(self._ask("GET", f"{self.url}/manage/v1/overview", None))
        except BookieAdminError as error:
            if error.status in (401, 403, 404):
                return None
            raise
        return overview

    def text(self, path: str) -> str:
        return str(self._ask("GET", self.url + path, None).decode(errors="replace"))

    def _call(self, method: str, path: str, query: dict[str, object], body: Any) -> Any:
        url = f"{self.url}/api/v1/{path}"
        asked = {name: _value_text(value) for name, value in query.items() if value is not None}
        if asked:
            url += "?" + urllib.parse.urlencode(asked)
        data = None if body is None else json.dumps(body).encode()
        try:
            content = self._ask(method, url, data)
        except BookieAdminError as error:
            if error.status == 404 and path.startswith("magnetar/"):
                raise BookieAdminError(
                    f"{self.url} answers, but it is not the admin of a Magnetar bookie", 404
                ) from None
            raise
        try:
            return parse_json(content)
        except ValueError:
            return content.decode(errors="replace")

    def _ask(self, method: str, url: str, data: bytes | None) -> bytes:
        try:
            answer = ask(method, url, data, timeout_s=TIMEOUT_S)
        except (OSError, ValueError) as error:
            raise BookieAdminError(
                f"no bookie answers at {url}: {error}. Is it running, with httpServerEnabled=true? "
                "Give its address with --admin-url."
            ) from None
        if answer.status < 300:
            return answer.body
        text = answer.body.decode(errors="replace").strip()
        reason = answer.reason if not text or text.startswith("<") else text
        raise BookieAdminError(f"{reason} (HTTP {answer.status} from {url})", answer.status)


def _value_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
