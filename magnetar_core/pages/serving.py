"""Serves the files of a page for people: its own, and those that all pages share.

Rules:

1. A page is made of files that hold no data, so they are open to everybody. What it shows it asks for with calls, and
   those are behind the server's authentication.
2. Only names that were found when the server started are served, so that no path leads out of the folders.
3. A page loads nothing from elsewhere, and runs no script or style that stands in its markup: headers say so.
"""

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Final

from aiohttp import web

SHARED: Final = Path(__file__).parent / "files"
"""The files that all pages share."""

INDEX: Final = "index.html"

HEADERS: Final[Mapping[str, str]] = {
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-cache",
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "Referrer-Policy": "no-referrer",
}
"""The headers of each file: rule 3; no page of others shows this one in a frame or learns its address."""

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def files_of(folder: Path) -> dict[str, Path]:
    """Name → file: those in *folder*, and those that all pages share."""
    files = {path.name: path for where in (SHARED, folder) for path in sorted(where.iterdir()) if path.is_file()}
    assert INDEX in files, f"{folder} has no {INDEX}"
    return files


def serve_file(path: Path) -> _Handler:
    """A handler that answers with the file."""

    async def handle(request: web.Request) -> web.StreamResponse:
        return web.FileResponse(path, headers=HEADERS)

    return handle
