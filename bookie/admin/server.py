"""The HTTP admin of a bookie, with Apache's paths, status codes and JSON.

    /heartbeat, /metrics            whether the process lives, and its numbers
    /api/v1/config/…                settings
    /api/v1/bookie/…                this bookie, and those of its cluster
    /api/v1/ledger/…                any ledger of the cluster
    /api/v1/autorecovery/…          auto-recovery of the cluster (`auto_recovery`)
    /api/v1/magnetar/…              what Apache's bookie does not have
    other prefixes                  applications of others that use this port, such as the management interface

Rules:

1. There is no authentication, as with Apache: every client that reaches the port may do everything. The port is on
   loopback unless configured otherwise. Nothing changes with a GET or POST that a web page could make a browser send,
   and nothing is answered there under a name that may be another's (`http_hosts`).
   Applications of others have rules and errors of their own.
2. A refusal is text for people, with Apache's status: 404 for a wrong method, 500 for missing things and for errors.
3. Answers that grow with the cluster are streamed: no answer holds a whole ledger, or all records, in memory.
"""

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Final

from aiohttp import web

from bookie.admin.answers import (
    RawHandler,
    answer_errors,
    is_of_others,
    json_answer,
    json_refusal,
    stream_answer,
    text_answer,
)
from bookie.admin.auto_recovery import AutoRecoveryCalls, RecoveryAccess
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
from bookie.admin.ledger_pages import LedgerAccess, LedgerPages
from bookie.admin.metrics import apache_samples
from bookie.admin.operations import BookieOperations, DiskFileKind
from bookie.admin.questions import Refused, compaction_kinds, flag, json_body, ledger_id_of, query_flag, query_number
from bookie.disks.read_only import Reason
from magnetar_core.bookkeeper.metadata.ledgers.ledger_store import LedgerStore
from magnetar_core.bookkeeper.metadata.stores.store import MetadataStore
from magnetar_core.runtime.clock import Clock
from magnetar_core.runtime.files import DiskUsage
from magnetar_core.runtime.http.hosts import HostRules, is_loopback
from magnetar_core.runtime.http.server import HttpServer, foreign_origin
from magnetar_core.runtime.observe import Metrics
from magnetar_core.runtime.types import KIB, MagnetarError
from magnetar_core.security.tls.contexts import Certificates

log = logging.getLogger(__name__)

# Bodies have a few words; a list of index directories may be longer.
BODY_BYTES_MAX: Final = 64 * KIB

# Ids of local ledgers in one answer: some 100 KiB. The next answer begins after the last of them.
LOCAL_LEDGERS_MAX: Final = 10_000

# Answers at the same time that go through the whole cluster or read a ledger; others wait. They load the metadata store
# and other bookies, and serving entries is more important.
LONG_ANSWERS_MAX: Final = 4

_NO_PAGE: Final = "<html><body><h1>Resource not found</h1></body></html>"
_DISK_FILES: Final[Mapping[str, DiskFileKind]] = {
    "journal files": DiskFileKind.JOURNAL,
    "entrylog files": DiskFileKind.ENTRY_LOG,
    "index files": DiskFileKind.INDEX,
}


_Handler = Callable[[web.Request, BookieOperations], Awaitable[web.StreamResponse]]


@web.middleware
async def _no_foreign_pages(request: web.Request, handler: RawHandler) -> web.StreamResponse:
    """Refuse calls from foreign web pages. Bodies may have any type, as with Apache's bookie: its users call it by
    curl."""
    if not is_of_others(request) and (reason := foreign_origin(request)) is not None:
        raise Refused(403, reason)
    return await handler(request)


