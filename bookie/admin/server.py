"""The HTTP admin of a bookie, with Apache's paths, status codes and JSON.

    /heartbeat, /metrics            whether the process lives, and its numbers
    /api/v1/config/…                settings
    /api/v1/bookie/…                this bookie, and those of its cluster
    /api/v1/ledger/…                any ledger of the cluster
    /api/v1/autorecovery/…          refused: there is no auto-recovery in this process
    /api/v1/magnetar/…              what Apache's bookie does not have

Rules:

1. Nobody is asked who they are, as with Apache: who reaches the port may do everything. It is on loopback unless
   configured otherwise. Nothing changes with a GET or POST, which a web page could make a browser send unasked.
2. A refusal is text for people. Its status is Apache's: a wrong method is 404, what is not there and what goes wrong
   is 500.
3. Answers that grow with the cluster are streamed; nothing here holds a whole ledger, or all records.
"""

import asyncio
import contextlib
import json
import logging
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import Any, Final, Protocol

from aiohttp import web

from bookie.admin.bodies import (
    gc_details_json,
    info_json,
    ledger_json,
    marks_json,
    plain,
    readable_bytes,
    settings_json,
    state_json,
)
from bookie.admin.cluster_view import ClusterView
from bookie.admin.metrics import apache_samples
from bookie.admin.operations import BookieOperations, DiskFileKind
from bookie.disks.read_only import KEPT, Reason
from magnetar_core.bookkeeper.metadata.ledger_store import LedgerStore, Versioned
from magnetar_core.bookkeeper.metadata.ledgers import encode
from magnetar_core.bookkeeper.metadata.store import MetadataStore, NoNode
from magnetar_core.bookkeeper.tls.contexts import Certificates
from magnetar_core.runtime.clock import Clock
from magnetar_core.runtime.files import DiskUsage
from magnetar_core.runtime.http_server import HttpServer, foreign_origin
from magnetar_core.runtime.json_text import parse_json
from magnetar_core.runtime.observe import Metrics
from magnetar_core.runtime.types import KIB, Buffer, Corruption, MagnetarError

log = logging.getLogger(__name__)

# Bodies are a few words; a list of index directories may be longer.
BODY_BYTES_MAX: Final = 64 * KIB

# Apache's pages.
LEDGERS_PER_PAGE: Final = 100
ENTRIES_PER_PAGE: Final = 1_000

# Ids of local ledgers in one answer: some 100 KiB. The next answer begins behind the last of them.
LOCAL_LEDGERS_MAX: Final = 10_000

# Answers that walk through the cluster, or read a ledger, at the same time: they cost the metadata store and other
# bookies something, and serving entries goes first. Others wait.
LONG_ANSWERS_MAX: Final = 4

# A client that takes longer to read an answer keeps others from theirs.
LONG_ANSWER_TIMEOUT_S: Final = 600.0

# What is gathered of a streamed answer before it is written.
_CHUNK_BYTES: Final = 64 * KIB

# Records of ledgers that are read at the same time for a list.
_RECORDS_AT_ONCE: Final = 50

_TEXT: Final = "text/plain"
_NO_PAGE: Final = "<html><body><h1>Resource not found</h1></body></html>"
_NO_AUTORECOVERY: Final = (
    "this bookie does no auto-recovery, and does not speak for those who do: ask a process that runs it"
)

_DISK_FILES: Final[Mapping[str, DiskFileKind]] = {
    "journal files": DiskFileKind.JOURNAL,
    "entrylog files": DiskFileKind.ENTRY_LOG,
    "index files": DiskFileKind.INDEX,
}


class LedgerAccess(Protocol):
    """Reads ledgers of the cluster wherever their copies are. Whoever puts the process together has one."""

    def read(self, ledger_id: int, first: int, last: int | None) -> AsyncGenerator[tuple[int, Buffer], None]:
        """(entry id, payload) of the entries *first* … *last*, both included, as far as they are confirmed; None: of
        all that are.

        An open ledger stays open. Raises MagnetarError.
        """
        ...


