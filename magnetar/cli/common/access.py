"""Who a command is, and whom it trusts: the options that stand before every command, and a file of them."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])


def access_options(group: F) -> F:
    """Options of the whole command line; each command finds them in `inspect.access.CURRENT`."""

    @functools.wraps(group)
    def with_access(
        profile: Path | None,
        token: str | None,
        user: str | None,
        tls_trust: str | None,
        tls_certificate: str | None,
        tls_key: str | None,
        tls_any_host: bool,
        trusted_hosts: str | None,
    ) -> Any:
        _set_access(profile, token, user, tls_trust, tls_certificate, tls_key, tls_any_host, trusted_hosts)
        return group()

    command: Any = with_access
    for option in reversed(
        (
            click.option("--profile", type=click.Path(path_type=Path, dir_okay=False), envvar="MAGNETAR_PROFILE",
                         help="File with addresses, credentials and certificates, as Apache's client.conf."),
            click.option("--token", envvar="MAGNETAR_TOKEN", help="Token to show to brokers, or file:PATH of one."),
            click.option("--user", envvar="MAGNETAR_USER", help="NAME:PASSWORD to show to brokers."),
            click.option("--tls-trust", envvar="MAGNETAR_TLS_TRUST",
                         help="Certificates that brokers may have behind theirs, PEM."),
            click.option("--tls-certificate", envvar="MAGNETAR_TLS_CERTIFICATE", help="Certificate to show, PEM."),
            click.option("--tls-key", envvar="MAGNETAR_TLS_KEY", help="Its key, PEM."),
            click.option("--trusted-hosts", envvar="MAGNETAR_TRUSTED_HOSTS",
                         help="Hosts that get the credentials too when a broker sends there: names, *.domain, *."),
            click.option("--tls-any-host", is_flag=True, help="Do not compare certificates with the names of hosts."),
        )
    ):  # fmt: skip
        command = option(command)
    decorated: F = command
    return decorated


def _set_access(
    profile: Path | None,
    token: str | None,
    user: str | None,
    trust: str | None,
    certificate: str | None,
    key: str | None,
    any_host: bool,
    hosts: str | None,
) -> None:
    if not any((profile, token, user, trust, certificate, key, any_host, hosts)):
        return
    from magnetar.inspect.access import CURRENT, Access, read_profile  # TLS comes with it

    access, addresses = Access(), {}
    if profile is not None:
        content = read_profile(profile)
        access = content.access
        pairs = {
            "admin_url": content.admin_url,
            "service_url": content.service_url,
            "tls_directory": content.tls_directory,
        }
        addresses = {name: url for name, url in pairs.items() if url}
    if token or user:
        access = access._replace(token=token or "", user="" if token else user or "")
    changes = {"trusted": trust, "certificate": certificate, "key": key}
    access = Access(**{**access._asdict(), **{name: value for name, value in changes.items() if value}})
    if any_host:
        access = access._replace(verify_hostname=False)
    if hosts:
        access = access._replace(hosts=tuple(hosts.split(",")))
    former = CURRENT.set(access)
    context = click.get_current_context()
    context.call_on_close(lambda: CURRENT.reset(former))
    name = context.invoked_subcommand
    if addresses and name is not None:
        assert isinstance(context.command, click.Group)
        _, command, _ = context.command.resolve_command(context, [name])
        assert command is not None, "click has found it before"
        context.default_map = {name: _for_each_command(command, addresses)}


def _for_each_command(command: click.Command, values: dict[str, str]) -> dict[str, Any]:
    """*values* as the defaults of every command below *command*."""
    if not isinstance(command, click.Group):
        return dict(values)
    return {name: _for_each_command(subcommand, values) for name, subcommand in command.commands.items()}
