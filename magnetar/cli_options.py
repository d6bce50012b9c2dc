"""What the commands share: options, and how an answer is printed for scripts."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from magnetar.admin_client import AdminClient

F = TypeVar("F", bound=Callable[..., Any])

ADMIN_URL = "http://127.0.0.1:8080"
SERVICE_URL = "pulsar://127.0.0.1:6650"


def admin_option(command: F) -> F:
    return click.option(
        "--admin-url", default=ADMIN_URL, show_default=True, envvar="MAGNETAR_ADMIN_URL",
        help="HTTP of a broker; several, separated by commas, are tried in turn.",
    )(command)  # fmt: skip


def service_option(command: F) -> F:
    return click.option(
        "--service-url", default=SERVICE_URL, show_default=True, envvar="MAGNETAR_SERVICE_URL",
        help="Brokers, as clients name them.",
    )(command)  # fmt: skip


def json_option(command: F) -> F:
    return click.option("--json", "as_json", is_flag=True, help="What the broker says, as JSON.")(command)


def admin_of(url: str) -> "AdminClient":
    from magnetar.admin_client import AdminClient

    return AdminClient([one.strip() for one in url.split(",") if one.strip()])


def print_json(value: Any) -> None:
    import json

    click.echo(json.dumps(value, indent=2, ensure_ascii=False))


def now_ms() -> int:
    from magnetar.runtime.clock import LoopClock

    return LoopClock().wall_ms()