class _Refused(Exception):
    """An answer other than success."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


_Handler = Callable[[web.Request, BookieOperations], Awaitable[web.StreamResponse]]
_Members = AsyncGenerator[tuple[str, object], None]
_RawHandler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@web.middleware
async def _errors(request: web.Request, handler: _RawHandler) -> web.StreamResponse:
    try:
        return await handler(request)
    except _Refused as error:
        return _text(str(error), error.status)
    except MagnetarError as error:
        if not isinstance(error, NoNode):  # which is a mistake of whoever asked
            log.warning("%s %s: %s", request.method, request.path_qs, error)
        return _text(str(error), 500)
    except web.HTTPException as error:
        return _text(error.text or error.reason, error.status)
    except Exception as error:
        log.exception("%s %s failed", request.method, request.path_qs)
        return _text(f"{type(error).__name__}: {error}", 500)


@web.middleware
async def _no_foreign_pages(request: web.Request, handler: _RawHandler) -> web.StreamResponse:
    """Bodies may have any type, as at Apache's bookie: its tools are scripts with curl."""
    if (reason := foreign_origin(request)) is not None:
        raise _Refused(403, reason)
    return await handler(request)


def _json(value: object) -> web.Response:
    return web.Response(
        body=(json.dumps(value, indent=2) + "\n").encode(), content_type="application/json", headers=_HEADERS
    )


def _text(text: str, status: int = 200) -> web.Response:
    return web.Response(text=text, status=status, content_type=_TEXT, headers=_HEADERS)


# Entries of ledgers are anybody's bytes: a browser shall not take them for a page.
_HEADERS: Final = {"X-Content-Type-Options": "nosniff"}


