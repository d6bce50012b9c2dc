"""What each server process says to those that started it: its log, and that it can be used now."""

import os

from magnetar_core.runtime.observe import start_logging


def say_ready(text: str) -> None:
    """The one line that tells people (and `magnetar cluster`) that a server can be used."""
    print(text, flush=True)


def start_server_logging() -> None:
    """MAGNETAR_LOG_FORMAT=json makes each line an object, for log collectors; MAGNETAR_LOG_LEVEL is INFO by default."""
    as_json = os.environ.get("MAGNETAR_LOG_FORMAT", "").lower() == "json"
    start_logging(os.environ.get("MAGNETAR_LOG_LEVEL", "INFO").upper(), as_json=as_json)