def _for_bookie(calls: Mapping[str, Callable[[web.Request], Awaitable[web.StreamResponse]]]) -> dict[str, _Handler]:
    """Handlers that do not need the bookie, as handlers that get it."""

    def with_bookie(call: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> _Handler:
        return lambda request, _: call(request)

    return {method: with_bookie(call) for method, call in calls.items()}


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
        recovery: RecoveryAccess | None = None,
        mounted: Mapping[str, web.Application] | None = None,
        names: Iterable[str] = (),
    ) -> None:
        """*metrics_only*: /metrics and /heartbeat, and nothing else. *certificates*: other bookies are asked over
        TLS. *recovery* None: ledgers cannot be copied from here. *mounted*: prefix → application of others, which is
        served from the start on, also while the bookie is not ready. *names* by which it may be called, beside its
        addresses."""
        self._names = tuple(names)
        self._mounted = dict(mounted or {})
        self._records = LedgerStore(store, root)
        self._cluster = ClusterView(store, root, clock, certificates)
        self._auto_recovery = AutoRecoveryCalls(store, root, self._cluster, recovery)
        self._pages = LedgerPages(self._records, ledgers)
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
        app = web.Application(middlewares=[answer_errors, _no_foreign_pages], client_max_size=BODY_BYTES_MAX)
        self._routes(app)
        hosts = HostRules(self._names, is_local=is_loopback(str(listening.getsockname()[0])))
        self._http = HttpServer(
            app,
            hosts=hosts,
            refusal=lambda request, status, text: (
                json_refusal(text, status) if is_of_others(request) else text_answer(text, status)
            ),
        )
        await self._http.start(listening)

    async def stop(self) -> None:
        if self._http is not None:
            await self._http.stop()
        await self._auto_recovery.stop()

    # -- routes

    def _routes(self, app: web.Application) -> None:
        router = app.router
        router.add_route("*", "/heartbeat", self._heartbeat)
        router.add_route("*", "/metrics", self._get_metrics)
        if not self._metrics_only:
            for path, methods in self._table().items():
                router.add_route("*", "/api/v1/" + path, self._dispatcher(path, methods))
            router.add_route("*", "/api/v1/bookie/is_ready", self._is_ready)
            for path, calls in self._auto_recovery.table().items():
                router.add_route("*", "/api/v1/" + path, self._dispatcher(path, _for_bookie(calls)))
            for prefix, mounted in self._mounted.items():
                app.add_subapp(prefix, mounted)
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
            "magnetar/ledger_doubts": {"GET": self._doubts, "DELETE": self._forget_doubts},
            "magnetar/disk_files": {"GET": self._disk_files},
        }

    def _dispatcher(self, path: str, methods: Mapping[str, _Handler]) -> RawHandler:
        async def dispatch(request: web.Request) -> web.StreamResponse:
            handler = methods.get("GET" if request.method == "HEAD" else request.method)
            if handler is None:
                wanted = " or ".join(methods)
                # The only path for which Apache's bookie answers 405.
                raise Refused(405 if path == "bookie/gc" else 404, f"Not found method. Should be {wanted} method")
            if self._operations is None:
                raise Refused(503, "the bookie is starting; it does not serve yet")
            answer = await handler(request, self._operations)
            if request.method in ("PUT", "DELETE"):
                log.info("admin: %s %s from %s", request.method, request.path_qs, request.remote)
            return answer

        return dispatch

    async def _heartbeat(self, request: web.Request) -> web.Response:
        return text_answer("OK\n")

    async def _get_metrics(self, request: web.Request) -> web.Response:
        if request.method not in ("GET", "HEAD"):
            raise Refused(403, "/metrics is read with GET")
        return web.Response(
            body=self.metrics.exposition(), headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
        )

    async def _is_ready(self, request: web.Request) -> web.Response:
        if request.method not in ("GET", "HEAD"):
            raise Refused(404, "Not found method. Should be GET method")
        operations = self._operations
        if operations is None or not operations.is_ready:
            failure = None if operations is None else operations.state().failure
            raise Refused(503, failure or "Bookie is not fully started yet")
        return text_answer("OK")

    async def _not_found(self, request: web.Request) -> web.Response:
        return web.Response(text=_NO_PAGE, status=404, content_type="text/html", charset="utf-8")

    # -- settings

    async def _settings(self, request: web.Request, bookie: BookieOperations) -> web.Response:
        return json_answer(settings_json(bookie.config))

    async def _change_settings(self, request: web.Request, bookie: BookieOperations) -> web.Response:
        raise Refused(501, "settings are read when the bookie starts: change the file and restart it")

    # -- this bookie

    async def _info(self, request: web.Request, bookie: BookieOperations) -> web.Response:
        return json_answer(info_json(bookie.info()))

    async def _state(self, request: web.Request, bookie: BookieOperations) -> web.Response:
        return json_answer(state_json(bookie.state()))

    async def _sanity(self, request: web.Request, bookie: BookieOperations) -> web.Response:
        sanity = await bookie.sanity()
        for problem in sanity.problems:
            log.error("sanity: %s", problem)
        return json_answer({"passed": sanity.passed, "readOnly": sanity.read_only})

    async def _is_read_only(self, request: web.Request, bookie: BookieOperations) -> web.Response:
        return json_answer({"readOnly": bookie.state().read_only})

    async def _set_read_only(self, request: web.Request, bookie: BookieOperations) -> web.Response:
        """The body may have `reason` (operator) and `detail`. Clearing one reason leaves the others."""
        body = await json_body(request)
        name = body.get("reason", Reason.OPERATOR)
        if name not in (Reason.OPERATOR, Reason.DRAINING):  # the latter is refused with what to do instead
            raise Refused(400, f"reason {name!r} is not known; only {Reason.OPERATOR} can be set")
        if flag(body, "readOnly"):
            await bookie.parts.mode.set(Reason(name), str(body.get("detail", "")))
        else:
            await bookie.parts.mode.clear(Reason(name))
        return json_answer({"readOnly": bookie.state().read_only})

    async def _last_log_mark(self, request: web.Request, bookie: BookieOperations) -> web.Response:
        return json_answer(marks_json(bookie.last_log_marks()))

    async def _list_disk_file(self, request: web.Request, bookie: BookieOperations) -> web.Response:
        asked = request.query.get("file_type")
        kinds = {name: kind for name, kind in _DISK_FILES.items() if asked in (None, kind)}
        if not kinds:
            raise Refused(400, f"file_type {asked!r} must be one of {', '.join(_DISK_FILES.values())}")
        listed: dict[str, str] = {}
        for name, kind in kinds.items():
            # Apache's index files belong to a storage with a file for each ledger, which this bookie does not have.
            files = {} if kind is DiskFileKind.INDEX else await bookie.list_disk_files(kind)
            listed[name] = "".join(f"{file}\t" for directory in files.values() for file in directory)
        return json_answer(listed)

    async def _expand_storage(self, request: web.Request, bookie: BookieOperations) -> web.Response:
        raise Refused(501, "the directories of a bookie are read when it starts, and cannot be added to yet")

    # -- garbage collection

    async def _is_in_gc(self, request: web.Request, bookie: BookieOperations) -> web.Response:
        return json_answer({"is_in_force_gc": str(bookie.parts.collector.status().is_forced).lower()})

    async def _trigger_gc(self, request: web.Request, bookie: BookieOperations) -> web.Response:
        """`acceptListing` is ours: the listing of the metadata store is right, although it is empty or has shrunk."""
        body = await json_body(request, optional=True)
        bookie.parts.collector.trigger(
            force_minor=flag(body, "forceMinor", True),
            force_major=flag(body, "forceMajor", True),
            accept_listing=flag(body, "acceptListing", False),
        )
        return json_answer(f"Triggered GC on BookieServer: {bookie.bookie_id}")

    async def _gc_details(self, request: web.Request, bookie: BookieOperations) -> web.Response:
        return json_answer([gc_details_json(bookie.parts.collector.status(), self._started_ms)])

    async def _suspended(self, request: web.Request, bookie: BookieOperations) -> web.Response:
        status = bookie.parts.collector.status()
        return json_answer(
            {
                "isMinorGcSuspended": str(status.minor_suspended).lower(),
                "isMajorGcSuspended": str(status.major_suspended).lower(),
            }
        )

    async def _suspend(self, request: web.Request, bookie: BookieOperations) -> web.Response:
        major, minor = await compaction_kinds(request, "suspend")
        bookie.parts.collector.suspend(minor=minor, major=major)
        return json_answer(_about_kinds("Suspend", major, minor, bookie))

    async def _resume(self, request: web.Request, bookie: BookieOperations) -> web.Response:
        major, minor = await compaction_kinds(request, "resume")
        bookie.parts.collector.resume(minor=minor, major=major)
        return json_answer(_about_kinds("Resume", major, minor, bookie))

    async def _locations(self, request: web.Request, bookie: BookieOperations) -> web.Response:
        return json_answer(bookie.parts.collector.location_directories)

    async def _compact_locations(self, request: web.Request, bookie: BookieOperations) -> web.Response:
        body = await json_body(request)
        if not flag(body, "entryLocationRocksDBCompact", False):
            raise Refused(400, "entryLocationRocksDBCompact must be true")
        asked = body.get("entryLocations")
        if asked is not None and not isinstance(asked, str):
            raise Refused(400, "entryLocations must be paths, joined by commas")
        paths = [path.strip() for path in asked.split(",") if path.strip()] if asked else None
        try:
            bookie.parts.collector.compact_locations(paths)
        except MagnetarError as error:
            raise Refused(400, str(error)) from error
        shown = asked or ",".join(bookie.parts.collector.location_directories)
        return json_answer(f"Triggered entry Location RocksDB: {shown} compact on bookie:{bookie.bookie_id}.")

    # -- the cluster

    async def _cluster_info(self, request: web.Request, bookie: BookieOperations) -> web.Response:
        return json_answer(plain(await self._cluster.info()))

    async def _list_bookies(self, request: web.Request, bookie: BookieOperations) -> web.Response:
        kind = request.query.get("type", "rw")
        if kind not in ("rw", "ro"):
            raise Refused(400, f"type {kind!r} must be rw or ro")
        bookie_ids = await (self._cluster.writable() if kind == "rw" else self._cluster.read_only())
        hosts: dict[str, str | None] = dict.fromkeys(bookie_ids)
        if query_flag(request, "print_hostnames"):
            hosts = {bookie_id: await self._cluster.host_of(bookie_id) for bookie_id in bookie_ids}
        return json_answer(hosts)

    async def _list_bookie_info(self, request: web.Request, bookie: BookieOperations) -> web.Response:
        async with self._long_answers:
            spaces = await self._cluster.spaces()
        if not spaces:
            raise Refused(404, "no bookie is registered")
        shown = {bookie_id: f": {{{_space_text(space)}}}," for bookie_id, space in spaces.items()}
        known = [space for space in spaces.values() if isinstance(space, DiskUsage)]
        total = DiskUsage(sum(space.total_bytes for space in known), sum(space.free_bytes for space in known))
        return json_answer({**shown, "ClusterInfo: ": f"{{{_space_text(total)}}}"})

    async def _cookies(self, request: web.Request, bookie: BookieOperations) -> web.Response:
        return json_answer(await self._cluster.cookies())

    # -- ledgers

    async def _list_ledgers(self, request: web.Request, bookie: BookieOperations) -> web.StreamResponse:
        with_records = query_flag(request, "print_metadata")
        page = query_number(request, "page", least=1) if with_records else None
        decoded = query_flag(request, "decode_meta")
        async with self._long_answers:
            return await stream_answer(request, self._pages.records(with_records, decoded, page))

    async def _ledger_metadata(self, request: web.Request, bookie: BookieOperations) -> web.Response:
        ledger_id = ledger_id_of(request, "GET")
        return json_answer({str(ledger_id): ledger_json(ledger_id, await self._records.read(ledger_id))})

    async def _read_ledger(self, request: web.Request, bookie: BookieOperations) -> web.StreamResponse:
        ledger_id = ledger_id_of(request, "GET")
        first = query_number(request, "start_entry_id", least=0) or 0
        last = query_number(request, "end_entry_id", least=-1)
        if last == -1:
            last = None
        if last is not None and last < first:
            raise Refused(500, f"start_entry_id ({first}) is behind end_entry_id ({last})")
        page = query_number(request, "page", least=1)
        async with self._long_answers:
            return await stream_answer(request, self._pages.entries(ledger_id, first, last, page))

    async def _delete_ledger(self, request: web.Request, bookie: BookieOperations) -> web.Response:
        ledger_id = ledger_id_of(request, "DELETE")
        await self._records.delete(ledger_id)
        return json_answer(f"Deleted ledger: {ledger_id}")

    # -- ours

    async def _status(self, request: web.Request, bookie: BookieOperations) -> web.Response:
        return json_answer(
            {
                "bookieId": bookie.bookie_id,
                "ready": bookie.is_ready,
                "state": plain(bookie.state()),
                "info": plain(bookie.info()),
                "gc": plain(bookie.parts.collector.status()),
                "scrub": plain(bookie.parts.scrub.status()),
                "integrity": plain(bookie.parts.integrity.status()),
                "lostLogs": plain(bookie.parts.lost_logs.status()),
                "openToOthers": bookie.open_to_others(),
                "indexRebuild": plain(bookie.parts.rebuild.status()),
                "marks": plain(bookie.last_log_marks()),
            }
        )

    async def _scrub(self, request: web.Request, bookie: BookieOperations) -> web.Response:
        """The progress is the share of ledgers before the place of the pass."""
        status = bookie.parts.scrub.status()
        ledgers = bookie.list_ledgers()
        done = sum(ledger_id < status.ledger_id for ledger_id in ledgers)
        return json_answer({**plain(status), "ledgers": len(ledgers), "ledgersDone": done})

    async def _trigger_scrub(self, request: web.Request, bookie: BookieOperations) -> web.Response:
        bookie.parts.scrub.trigger()
        return json_answer(plain(bookie.parts.scrub.status()))

    async def _rebuild_index(self, request: web.Request, bookie: BookieOperations) -> web.Response:
        return json_answer(plain(bookie.parts.rebuild.status()))

    async def _trigger_rebuild(self, request: web.Request, bookie: BookieOperations) -> web.Response:
        bookie.parts.rebuild.trigger()
        return json_answer(plain(bookie.parts.rebuild.status()))

    async def _flush(self, request: web.Request, bookie: BookieOperations) -> web.Response:
        bookie.parts.checkpointer.flush()
        return json_answer(f"Triggered flush on BookieServer: {bookie.bookie_id}")

    async def _local_ledgers(self, request: web.Request, bookie: BookieOperations) -> web.Response:
        first = query_number(request, "first", least=0) or 0
        count = query_number(request, "count", least=1) or LOCAL_LEDGERS_MAX
        return json_answer(bookie.list_ledgers(first, min(count, LOCAL_LEDGERS_MAX)))

    async def _doubts(self, request: web.Request, bookie: BookieOperations) -> web.Response:
        return json_answer(plain(bookie.parts.collector.status().doubt))

    async def _forget_doubts(self, request: web.Request, bookie: BookieOperations) -> web.Response:
        return json_answer({"ledgers": await bookie.forget_doubt()})

    async def _disk_files(self, request: web.Request, bookie: BookieOperations) -> web.Response:
        return json_answer({str(kind): await bookie.list_disk_files(kind) for kind in DiskFileKind})


def _space_text(space: DiskUsage | str) -> str:
    if isinstance(space, str):
        return f"No answer: {space}"
    return f"Free: {readable_bytes(space.free_bytes)}, Total: {readable_bytes(space.total_bytes)}"


def _about_kinds(verb: str, major: bool, minor: bool, bookie: BookieOperations) -> str:
    info = bookie.info()
    server = f"Bookie Server listening on {info.host}:{info.port} with id {info.bookie_id}"
    kinds = [kind for kind, wanted in (("majorGC", major), ("minorGC", minor)) if wanted]
    return ", ".join(f"{verb} {kind} on BookieServer: {server}" for kind in kinds)