class AdminServer:
    """HTTP of one bookie. It may listen before the bookie serves, and then says that it is not ready."""

    def __init__(
        self,
        store: MetadataStore,
        clock: Clock,
        ledgers: LedgerAccess,
        *,
        root: str = "/ledgers",
        metrics_only: bool = False,
        certificates: Certificates | None = None,
    ) -> None:
        """*metrics_only*: /metrics and /heartbeat, and nothing else. *certificates*: bookies are asked over TLS."""
        self._records = LedgerStore(store, root)
        self._cluster = ClusterView(store, root, clock, certificates)
        self._ledgers = ledgers
        self._metrics_only = metrics_only
        self._started_ms = clock.wall_ms()
        self._operations: BookieOperations | None = None
        self._long_answers = asyncio.Semaphore(LONG_ANSWERS_MAX)
        self._http: HttpServer | None = None
        self.metrics = Metrics()

    def serve(self, operations: BookieOperations) -> None:
        """The bookie has started: answer everything from here on."""
        self._operations = operations
        self.metrics.add(operations.metrics)
        self.metrics.add(lambda: apache_samples(operations))

    async def start(self, listening: socket.socket) -> None:
        """Listen on a bound socket."""
        app = web.Application(middlewares=[_errors, _no_foreign_pages], client_max_size=BODY_BYTES_MAX)
        self._routes(app.router)
        self._http = HttpServer(app)
        await self._http.start(listening)

    async def stop(self) -> None:
        if self._http is not None:
            await self._http.stop()

    # -- routes

    def _routes(self, router: web.UrlDispatcher) -> None:
        router.add_route("*", "/heartbeat", self._heartbeat)
        router.add_route("*", "/metrics", self._get_metrics)
        if not self._metrics_only:
            for path, methods in self._table().items():
                router.add_route("*", "/api/v1/" + path, self._dispatcher(path, methods))
            router.add_route("*", "/api/v1/bookie/is_ready", self._is_ready)
            router.add_route("*", "/api/v1/autorecovery/{call}", self._no_autorecovery)
        router.add_route("*", "/{anything:.*}", self._not_found)

    def _table(self) -> dict[str, dict[str, _Handler]]:
        return {
            "config/server_config": {"GET": self._settings, "PUT": self._change_settings},
            "bookie/info": {"GET": self._info},
            "bookie/state": {"GET": self._state},
            "bookie/state/readonly": {"GET": self._is_read_only, "PUT": self._set_read_only},
            "bookie/sanity": {"GET": self._sanity},
            "bookie/cluster_info": {"GET": self._cluster_info},
            "bookie/list_bookies": {"GET": self._list_bookies},
            "bookie/list_bookie_info": {"GET": self._list_bookie_info},
            "bookie/last_log_mark": {"GET": self._last_log_mark},
            "bookie/list_disk_file": {"GET": self._list_disk_file},
            "bookie/expand_storage": {"PUT": self._expand_storage},
            "bookie/gc": {"GET": self._is_in_gc, "PUT": self._trigger_gc},
            "bookie/gc_details": {"GET": self._gc_details},
            "bookie/gc/suspend_compaction": {"GET": self._suspended, "PUT": self._suspend},
            "bookie/gc/resume_compaction": {"PUT": self._resume},
            "bookie/entry_location_compact": {"GET": self._locations, "PUT": self._compact_locations},
            "bookie/cookies": {"GET": self._cookies},
            "ledger/list": {"GET": self._list_ledgers},
            "ledger/metadata": {"GET": self._ledger_metadata},
            "ledger/read": {"GET": self._read_ledger},
            "ledger/delete": {"DELETE": self._delete_ledger},
            "magnetar/status": {"GET": self._status},
            "magnetar/scrub": {"GET": self._scrub, "PUT": self._trigger_scrub},
            "magnetar/rebuild_index": {"GET": self._rebuild_index, "PUT": self._trigger_rebuild},
            "magnetar/flush": {"PUT": self._flush},
            "magnetar/ledgers": {"GET": self._local_ledgers},
            "magnetar/disk_files": {"GET": self._disk_files},
        }

    def _dispatcher(self, path: str, methods: Mapping[str, _Handler]) -> _RawHandler:
        async def dispatch(request: web.Request) -> web.StreamResponse:
            handler = methods.get("GET" if request.method == "HEAD" else request.method)
            if handler is None:
                wanted = " or ".join(methods)
                # The one path for which Apache's bookie uses the status that is meant for it.
                raise _Refused(405 if path == "bookie/gc" else 404, f"Not found method. Should be {wanted} method")
            if self._operations is None:
                raise _Refused(503, "the bookie is starting; it does not serve yet")
            answer = await handler(request, self._operations)
            if request.method in ("PUT", "DELETE"):
                log.info("admin: %s %s from %s", request.method, request.path_qs, request.remote)
            return answer

        return dispatch

    async def _heartbeat(self, request: web.Request) -> web.Response:
        return _text("OK\n")

    async def _get_metrics(self, request: web.Request) -> web.Response:
        if request.method not in ("GET", "HEAD"):
            raise _Refused(403, "/metrics is read with GET")
        return web.Response(
            body=self.metrics.exposition(), headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
        )

    async def _is_ready(self, request: web.Request) -> web.Response:
        if request.method not in ("GET", "HEAD"):
            raise _Refused(404, "Not found method. Should be GET method")
        operations = self._operations
        if operations is None or not operations.is_ready:
            failure = None if operations is None else operations.state().failure
            raise _Refused(503, failure or "Bookie is not fully started yet")
        return _text("OK")

    async def _no_autorecovery(self, request: web.Request) -> web.Response:
        raise _Refused(501, _NO_AUTORECOVERY)

    async def _not_found(self, request: web.Request) -> web.Response:
        return web.Response(text=_NO_PAGE, status=404, content_type="text/html", charset="utf-8")

    # -- settings

    async def _settings(self, request: web.Request, bookie: BookieOperations) -> web.Response:
        return _json(settings_json(bookie.config))

    async def _change_settings(self, request: web.Request, bookie: BookieOperations) -> web.Response:
        raise _Refused(501, "settings are read when the bookie starts: change the file and restart it")

    # -- this bookie

    async def _info(self, request: web.Request, bookie: BookieOperations) -> web.Response:
        return _json(info_json(bookie.info()))

    async def _state(self, request: web.Request, bookie: BookieOperations) -> web.Response:
        return _json(state_json(bookie.state()))

    async def _sanity(self, request: web.Request, bookie: BookieOperations) -> web.Response:
        found = await bookie.sanity()
        for problem in found.problems:
            log.error("sanity: %s", problem)
        return _json({"passed": found.passed, "readOnly": found.read_only})

    async def _is_read_only(self, request: web.Request, bookie: BookieOperations) -> web.Response:
        return _json({"readOnly": bookie.state().read_only})

    async def _set_read_only(self, request: web.Request, bookie: BookieOperations) -> web.Response:
        """`reason` (operator, draining) and `detail` may be given; taking one back leaves the others."""
        body = await _body(request)
        name = body.get("reason", Reason.OPERATOR)
        if name not in tuple(KEPT):
            raise _Refused(400, f"reason {name!r} must be one of {', '.join(KEPT)}")
        if _flag(body, "readOnly"):
            await bookie.set_read_only(Reason(name), str(body.get("detail", "")))
        else:
            await bookie.clear_read_only(Reason(name))
        return _json({"readOnly": bookie.state().read_only})

    async def _last_log_mark(self, request: web.Request, bookie: BookieOperations) -> web.Response:
        return _json(marks_json(bookie.last_log_marks()))

    async def _list_disk_file(self, request: web.Request, bookie: BookieOperations) -> web.Response:
        asked = request.query.get("file_type")
        kinds = {name: kind for name, kind in _DISK_FILES.items() if asked in (None, kind)}
        if not kinds:
            raise _Refused(400, f"file_type {asked!r} must be one of {', '.join(_DISK_FILES.values())}")
        found: dict[str, str] = {}
        for name, kind in kinds.items():
            # What Apache means by index files are those of a storage that keeps a file for each ledger.
            files = {} if kind is DiskFileKind.INDEX else await bookie.list_disk_files(kind)
            found[name] = "".join(f"{file}\t" for directory in files.values() for file in directory)
        return _json(found)

    async def _expand_storage(self, request: web.Request, bookie: BookieOperations) -> web.Response:
        raise _Refused(501, "the directories of a bookie are read when it starts, and cannot be added to yet")

    # -- garbage collection

    async def _is_in_gc(self, request: web.Request, bookie: BookieOperations) -> web.Response:
        return _json({"is_in_force_gc": str(bookie.gc_status().is_forced).lower()})

    async def _trigger_gc(self, request: web.Request, bookie: BookieOperations) -> web.Response:
        """`acceptListing` is ours: the listing of the metadata store is right, empty or shrunken as it is."""
        body = await _body(request, optional=True)
        bookie.trigger_gc(
            force_minor=_flag(body, "forceMinor", True),
            force_major=_flag(body, "forceMajor", True),
            accept_listing=_flag(body, "acceptListing", False),
        )
        return _json(f"Triggered GC on BookieServer: {bookie.bookie_id}")

    async def _gc_details(self, request: web.Request, bookie: BookieOperations) -> web.Response:
        return _json([gc_details_json(bookie.gc_status(), self._started_ms)])

    async def _suspended(self, request: web.Request, bookie: BookieOperations) -> web.Response:
        status = bookie.gc_status()
        return _json(
            {
                "isMinorGcSuspended": str(status.minor_suspended).lower(),
                "isMajorGcSuspended": str(status.major_suspended).lower(),
            }
        )

    async def _suspend(self, request: web.Request, bookie: BookieOperations) -> web.Response:
        major, minor = await _kinds(request, "suspend")
        bookie.suspend_compaction(minor=minor, major=major)
        return _json(_about_kinds("Suspend", major, minor, bookie))

    async def _resume(self, request: web.Request, bookie: BookieOperations) -> web.Response:
        major, minor = await _kinds(request, "resume")
        bookie.resume_compaction(minor=minor, major=major)
        return _json(_about_kinds("Resume", major, minor, bookie))

    async def _locations(self, request: web.Request, bookie: BookieOperations) -> web.Response:
        return _json(bookie.entry_location_compact_status())

    async def _compact_locations(self, request: web.Request, bookie: BookieOperations) -> web.Response:
        body = await _body(request)
        if not _flag(body, "entryLocationRocksDBCompact", False):
            raise _Refused(400, "entryLocationRocksDBCompact must be true")
        asked = body.get("entryLocations")
        if asked is not None and not isinstance(asked, str):
            raise _Refused(400, "entryLocations must be paths, joined by commas")
        paths = [path.strip() for path in asked.split(",") if path.strip()] if asked else None
        try:
            bookie.entry_location_compact(paths)
        except MagnetarError as error:
            raise _Refused(400, str(error)) from error
        shown = asked or ",".join(bookie.entry_location_compact_status())
        return _json(f"Triggered entry Location RocksDB: {shown} compact on bookie:{bookie.bookie_id}.")

    # -- the cluster

    async def _cluster_info(self, request: web.Request, bookie: BookieOperations) -> web.Response:
        return _json(plain(await self._cluster.info()))

    async def _list_bookies(self, request: web.Request, bookie: BookieOperations) -> web.Response:
        kind = request.query.get("type", "rw")
        if kind not in ("rw", "ro"):
            raise _Refused(400, f"type {kind!r} must be rw or ro")
        found = await (self._cluster.writable() if kind == "rw" else self._cluster.read_only())
        hosts: dict[str, str | None] = dict.fromkeys(found)
        if _query_flag(request, "print_hostnames"):
            hosts = {bookie_id: await self._cluster.host_of(bookie_id) for bookie_id in found}
        return _json(hosts)

    async def _list_bookie_info(self, request: web.Request, bookie: BookieOperations) -> web.Response:
        async with self._long_answers:
            spaces = await self._cluster.spaces()
        if not spaces:
            raise _Refused(404, "no bookie is registered")
        shown = {bookie_id: f": {{{_space_text(space)}}}," for bookie_id, space in spaces.items()}
        known = [space for space in spaces.values() if isinstance(space, DiskUsage)]
        total = DiskUsage(sum(space.total_bytes for space in known), sum(space.free_bytes for space in known))
        return _json({**shown, "ClusterInfo: ": f"{{{_space_text(total)}}}"})

    async def _cookies(self, request: web.Request, bookie: BookieOperations) -> web.Response:
        return _json(await self._cluster.cookies())

    # -- ledgers

    async def _list_ledgers(self, request: web.Request, bookie: BookieOperations) -> web.StreamResponse:
        with_records = _query_flag(request, "print_metadata")
        page = _query_number(request, "page", least=1) if with_records else None
        decoded = _query_flag(request, "decode_meta")
        async with self._long_answers:
            return await _stream(request, self._ledger_members(with_records, decoded, page))

    async def _ledger_members(self, with_records: bool, decoded: bool, page: int | None) -> _Members:
        first = 0 if page is None else (page - 1) * LEDGERS_PER_PAGE
        end = None if page is None else first + LEDGERS_PER_PAGE
        number = 0
        waiting: list[int] = []
        async for ledger_id in self._records.list():
            if end is not None and number >= end:
                break
            number += 1
            if number <= first:
                continue
            if not with_records:
                yield str(ledger_id), None
                continue
            waiting.append(ledger_id)
            if len(waiting) >= _RECORDS_AT_ONCE:
                for member in await self._with_records(waiting, decoded):
                    yield member
                waiting = []
        for member in await self._with_records(waiting, decoded):
            yield member

    async def _with_records(self, ledger_ids: list[int], decoded: bool) -> list[tuple[str, object]]:
        async def read(ledger_id: int) -> tuple[str, object] | None:
            try:
                found = await self._records.read(ledger_id)
            except NoNode:  # deleted since it was listed
                return None
            except Corruption as error:
                return str(ledger_id), {"problem": str(error)} if decoded else str(error)
            return str(ledger_id), _record_json(ledger_id, found, decoded)

        return [member for member in await asyncio.gather(*map(read, ledger_ids)) if member is not None]

    async def _ledger_metadata(self, request: web.Request, bookie: BookieOperations) -> web.Response:
        ledger_id = _ledger_id(request, "GET")
        return _json({str(ledger_id): ledger_json(ledger_id, await self._records.read(ledger_id))})

    async def _read_ledger(self, request: web.Request, bookie: BookieOperations) -> web.StreamResponse:
        ledger_id = _ledger_id(request, "GET")
        first = _query_number(request, "start_entry_id", least=0) or 0
        last = _query_number(request, "end_entry_id", least=-1)
        if last == -1:
            last = None
        if last is not None and last < first:
            raise _Refused(500, f"start_entry_id ({first}) is behind end_entry_id ({last})")
        page = _query_number(request, "page", least=1)
        async with self._long_answers:
            return await _stream(request, self._entry_members(ledger_id, first, last, page))

    async def _entry_members(self, ledger_id: int, first: int, last: int | None, page: int | None) -> _Members:
        left = None
        if page is not None:
            first += (page - 1) * ENTRIES_PER_PAGE
            left = ENTRIES_PER_PAGE
        head: list[tuple[str, object]] = [] if page is None else [("Entries for page: ", str(page))]
        async with contextlib.aclosing(self._ledgers.read(ledger_id, first, last)) as entries:
            async for entry_id, payload in entries:
                if left is not None:
                    left -= 1
                    if left < 0:
                        break
                for member in head:  # behind the first entry, so that a ledger that is not there is refused
                    yield member
                head = []
                yield str(entry_id), bytes(payload).decode("ascii", "replace")
        for member in head:
            yield member

    async def _delete_ledger(self, request: web.Request, bookie: BookieOperations) -> web.Response:
        ledger_id = _ledger_id(request, "DELETE")
        await self._records.delete(ledger_id)
        return _json(f"Deleted ledger: {ledger_id}")

    # -- ours

    async def _status(self, request: web.Request, bookie: BookieOperations) -> web.Response:
        return _json(
            {
                "bookieId": bookie.bookie_id,
                "ready": bookie.is_ready,
                "state": plain(bookie.state()),
                "info": plain(bookie.info()),
                "gc": plain(bookie.gc_status()),
                "scrub": plain(bookie.scrub_status()),
                "integrity": plain(bookie.integrity_status()),
                "indexRebuild": plain(bookie.rebuild_index_status()),
                "marks": plain(bookie.last_log_marks()),
            }
        )

    async def _scrub(self, request: web.Request, bookie: BookieOperations) -> web.Response:
        """Where the pass is among the ledgers tells how far it is."""
        status = bookie.scrub_status()
        ledgers = bookie.list_ledgers()
        done = sum(ledger_id < status.ledger_id for ledger_id in ledgers)
        return _json({**plain(status), "ledgers": len(ledgers), "ledgersDone": done})

    async def _trigger_scrub(self, request: web.Request, bookie: BookieOperations) -> web.Response:
        bookie.trigger_scrub()
        return _json(plain(bookie.scrub_status()))

    async def _rebuild_index(self, request: web.Request, bookie: BookieOperations) -> web.Response:
        return _json(plain(bookie.rebuild_index_status()))

    async def _trigger_rebuild(self, request: web.Request, bookie: BookieOperations) -> web.Response:
        bookie.rebuild_index()
        return _json(plain(bookie.rebuild_index_status()))

    async def _flush(self, request: web.Request, bookie: BookieOperations) -> web.Response:
        bookie.flush()
        return _json(f"Triggered flush on BookieServer: {bookie.bookie_id}")

    async def _local_ledgers(self, request: web.Request, bookie: BookieOperations) -> web.Response:
        first = _query_number(request, "first", least=0) or 0
        count = _query_number(request, "count", least=1) or LOCAL_LEDGERS_MAX
        return _json(bookie.list_ledgers(first, min(count, LOCAL_LEDGERS_MAX)))

    async def _disk_files(self, request: web.Request, bookie: BookieOperations) -> web.Response:
        return _json({str(kind): await bookie.list_disk_files(kind) for kind in DiskFileKind})


