"""Shared by the commands that ask a running bookie: options, client, waiting."""

import functools
import time
from collections.abc import Callable
from typing import Any

import click

from magnetar.cli.common.options import F
from magnetar.inspect.bookie_admin import BookieAdmin, BookieAdminError
from magnetar_core.runtime.pauses import GrowingPause

ADMIN_URL = "http://127.0.0.1:8000"

# Seconds between two questions about the progress of an operation: the longest pause, and the first, which is short so
# that the end of a short operation is noticed at once.
LOOK_S = 0.5
LOOK_FIRST_S = 0.02


def remote(command: Callable[..., None]) -> Callable[..., None]:
    """The options of a command that asks a bookie. *command* gets a BookieAdmin as its first argument, not the URL."""

    @functools.wraps(command)
    def run(admin_url: str, **options: Any) -> None:
        command(BookieAdmin(admin_url), **options)

    run = click.option("--json", "as_json", is_flag=True, help="Print the bookie's answer as JSON.")(run)
    return click.option(
        "--admin-url", default=ADMIN_URL, show_default=True, envvar="MAGNETAR_BOOKIE_ADMIN_URL",
        help="HTTP address of the bookie (httpServerEnabled, httpServerPort).",
    )(run)  # fmt: skip


def wait_option(command: F) -> F:
    """`--wait`, for a command that starts a long operation."""
    return click.option("--wait", is_flag=True, help="Wait until the operation has ended.")(command)


class Pauses:
    """The pauses between questions about the progress of an operation."""

    def __init__(self) -> None:
        self._pause = GrowingPause(LOOK_FIRST_S, LOOK_S)

    def wait(self) -> None:
        time.sleep(self._pause.next_s())


def if_there(admin: BookieAdmin, path: str) -> Any:
    """The answer of the admin; None if it does not know the path, as other versions of the admin may not."""
    try:
        return admin.get(path)
    except BookieAdminError as error:
        if error.status != 404:
            raise
        return None
