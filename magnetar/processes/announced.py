"""How a server process reports to whoever started it: the line that it can be used now, and its log."""

import json
import os
from collections.abc import Mapping
from typing import Any, NamedTuple

from magnetar_core.runtime.observe import start_logging
from magnetar_core.runtime.process.daemon import PART_OF_SERVICE


class Ready(NamedTuple):
    """What a server announces when it can be used. A text is empty where the server has nothing of that kind."""

    what: str
    """`magnetar broker`."""
    address: str
    """The place to which clients connect."""
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
        """The announcement in a *line* that a process of a service printed; None if it says something else."""
        try:
            facts: Mapping[str, Any] = json.loads(line)
            return Ready(**facts["ready"])
        except (ValueError, KeyError, TypeError):
            return None


def say_ready(ready: Ready | str) -> None:
    """Print the one line by which people (and `magnetar cluster`) know that a server can be used. A process of a
    service prints an object of JSON, for the service."""
    if isinstance(ready, Ready) and PART_OF_SERVICE in os.environ:
        print(json.dumps({"ready": ready._asdict()}), flush=True)
    else:
        print(ready, flush=True)


def start_server_logging(level: str = "INFO") -> None:
    """MAGNETAR_LOG_FORMAT=json makes each line an object, for log collectors; MAGNETAR_LOG_LEVEL is *level* by default;
    MAGNETAR_LOG_FILE is a file in place of standard error.

    Raises ConfigurationError.
    """
    as_json = os.environ.get("MAGNETAR_LOG_FORMAT", "").lower() == "json"
    level = os.environ.get("MAGNETAR_LOG_LEVEL", level).upper()
    start_logging(level, as_json=as_json, path=os.environ.get("MAGNETAR_LOG_FILE", ""))