# ------------------------------------------------------------------------------------------ answers


async def _stream(request: web.Request, members: _Members) -> web.StreamResponse:
    """An object of *members*, one a line. What goes wrong before the first one is an ordinary refusal; later the
    connection is cut, so that nobody takes a part for the whole."""
    async with contextlib.aclosing(members):
        first = await anext(members, None)
        answer = web.StreamResponse(headers=_HEADERS)
        answer.content_type = "application/json"
        await answer.prepare(request)
        if request.method == "HEAD":  # a body would be taken for the answer to the next request
            return answer
        try:
            async with asyncio.timeout(LONG_ANSWER_TIMEOUT_S):
                await _write(answer, first, members)
        except Exception as error:
            log.warning("%s %s breaks off: %s", request.method, request.path_qs, str(error) or "the client is too slow")
            if request.transport is not None:
                request.transport.abort()
        return answer


async def _write(answer: web.StreamResponse, first: tuple[str, object] | None, members: _Members) -> None:
    lines = ["{"] if first is None else ["{", _line(first)]
    size = 0
    async for member in members:
        lines.append(",")
        lines.append(_line(member))
        size += len(lines[-1])
        if size >= _CHUNK_BYTES:
            await answer.write("".join(lines).encode())
            lines, size = [], 0
    await answer.write("".join([*lines, "\n}\n"]).encode())
    await answer.write_eof()


