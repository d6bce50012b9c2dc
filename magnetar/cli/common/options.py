"""Shared by the commands: options, questions to the user, and answers as JSON for scripts."""

import functools
import getpass
import json
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from magnetar.inspect.broker_admin import AdminClient, AdminError
from magnetar_core.runtime.clock import LoopClock
from magnetar_core.runtime.config import parse_processes
from magnetar_core.runtime.types import MagnetarError

F = TypeVar("F", bound=Callable[..., Any])

ADMIN_URL: Final = "http://127.0.0.1:8080"
SERVICE_URL: Final = "pulsar://127.0.0.1:6650"
METADATA_URL: Final = "zk:127.0.0.1:2181"
# Completion of names: the user has pressed the tab key and waits.
COMPLETION_S: Final = 1.0
# Time for a broker to say where its metadata are; a slower broker is skipped.
METADATA_ASK_S: Final = 5.0

AT_LEAST_ONE: Final = click.IntRange(min=1)

config_option: Final = click.option(
    "--config", type=click.Path(path_type=Path, dir_okay=False), help="File of name=value lines, with Apache's names."
)


def admin_option(command: F) -> F:
    return click.option(
        "--admin-url", default=ADMIN_URL, show_default=True, envvar="MAGNETAR_ADMIN_URL",
        help="HTTP address of a broker; several, separated by commas, are tried in turn.",
    )(command)  # fmt: skip


def urls_of(text: str) -> list[str]:
    """The addresses in a list with commas."""
    return [url.strip().rstrip("/") for url in text.split(",") if url.strip()]


def admin_of(url: str) -> AdminClient:
    """The admin of the brokers at *url*, one or several with commas. Raises AdminError if *url* is empty."""
    return AdminClient(urls_of(url))


def with_admin(command: Callable[..., None]) -> Callable[..., None]:
    """The option --admin-url. *command* gets an AdminClient as its first argument, not the URL."""

    @functools.wraps(command)
    def run(admin_url: str, **options: Any) -> None:
        command(admin_of(admin_url), **options)

    return admin_option(run)


def check_processes(ctx: click.Context, param: click.Parameter, text: str | None) -> str | None:
    """The value of --processes. Raises BadParameter."""
    if text is not None:
        try:
            parse_processes(text)
        except ValueError as error:
            raise click.BadParameter(str(error)) from None
    return text


processes_option: Final = click.option(
    "--processes", metavar="N", callback=check_processes,
    help="Processes of this service (magnetarProcesses): a number, or auto for one for each core. Default: 1.",
)  # fmt: skip


moved_option: Final = click.option(
    "--moved", is_flag=True, help="The stored data were moved here from other paths; once, at the first start here."
)


def service_option(command: F) -> F:
    return click.option(
        "--service-url", default=SERVICE_URL, show_default=True, envvar="MAGNETAR_SERVICE_URL",
        help="Service URL of the brokers.",
    )(command)  # fmt: skip


def yes_option(command: F) -> F:
    return click.option("-y", "--yes", is_flag=True, help="Do not ask.")(command)


class NotConfirmed(MagnetarError):
    """An action that cannot be undone was not confirmed, and there is no terminal to ask at."""


def confirm(question: str, is_confirmed: bool) -> None:
    """Ask at the terminal. Raises NotConfirmed if there is none, click.Abort after a no."""
    if is_confirmed:
        return
    if sys.stdin is None or not sys.stdin.isatty():
        raise NotConfirmed(f"{question} Nobody can be asked here: add --yes")
    click.confirm(question, abort=True, err=True)


def say(facts: Any, as_json: bool, show: Callable[[Any], None] = click.echo) -> None:
    """Print *facts* as JSON for scripts, or *show* them to people."""
    if as_json:
        print_json(facts)
    else:
        show(facts)


def done(text: str, as_json: bool, /, **facts: Any) -> None:
    """Report what was done: *text* for people, *facts* as JSON for scripts."""
    say(facts, as_json, lambda _: click.echo(text))


def complete_topics(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Names for the shell: topics of public/default, or of the namespace that was typed; none if no broker answers."""
    namespace, typed = "public/default", incomplete
    prefix = ""
    if incomplete.count("/") >= 2:
        head = incomplete.removeprefix("persistent://").split("/")
        prefix, namespace = incomplete[: incomplete.rindex("/") + 1], "/".join(head[:2])
        typed = incomplete[len(prefix) :]
    url = ctx.params.get("admin_url") or os.environ.get("MAGNETAR_ADMIN_URL") or ADMIN_URL
    try:
        partitioned, plain = AdminClient(urls_of(url), timeout_s=COMPLETION_S).whole_topics(namespace)
    except AdminError:
        return []
    names = sorted(name.rpartition("/")[2] for name in (*partitioned, *plain))
    return [prefix + name for name in names if name.startswith(typed)]


topic_argument: Final = click.argument("topic", shell_complete=complete_topics)


def metadata_option(command: F) -> F:
    """The options for the metadata store, and for the certificates where bookies demand TLS."""
    command = click.option(
        "--tls-directory", envvar="MAGNETAR_TLS_DIRECTORY",
        help="Folder with tls.crt, tls.key and ca.crt, where bookies demand TLS.",
    )(command)  # fmt: skip
    return click.option(
        "--metadata", "metadata_url", envvar="MAGNETAR_METADATA_URL",
        help="Metadata store: zk:HOST:PORT[,HOST:PORT…], zk://HOST:PORT/ledgers as bookies have it, or rocksdb:FOLDER. "
        f"Default: the one of the broker at --admin-url; if none answers, {METADATA_URL}.",
    )(command)  # fmt: skip


def metadata_of(metadata_url: str | None, admin_url: str) -> str:
    """The metadata store that was named; else that of the first broker at *admin_url* that answers; else the default.

    Raises MagnetarError if a broker keeps its metadata in a folder that is not on this machine.
    """
    if metadata_url is not None:
        return metadata_url
    for url in urls_of(admin_url):
        try:
            settings = AdminClient(url, timeout_s=METADATA_ASK_S).call("GET", "/admin/v2/brokers/configuration/runtime")
            store_url = str(settings.get("metadataStoreUrl") or "")
        except (AdminError, AttributeError):  # nothing answers there, or something that is not a broker
            continue
        scheme, _, place = store_url.partition(":")
        if scheme == "rocksdb" and not os.path.isdir(place):
            raise MagnetarError(
                f"the broker at {url} keeps its metadata in the folder {place}, which is not on this machine: type "
                "this there, or name another store with --metadata"
            )
        if store_url:
            return store_url
    return METADATA_URL


def json_option(command: F) -> F:
    return click.option("--json", "as_json", is_flag=True, help="As JSON, for scripts.")(command)


def print_json(value: Any) -> None:
    click.echo(json.dumps(value, indent=2, ensure_ascii=False))


def now_ms() -> int:
    return LoopClock().wall_ms()


def who() -> str:
    """The person at the keyboard, for those who read the state later."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container without a name for its user
        user = "somebody"
    return f"{user}@{socket.gethostname()}"


def policy_value(text: str) -> Any:
    """The JSON of a policy's value. Raises AdminError."""
    try:
        return json.loads(text)
    except ValueError as error:
        raise AdminError(f"{text!r} is not JSON ({error}); texts need quotes: '\"text\"'") from None
