"""What the official client shows of itself to brokers, from options with the names of Java's client.

pulsar.client.authPluginClassName       org.apache.pulsar.client.impl.auth.AuthenticationToken, …Basic, …Tls
pulsar.client.authParams                token:…, file:///path/of/token, a JSON object, or key:value,key:value
pulsar.client.tlsTrustCertsFilePath     whose certificates are trusted
pulsar.client.tlsHostnameVerificationEnable, tlsAllowInsecureConnection
pulsar.client.operationTimeoutMs
"""

import json
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from connectors.spark.options.table import CLIENT
from magnetar_core.runtime.types import ConfigurationError
from magnetar_core.topics.client_log import client_log

log = logging.getLogger(__name__)


_CLASSES: Final = "org.apache.pulsar.client.impl.auth.Authentication"


def client_arguments(options: Mapping[str, str]) -> dict[str, Any]:
    """Arguments of `pulsar.Client`, from `pulsar.client.…` options in lower case. Errors repeat no values but names of
    files.

    Raises ConfigurationError.
    """
    import pulsar

    given = {name.removeprefix(CLIENT): value for name, value in options.items() if name.startswith(CLIENT)}
    arguments: dict[str, Any] = {}
    plugin, parameters = given.pop("authpluginclassname", ""), given.pop("authparams", "")
    if plugin:
        make = {
            f"{_CLASSES}Token": lambda: pulsar.AuthenticationToken(_token(parameters)),
            f"{_CLASSES}Tls": lambda: pulsar.AuthenticationTLS(
                *(_file("authParams", path) for path in _auth_values(parameters, "tlsCertFile", "tlsKeyFile"))
            ),
            f"{_CLASSES}Basic": lambda: pulsar.AuthenticationBasic(*_auth_values(parameters, "userId", "password")),
        }.get(plugin)
        if make is None:
            raise ConfigurationError(
                f"pulsar.client.authPluginClassName={plugin}: expected {_CLASSES}Token, …Tls or …Basic"
            )
        arguments["authentication"] = make()
    for name, (argument, read) in _ARGUMENTS.items():
        if name in given:
            try:
                arguments[argument] = read(given.pop(name))
            except ValueError as error:
                raise ConfigurationError(f"{CLIENT}{name}: expected {error}") from None
    return arguments


def client_logger() -> Any:
    """For a new client: what it logs as an error is logged here; `explain` knows what brokers refused it."""
    return client_log().logger(on_error=lambda line: log.warning("Pulsar's client: %s", line))


def explain(error: object) -> str:
    """What the client says of a call or a message that failed, with what the brokers said; else where to look: if a
    broker does not let it in, it says only that its time is over."""
    import pulsar

    if refusal := client_log().last_refusal():
        return f"{error}: the broker says: {refusal}"
    if isinstance(error, pulsar.Timeout):
        return (
            f"{error}: the brokers do not answer, or do not let the client in, which it tries until its time is over; "
            "check service.url, pulsar.client.authPluginClassName, pulsar.client.authParams and the brokers' log"
        )
    if isinstance(error, pulsar.ConnectError):
        return (
            f"{error}: no connection; check that service.url can be reached from here and, for pulsar+ssl, "
            "pulsar.client.tlsTrustCertsFilePath"
        )
    return str(error)


def _token(parameters: str) -> Any:
    """The token; for a file, a function that reads it, which the client calls whenever it connects: tokens expire."""
    if parameters.startswith("file:"):
        path = Path(_file("authParams", parameters.removeprefix("file://").removeprefix("file:")))
        return lambda: path.read_text().strip()
    if not parameters:
        raise ConfigurationError("pulsar.client.authParams is empty: expected token:… or file:///path/of/token")
    return parameters.removeprefix("token:")


def _auth_values(parameters: str, *names: str) -> list[str]:
    try:
        values = json.loads(parameters) if parameters.startswith("{") else dict(
            pair.split(":", 1) for pair in parameters.split(",")
        )  # fmt: skip
        return [str(values[name]) for name in names]
    except (ValueError, KeyError):
        raise ConfigurationError(f"pulsar.client.authParams: expected {' and '.join(names)}") from None


def _file(name: str, path: str) -> str:
    """*path*. Raises ConfigurationError if it cannot be read: the client only says that it has no connection, or that
    it was not let in."""
    try:
        Path(path).open("rb").close()
    except OSError as error:
        raise ConfigurationError(
            f"pulsar.client.{name}: expected a file that can be read on this machine: {path}: {error.strerror}"
        ) from None
    return path


def _seconds(text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise ValueError("a number of milliseconds")
    return max(int(text) // 1000, 1)


def _parse_boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError("true or false")
    return text.lower() == "true"


_ARGUMENTS: Final[Mapping[str, tuple[str, Callable[[str], Any]]]] = {
    "tlstrustcertsfilepath": ("tls_trust_certs_file_path", lambda path: _file("tlsTrustCertsFilePath", path)),
    "tlshostnameverificationenable": ("tls_validate_hostname", _parse_boolean),
    "tlsallowinsecureconnection": ("tls_allow_insecure_connection", _parse_boolean),
    "operationtimeoutms": ("operation_timeout_seconds", _seconds),
}
