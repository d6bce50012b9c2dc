"""The folder of `magnetar standalone --secure`: keys, certificates and a token, made once and used again.

    ca.crt, ca.key       the authority; clients trust ca.crt
    tls.crt, tls.key     the server's certificate; made anew when it lacks a name or comes to its end
    token.key            the secret by which tokens are signed
    token.new.key        the next one, while the secret is changed: tokens of both are taken
    admin.token          the token of the role `admin`
    admin.conf           how to connect with it, for `magnetar --profile` and Apache's tools
    bookies/             ca.crt, tls.crt, tls.key: who has them can read and write at the bookies, as the broker does

The folder is its owner's alone (0700), and so is every file in it with a secret (0600).

The bookies have an authority of their own, whose key nobody has: a certificate that somebody gets from ca.key is for
the broker's ports, where roles and permissions are asked.
"""

import os
import secrets
import socket
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from broker.settings.groups.authentication import PROVIDERS
from broker.settings.groups.broker_client import CLIENT_PLUGINS
from magnetar_core.runtime.types import ConfigurationError
from magnetar_core.security.authentication import TOKEN
from magnetar_core.security.tls.files import CERTIFICATE_NAME, KEY_NAME, TRUSTED_NAME
from magnetar_core.security.tls.issuing import AUTHORITY_DAYS, Issued, is_good_for, new_authority, new_server
from magnetar_core.security.tokens import sign

ROLE: Final = "admin"

BOOKIES: Final = "bookies"
"""The folder with the certificates that bookies ask for."""

_SECRET_BYTES: Final = 32
# The server's certificate is made anew at a start if it ends before this.
_RENEWED_BEFORE: Final = timedelta(days=30)

_PLUGIN: Final = next(name for name, method in CLIENT_PLUGINS.items() if method == TOKEN)


class SecureFolder:
    """The folder, which `prepare` fills. A ConfigurationError names the file that cannot be read or written."""

    def __init__(self, path: Path, wall_ms: int) -> None:
        self.path = path.resolve()
        self._now = datetime.fromtimestamp(wall_ms / 1000, UTC)

    def prepare(self, hosts: Sequence[str]) -> None:
        """Make what is missing; the server's certificate is for *hosts* and this machine."""
        wanted = list(dict.fromkeys(["localhost", *hosts, socket.gethostname(), "127.0.0.1", "::1"]))
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.path.chmod(0o700)
            authority = self._authority()
            self._server(authority, wanted)
            self._bookies(["localhost", "127.0.0.1", "::1"])
            secret = self._read_private("token.key") or self._write("token.key", secrets.token_bytes(_SECRET_BYTES))
            if self._read_private("admin.token") is None:
                self._write("admin.token", sign({"sub": ROLE}, secret, "HS256").encode("ascii"))
        except OSError as error:
            raise ConfigurationError(f"--secure {self.path}: {error.filename}: {error.strerror}") from None
        except ValueError as error:
            raise ConfigurationError(
                f"--secure {self.path}: a file in it cannot be used ({error}); remove the folder, and all is made anew"
            ) from None

    def settings(self) -> dict[str, str]:
        """The settings of a broker that uses the folder. (The ports are in `standalone_settings`.)"""
        return {
            "tlsCertificateFilePath": str(self.path / "tls.crt"),
            "tlsKeyFilePath": str(self.path / "tls.key"),
            "authenticationEnabled": "true",
            "authenticationProviders": next(name for name, method in PROVIDERS.items() if method == TOKEN),
            "tokenSecretKey": str(self.path / "token.key"),
            "tokenSecretKeys": str(self.path / "token.new.key"),
            "authorizationEnabled": "true",
            "superUserRoles": ROLE,
            "brokerClientTlsEnabled": "true",
            "brokerClientTrustCertsFilePath": str(self.path / "ca.crt"),
            "brokerClientAuthenticationPlugin": _PLUGIN,
            "brokerClientAuthenticationParameters": f"file://{self.path / 'admin.token'}",
            "bookkeeperTLSDirectory": str(self.path / BOOKIES),
        }

    def bookie_settings(self) -> dict[str, str]:
        """The settings of its bookies: TLS, and a certificate of those that are in the folder."""
        return {"tlsDirectory": str(self.path / BOOKIES)}

    def write_profile(self, service_url: str, web_url: str) -> Path:
        """Write `admin.conf` with the addresses of the present run."""
        lines = {
            "brokerServiceUrl": service_url,
            "webServiceUrl": web_url,
            "authPlugin": _PLUGIN,
            "authParams": f"file://{self.path / 'admin.token'}",
            "tlsTrustCertsFilePath": str(self.path / "ca.crt"),
            "tlsEnableHostnameVerification": "true",
            "bookkeeperTLSDirectory": str(self.path / BOOKIES),
        }
        text = "".join(f"{name}={value}\n" for name, value in lines.items())
        self._write("admin.conf", text.encode())
        return self.path / "admin.conf"

    # -------------------------------------------------------------------------------- files

    def _authority(self) -> Issued:
        certificate, key = self._read_private("ca.crt", mode=0o644), self._read_private("ca.key")
        if certificate is not None and key is not None:
            return Issued(certificate, key)
        authority = new_authority("magnetar standalone", self._now)
        self._write("ca.key", authority.key)
        self._write("ca.crt", authority.certificate, mode=0o644)
        (self.path / "tls.crt").unlink(missing_ok=True)  # of another authority
        return authority

    def _server(self, authority: Issued, hosts: list[str]) -> None:
        certificate, key = self._read_private("tls.crt", mode=0o644), self._read_private("tls.key")
        if certificate is not None and key is not None and is_good_for(certificate, hosts, self._now + _RENEWED_BEFORE):
            return
        issued = new_server(authority, hosts, self._now)
        self._write("tls.key", issued.key)
        self._write("tls.crt", issued.certificate, mode=0o644)

    def _bookies(self, hosts: list[str]) -> None:
        """Make the certificate that bookies, broker and tools show each other. It lasts as long as an authority: the
        process itself needs it, however long it runs."""
        place = self.path / BOOKIES
        place.mkdir(mode=0o700, exist_ok=True)
        place.chmod(0o700)
        certificate, key, trusted = (f"{BOOKIES}/{name}" for name in (CERTIFICATE_NAME, KEY_NAME, TRUSTED_NAME))
        kept = (
            self._read_private(certificate, mode=0o644),
            self._read_private(key),
            self._read_private(trusted, mode=0o644),
        )
        if kept[0] is not None and None not in kept and is_good_for(kept[0], hosts, self._now + _RENEWED_BEFORE):
            return
        authority = new_authority("magnetar standalone, bookies", self._now)
        issued = new_server(authority, hosts, self._now, days=AUTHORITY_DAYS, is_client=True)
        (self.path / certificate).unlink(missing_ok=True)  # it is written last: without it all are made anew
        self._write(trusted, authority.certificate, mode=0o644)
        self._write(key, issued.key)
        self._write(certificate, issued.certificate, mode=0o644)

    def _read_private(self, name: str, mode: int = 0o600) -> bytes | None:
        """The content of a file, whose rights become *mode*; None if there is no such file."""
        path = self.path / name
        try:
            path.chmod(mode)
            return path.read_bytes()
        except FileNotFoundError:
            return None

    def _write(self, name: str, data: bytes, mode: int = 0o600) -> bytes:
        """Put *data* into a file; it is whole, or it is what it was."""
        path = self.path / name
        new = path.with_name(f".{path.name}.new")
        new.unlink(missing_ok=True)
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as target:
            target.write(data)
            target.flush()
            os.fsync(target.fileno())
        new.replace(path)
        return data
