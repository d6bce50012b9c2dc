"""The credentials that commands show to brokers, and the certificates that they trust; also for the official client.

The values stand in options, or in a file of Apache's form (`client.conf`):

    webServiceUrl=https://localhost:8443        brokerServiceUrl=pulsar+ssl://localhost:6651
    authPlugin=org.apache.pulsar.client.impl.auth.AuthenticationToken        authParams=token:…
    tlsTrustCertsFilePath=ca.crt                tlsEnableHostnameVerification=true
    bookkeeperTLSDirectory=FOLDER               (ours, as in `broker.conf`: where bookies demand TLS)
"""

import base64
import json
import ssl
from collections.abc import Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Final, NamedTuple

from magnetar_core.runtime.config import parse_properties
from magnetar_core.runtime.types import ConfigurationError, MagnetarError

_PLUGIN: Final = "org.apache.pulsar.client.impl.auth.Authentication"

_NAMES: Final = frozenset(
    {
        "webServiceUrl", "brokerServiceUrl", "authPlugin", "authParams", "tlsTrustCertsFilePath",
        "tlsCertificateFilePath", "tlsKeyFilePath", "tlsEnableHostnameVerification", "bookkeeperTLSDirectory",
    }
)  # fmt: skip
# Settings of Apache's file for what does not exist here: accepted where their value switches it off.
_OFF: Final = {
    "tlsAllowInsecureConnection": "false",
    "useKeyStoreTls": "false",
    "webserviceTlsProvider": "",
    "tlsKeyStoreType": None,
    "tlsTrustStoreType": None,
    "tlsTrustStorePath": "",
    "tlsTrustStorePassword": "",
    "tlsKeyStorePath": "",
    "tlsKeyStorePassword": "",
    "proxyServiceUrl": "",
    "proxyProtocol": "",
}


class AccessError(MagnetarError):
    """The credentials or certificates that were given cannot be used."""


class Access(NamedTuple):
    """Credentials and certificates; empty texts where there are none."""

    token: str = ""
    """A token, or `file:PATH` of one."""
    user: str = ""
    """`name:password`."""
    trusted: str = ""
    certificate: str = ""
    key: str = ""
    verify_hostname: bool = True
    hosts: tuple[str, ...] = ()
    """Hosts that get the credentials although no broker lists them: names, `*.domain`, `*`."""

    def token_text(self) -> str:
        """The token itself. Raises AccessError."""
        text = self.token.removeprefix("token:")
        if text.startswith("file:"):
            path = text.removeprefix("file:")
            path = "/" + path.lstrip("/") if path.startswith("//") else path
            try:
                text = Path(path).read_text(encoding="ascii").strip()
            except (OSError, ValueError) as error:
                reason = error.strerror if isinstance(error, OSError) else "it is not the text of a token"
                raise AccessError(f"cannot read the token in {path}: {reason}") from None
        if not text.isascii() or any(character.isspace() for character in text):
            raise AccessError("the token has characters that no token has; give the token itself, or file:PATH")
        return text

    def headers(self) -> dict[str, str]:
        """The headers of a request over HTTP. Raises AccessError."""
        if self.token:
            return {"Authorization": f"Bearer {self.token_text()}"}
        if self.user:
            return {"Authorization": f"Basic {base64.b64encode(self.user.encode()).decode('ascii')}"}
        return {}

    def context(self) -> ssl.SSLContext | None:
        """The context for HTTPS; None where the one of the system will do. Raises AccessError."""
        if not (self.trusted or self.certificate) and self.verify_hostname:
            return None
        from magnetar_core.security.tls.contexts import usual_context

        try:
            context = usual_context(self.trusted)
            context.check_hostname = self.verify_hostname
            if self.certificate:
                context.load_cert_chain(self.certificate, self.key or None)
        except (OSError, ssl.SSLError) as error:
            reason = getattr(error, "reason", None) or error.strerror or str(error)
            named = ", ".join(path for path in (self.trusted, self.certificate, self.key) if path)
            raise AccessError(f"the certificates cannot be used ({named}): {reason}") from None
        return context

    def client_options(self) -> dict[str, Any]:
        """Arguments for `pulsar.Client`. Raises AccessError."""
        import pulsar

        options: dict[str, Any] = {}
        if self.token:
            # The text, not a function: the client's threads may call that while the interpreter ends, and abort it.
            options["authentication"] = pulsar.AuthenticationToken(self.token_text())
        elif self.user:
            name, _, password = self.user.partition(":")
            options["authentication"] = pulsar.AuthenticationBasic(name, password)
        elif self.certificate:
            options["authentication"] = pulsar.AuthenticationTLS(self.certificate, self.key)
        if self.trusted:
            options["tls_trust_certs_file_path"] = self.trusted
        if self.verify_hostname:
            options["tls_validate_hostname"] = True
        return options


class Profile(NamedTuple):
    """The values of a profile's file."""

    access: Access
    admin_url: str
    service_url: str
    tls_directory: str = ""
    """A folder with the certificates that bookies ask for."""


CURRENT: Final[ContextVar[Access]] = ContextVar("access", default=Access())  # noqa: B039  (a tuple does not change)
"""The access of the command that runs."""


def read_profile(path: Path) -> Profile:
    """Raises ConfigurationError."""
    try:
        values = parse_properties(path.read_text(encoding="utf-8"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(
            f"cannot read the profile {path}: {getattr(error, 'strerror', None) or error}"
        ) from None
    return profile_of(values, str(path))


def profile_of(values: Mapping[str, str], source: str) -> Profile:
    """The profile that the settings *values* describe. Raises ConfigurationError."""
    for name, value in values.items():
        if name not in _NAMES and (name not in _OFF or (_OFF[name] is not None and value not in ("", _OFF[name]))):
            known = ", ".join(sorted(_NAMES))
            raise ConfigurationError(f"{source}: {name} has no meaning here; there are {known}")
    plugin, parameters = values.get("authPlugin", ""), values.get("authParams", "")
    access = Access(
        trusted=values.get("tlsTrustCertsFilePath", ""),
        certificate=values.get("tlsCertificateFilePath", ""),
        key=values.get("tlsKeyFilePath", ""),
        verify_hostname=values.get("tlsEnableHostnameVerification", "true").lower() != "false",
    )
    if plugin == _PLUGIN + "Token":
        access = access._replace(token=parameters)
    elif plugin == _PLUGIN + "Basic":
        try:
            credentials = json.loads(parameters)
            access = access._replace(user=f"{credentials['userId']}:{credentials['password']}")
        except (ValueError, KeyError, TypeError):
            raise ConfigurationError(
                f'{source}: authParams of AuthenticationBasic are {{"userId":"…","password":"…"}}'
            ) from None
    elif plugin == _PLUGIN + "Tls":
        pairs = dict(part.strip().partition(":")[::2] for part in parameters.split(","))
        access = access._replace(
            certificate=pairs.get("tlsCertFile", access.certificate), key=pairs.get("tlsKeyFile", access.key)
        )
    elif plugin:
        raise ConfigurationError(f"{source}: authPlugin={plugin}: expected {_PLUGIN}Token, …Basic or …Tls")
    urls = values.get("webServiceUrl", ""), values.get("brokerServiceUrl", "")
    return Profile(access, *urls, values.get("bookkeeperTLSDirectory", ""))
