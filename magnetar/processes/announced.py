"""What each server process says to those that started it: its log, and that it can be used now."""

import json
import os
from collections.abc import Mapping
from typing import Any, NamedTuple

from magnetar_core.runtime.observe import start_logging
from magnetar_core.runtime.process.daemon import PART_OF_SERVICE


class Ready(NamedTuple):
    """What a server says when it can be used. Empty: it has none."""

    what: str
    """`magnetar broker`."""
    address: str
    """Where clients connect to."""
    http: str = ""
    """URLs."""
    https: str = ""
    grpc: str = ""
    """host:port."""
    rest: str = ""
    bookie_id: str = ""

    def __str__(self) -> str:
        parts = [
            f"{self.what} is ready at {self.address}",
            f"HTTP {self.http}" if self.http else "",
            f"HTTPS {self.https}" if self.https else "",
            f"gRPC {self.grpc}" if self.grpc else "",
            self.rest,
        ]
        return ", ".join(part for part in parts if part)

    @staticmethod
    def read(line: bytes) -> "Ready | None":
        """From a line of a process of a service; None: it says something else."""
        try:
            facts: Mapping[str, Any] = json.loads(line)
            return Ready(**facts["ready"])
        except (ValueError, KeyError, TypeError):
            return None


def say_ready(ready: Ready | str) -> None:
    """The one line that tells people (and `magnetar cluster`) that a server can be used; a process of a service tells
    the service by an object of JSON."""
    if isinstance(ready, Ready) and PART_OF_SERVICE in os.environ:
        print(json.dumps({"ready": ready._asdict()}), flush=True)
    else:
        print(ready, flush=True)


def start_server_logging() -> None:
    """MAGNETAR_LOG_FORMAT=json makes each line an object, for log collectors; MAGNETAR_LOG_LEVEL is INFO by default."""
    as_json = os.environ.get("MAGNETAR_LOG_FORMAT", "").lower() == "json"
    start_logging(os.environ.get("MAGNETAR_LOG_LEVEL", "INFO").upper(), as_json=as_json)
