"""Carries out the faults of a round, each at its time. A fault that lasts is two events: its begin and its end."""

import signal
import threading
from collections.abc import Callable
from time import monotonic
from typing import Final

from magnetar.inspect.broker_admin import AdminClient
from magnetar.testing.servers import ServerFailed
from magnetar_core.runtime.types import MagnetarError
from tests.soak.schedule import CUTS, ENDINGS, FILLS, PAUSE, RESET, UNLOADS, Fault
from tests.soak.servers import FULL_SHARE, SoakCluster

# Time for an answer of one server; servers that are away do not answer, and then the next one is asked.
ADMIN_TIMEOUT_S: Final = 5.0


class Nemesis(threading.Thread):
    """Does the *faults* from now on; `failure` is what it could not do although the cluster was there."""

    def __init__(
        self, cluster: SoakCluster, topic: str, faults: tuple[Fault, ...], remark: Callable[[str], None]
    ) -> None:
        super().__init__(name="nemesis", daemon=True)
        self.failure: BaseException | None = None
        self._cluster = cluster
        self._topic = topic
        self._faults = faults
        self._remark = remark
        self._halted = threading.Event()

    def stop(self) -> None:
        """Finish the fault that is being carried out, then stop."""
        self._halted.set()
        self.join()

    def run(self) -> None:
        began = monotonic()
        events = [(fault.at_s, 0, fault) for fault in self._faults]
        events += [(fault.at_s + fault.for_s, 1, fault) for fault in self._faults if fault.for_s]
        for at_s, is_end, fault in sorted(events, key=lambda event: event[:2]):
            if self._halted.wait(max(began + at_s - monotonic(), 0)):
                return
            try:
                if is_end:
                    self._end(fault)
                else:
                    self._remark(f"{monotonic() - began:6.1f} s  {fault.kind} {fault.target}".rstrip())
                    self._begin(fault)
            except (MagnetarError, ServerFailed, ProcessLookupError) as error:
                # An unload without an answer is a fault like others; so is one at a server that has ended meanwhile.
                self._remark(f"          {fault.kind} {fault.target}: {str(error).splitlines()[0][:200]}")
            except BaseException as error:
                self.failure = error
                raise

    def _begin(self, fault: Fault) -> None:
        cluster = self._cluster
        if fault.kind in UNLOADS:
            self._unload(fault)
        elif fault.kind == RESET:
            self._reset(fault)
        elif fault.kind == ENDINGS[0]:
            cluster.end(fault.target, signal.SIGKILL)
        elif fault.kind == ENDINGS[1]:
            cluster.end(fault.target, signal.SIGTERM)
        elif fault.kind == PAUSE:
            cluster.pause(fault.target)
        elif fault.kind in CUTS:
            cluster.partition_away(fault.target, silent=fault.kind == CUTS[0])
        else:
            assert fault.kind in FILLS
            cluster.fill(FULL_SHARE if fault.kind == FILLS[0] else 1.0)

    def _end(self, fault: Fault) -> None:
        cluster = self._cluster
        if fault.kind in ENDINGS:
            cluster.launch(fault.target)
        elif fault.kind == PAUSE:
            cluster.resume(fault.target)
        elif fault.kind in CUTS:
            cluster._reconnect(fault.target)  # nobody waits until the others see it
        else:
            cluster.clear()

    def _reset(self, fault: Fault) -> None:
        number, subscription = fault.target.split()
        admin = AdminClient(self._cluster.admin_urls, timeout_s=ADMIN_TIMEOUT_S)
        path = admin.path_of(f"{self._topic}-partition-{number}")
        earliest = {"ledgerId": -1, "entryId": -1}
        admin.call("POST", f"/admin/v2/{path}/subscription/{subscription}/resetcursor", earliest)

    def _unload(self, fault: Fault) -> None:
        admin = AdminClient(self._cluster.admin_urls, timeout_s=ADMIN_TIMEOUT_S)
        if fault.target:
            path = admin.path_of(f"{self._topic}-partition-{fault.target}")
            admin.call("PUT", f"/admin/v2/{path}/unload")
        else:
            namespace = "/".join(self._topic.removeprefix("persistent://").split("/")[:2])
            admin.call("PUT", f"/admin/v2/namespaces/{namespace}/unload")
