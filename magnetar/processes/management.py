"""Puts the management interface together: the subjects of auto-recovery, and what of the bookie they need.

A further subject is one more line in `start_management`; what it does by itself is started there and added to *parts*.
"""

import os
import socket
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from magnetar import __version__
from magnetar.processes.bookies.turning import turn, turn_for_drain
from magnetar_core.runtime.tasks import Parts

if TYPE_CHECKING:
    from autorecovery.admin.server import ManagementServer
    from autorecovery.config import AutoRecoveryConfig
    from magnetar_core.bookkeeper.client.client import BookKeeper
    from magnetar_core.bookkeeper.metadata.stores.store import MetadataStore
    from magnetar_core.runtime.clock import Clock
    from magnetar_core.security.tls.files import TlsFiles


def parse_cookie(data: bytes, source: str) -> tuple[str, str]:
    """See `autorecovery.admin.subjects.cookies.ParseCookie`. Raises Corruption."""
    from bookie.disks.cookie import decode

    cookie = decode(data, source)
    return cookie.bookie_id, cookie.instance_id


async def start_management(
    config: "AutoRecoveryConfig",
    store: "MetadataStore",
    bookkeeper: "BookKeeper",
    clock: "Clock",
    parts: Parts,
    *,
    root: str,
    host: str,
    tls: "TlsFiles | None",
) -> "ManagementServer":
    """The interface, whose `mounts` are to be served at *host*; *parts* learns how to stop what it does by itself.

    *bookkeeper* is open. With *tls* bookies are asked for their disks over TLS. Raises ConfigurationError.
    """
    # Here, because loading the HTTP library costs time and memory.
    import autorecovery.admin
    from autorecovery.admin.server import ManagementServer
    from autorecovery.admin.subjects.callbacks import CallbackCalls
    from autorecovery.admin.subjects.cluster_status import ClusterStatus
    from autorecovery.admin.subjects.cookies import CookieCalls
    from autorecovery.admin.subjects.overview import OverviewCalls
    from autorecovery.admin.subjects.recovery import RecoveryCalls
    from autorecovery.admin.subjects.removal import RemovalCalls
    from autorecovery.admin.subjects.reports import ReportCalls
    from autorecovery.admin.subjects.serving import ServingCalls
    from autorecovery.admin.subjects.states import StateCalls
    from autorecovery.admin.token_file import TokenFile
    from autorecovery.callbacks.registry import CallbackRegistry
    from magnetar_core.bookkeeper.metadata.damage.reports import DamageReports
    from magnetar_core.runtime.http.hosts import is_loopback
    from magnetar_core.security.tls.contexts import Certificates, client_context

    tokens = TokenFile(Path(config.tokens_file)) if config.tokens_file else None
    name = f"recovery-{socket.gethostname()}-{os.getpid()}"
    recoveries = RecoveryCalls(name, store, bookkeeper, clock, root=root, bytes_per_s=config.rate)
    parts.add("recoveries", recoveries.stop)
    certificates = None if tls is None else Certificates(tls, client_context, clock)
    status = ClusterStatus(store, bookkeeper.bookies, clock, root=root, certificates=certificates)
    parts.add("dashboard", status.stop)
    subjects = (
        OverviewCalls(status),
        StateCalls(store, root, clock, partial(turn_for_drain, bookkeeper.bookies)),
        ServingCalls(store, root, clock, partial(turn, bookkeeper.bookies)),
        CookieCalls(store, root, clock, parse_cookie),
        RemovalCalls(store, root, clock),
        CallbackCalls(CallbackRegistry(store, root), clock),
        ReportCalls(DamageReports(store, root), clock),
        recoveries,
    )
    page = Path(autorecovery.admin.__file__).parent / "dashboard"
    return ManagementServer(
        subjects,
        version=__version__,
        tokens=tokens,
        is_local=is_loopback(host),
        dashboard=page,
        overview=status.read,
    )