def _line(member: tuple[str, object]) -> str:
    name, value = member
    return f"\n  {json.dumps(name)}: {json.dumps(value)}"


def _record_json(ledger_id: int, found: Versioned, decoded: bool) -> object:
    return ledger_json(ledger_id, found) if decoded else encode(found.metadata).decode("utf-8", "replace")


def _space_text(space: DiskUsage | str) -> str:
    if isinstance(space, str):
        return f"No answer: {space}"
    return f"Free: {readable_bytes(space.free_bytes)}, Total: {readable_bytes(space.total_bytes)}"


def _about_kinds(verb: str, major: bool, minor: bool, bookie: BookieOperations) -> str:
    info = bookie.info()
    server = f"Bookie Server listening on {info.host}:{info.port} with id {info.bookie_id}"
    kinds = [kind for kind, wanted in (("majorGC", major), ("minorGC", minor)) if wanted]
    return ", ".join(f"{verb} {kind} on BookieServer: {server}" for kind in kinds)


# ---------------------------------------------------------------------------------------- questions


async def _body(request: web.Request, *, optional: bool = False) -> dict[str, Any]:
    data = await request.read()
    if not data.strip():
        if optional:
            return {}
        raise _Refused(400, "Empty request body")
    try:
        body = parse_json(data)
    except ValueError as error:
        raise _Refused(500, f"the body is not JSON: {error}") from None
    if not isinstance(body, dict):
        raise _Refused(500, f"the body must be a JSON object, not {type(body).__name__}")
    return body


