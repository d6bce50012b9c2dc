"""As whom this broker asks other brokers: its credentials and its TLS (`brokerClient…`)."""

import base64
import json
import ssl
from dataclasses import replace
from typing import Any, Final

from broker.settings.config import BrokerConfig
from broker.settings.groups.broker_client import CLIENT_PLUGINS
from magnetar_core.runtime.clock import Clock
from magnetar_core.runtime.types import ConfigurationError
from magnetar_core.security.authentication import BASIC, TLS, TOKEN
from magnetar_core.security.sources import read_source
from magnetar_core.security.tls.contexts import Certificates, client_context, limit, load_own, usual_context
from magnetar_core.security.tls.files import TlsFiles

_SETTING: Final = "brokerClientAuthenticationParameters"


class BrokerClient:
    """What requests to other brokers carry. Raises ConfigurationError when it is made."""

    def __init__(self, config: BrokerConfig, clock: Clock) -> None:
        self._clock = clock
        self._method = ""
        self._parameters = ""
        self._certificates: Certificates | None = None
        self.uses_tls = False
        self.use(config)

    def use(self, config: BrokerConfig) -> None:
        """Ask as *config* says from now on. Raises ConfigurationError, and goes on as before."""
        method = CLIENT_PLUGINS.get(config.broker_client_plugin, "")
        parameters = config.broker_client_parameters
        tls = config.client_tls_settings
        if method == TLS and parameters:
            fields = _fields(parameters)
            tls = replace(
                tls,
                key_store=fields.get("keyStorePath", tls.key_store),
                key_store_password=fields.get("keyStorePassword", tls.key_store_password),
                certificate=fields.get("tlsCertFile", tls.certificate),
                key=fields.get("tlsKeyFile", tls.key),
            )
        files = tls.files
        if method == TLS and not (files.key_store or (files.certificate and files.key)):
            raise ConfigurationError(f"{_SETTING}: write tlsCertFile:PATH,tlsKeyFile:PATH, or set a key store")
        is_limited = bool(files.protocols or files.ciphers)
        certificates = Certificates(files, _context, self._clock) if files.paths or is_limited else None
        _headers(method, parameters)  # a mistake is reported when the broker starts
        self._method, self._parameters, self._certificates = method, parameters, certificates
        self.uses_tls = config.broker_client_tls

    def headers(self) -> dict[str, str]:
        """The headers of a request. A token in a file is read anew each time, so it may be renewed there."""
        return _headers(self._method, self._parameters)

    def shown(self) -> tuple[str, bytes]:
        """(method, data) for the CONNECT of a binary connection."""
        if self._method == TOKEN:
            return TOKEN, _token(self._parameters).encode()
        if self._method == BASIC:
            fields = _fields(self._parameters)
            return BASIC, f"{fields.get('userId', '')}:{fields.get('password', '')}".encode()
        return self._method, b""

    @property
    def context(self) -> ssl.SSLContext | bool:
        """For requests over TLS; True: the system's trusted certificates."""
        return True if self._certificates is None else self._certificates.context


def _headers(method: str, parameters: str) -> dict[str, str]:
    """The headers of requests. Raises ConfigurationError."""
    if method == TOKEN:
        return {"Authorization": f"Bearer {_token(parameters)}"}
    if method == BASIC:
        fields = _fields(parameters)
        if "userId" not in fields or "password" not in fields:
            raise ConfigurationError(f'{_SETTING}: write {{"userId":"…","password":"…"}}')
        pair = f"{fields['userId']}:{fields['password']}".encode()
        return {"Authorization": f"Basic {base64.b64encode(pair).decode('ascii')}"}
    return {}


def _context(files: TlsFiles) -> ssl.SSLContext:
    if files.authorities:
        return client_context(files)
    context = usual_context()
    context.check_hostname = files.verify_hostname
    limit(context, files)
    if files.own:
        load_own(context, files)
    return context


def _token(parameters: str) -> str:
    """The token in *parameters*: as it is, as JSON with a member `token`, or in a file. Raises ConfigurationError."""
    text = parameters
    if text.lstrip().startswith("{"):
        text = _fields(text).get("token", "")
    if text.startswith("file:"):
        text = read_source(text, _SETTING).decode("utf-8", errors="replace")
    text = text.strip().removeprefix("token:")
    if not text or not text.isascii() or any(character.isspace() for character in text):
        raise ConfigurationError(f"{_SETTING}: write token:TOKEN, or file:///PATH of a file with the token")
    return text


def _fields(parameters: str) -> dict[str, str]:
    """`{"name": "value"}` or `name:value,…`. Raises ConfigurationError."""
    if parameters.lstrip().startswith("{"):
        try:
            members: Any = json.loads(parameters)
        except ValueError:
            raise ConfigurationError(f"{_SETTING}: it is not JSON") from None
        return {str(name): str(value) for name, value in members.items()}
    pairs = [pair.strip().partition(":") for pair in parameters.split(",")]
    return {name: value for name, _, value in pairs}