def _flag(body: Mapping[str, Any], name: str, default: bool | None = None) -> bool:
    value = body.get(name, default)
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    if isinstance(value, bool):
        return value
    raise _Refused(400, f"{name} must be true or false" if name in body else f"{name} is missing: true or false")


async def _kinds(request: web.Request, verb: str) -> tuple[bool, bool]:
    """(major, minor) of a call about compactions."""
    body = await _body(request)
    major, minor = _flag(body, f"{verb}Major", False), _flag(body, f"{verb}Minor", False)
    if not (major or minor):
        raise _Refused(400, f"{verb}Major or {verb}Minor must be true")
    return major, minor


def _query_flag(request: web.Request, name: str) -> bool:
    return request.query.get(name, "").lower() == "true"


def _query_number(request: web.Request, name: str, *, least: int) -> int | None:
    text = request.query.get(name)
    if text is None:
        return None
    try:
        number = int(text)
    except ValueError:
        raise _Refused(400, f"{name} ({text!r}) must be a number") from None
    if not least <= number < 2**63:
        raise _Refused(400, f"{name} ({number}) must be at least {least}, and below 2^63")
    return number


def _ledger_id(request: web.Request, method: str) -> int:
    ledger_id = _query_number(request, "ledger_id", least=0)
    if ledger_id is None:
        raise _Refused(404, f"Not found method. Should be {method} method, with the parameter ledger_id")
    return ledger_id
