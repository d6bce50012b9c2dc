"""The credentials that a client of the topic API shows to brokers, and the certificates that it trusts."""

import asyncio
import ssl
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

from magnetar.client.base.arguments import check_flag, check_text, wrong
from magnetar.client.base.rpc import grpc, watch
from magnetar.client.errors import TopicError

Token = str | Callable[[], str]
"""A token, or a function that returns the present one: it is called for each call that begins."""


@runtime_checkable
class WithChannels(Protocol):
    """An event loop whose connections are its own, as in a simulation."""

    def grpc_channel(self, address: str) -> Any:
        """As `grpc.aio.insecure_channel`."""
        ...


class Access(NamedTuple):
    """Credentials and certificates. Any of the files, or *tls*, means that TLS is used."""

    token: Token | None = None
    tls: bool = False
    tls_trust_certs_file: str | None = None
    """Certificates of the authorities that sign the brokers' certificates, PEM; None: those that gRPC brings."""
    tls_certificate_file: str | None = None
    tls_key_file: str | None = None
    trusted_hosts: tuple[str, ...] = ()
    """Hosts that get the token although no broker of the cluster lists them."""

    @property
    def uses_tls(self) -> bool:
        return self.tls or bool(self.tls_trust_certs_file or self.tls_certificate_file)

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """The metadata of each call."""
        if self.token is None:
            return ()
        text = checked_token(self.token if isinstance(self.token, str) else self.token())
        return (("authorization", f"Bearer {text}"),)

    def channel(self, address: str, options: Any) -> Any:
        """A channel to the broker at *address*. Raises TopicError."""
        loop = asyncio.get_running_loop()
        if isinstance(loop, WithChannels):
            return loop.grpc_channel(address)
        if not self.uses_tls:
            return watch(grpc.aio.insecure_channel(address, options=options))
        try:
            credentials = grpc.ssl_channel_credentials(
                _read(self.tls_trust_certs_file), _read(self.tls_key_file), _read(self.tls_certificate_file)
            )
        except OSError as error:
            raise TopicError(f"{address} cannot be reached over TLS: {error}") from None
        return watch(grpc.aio.secure_channel(address, credentials, options=options))

    def context(self) -> ssl.SSLContext | None:
        """For a connection that only looks why gRPC did not reach an address; None: without TLS. Raises OSError."""
        if not self.uses_tls:
            return None
        context = ssl.create_default_context(cafile=self.tls_trust_certs_file)
        # Python sets this flag since 3.13; gRPC accepts authorities that it forbids.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        if self.tls_trust_certs_file is None:  # gRPC uses its own list of authorities, which is not known here
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        if self.tls_certificate_file is not None:
            context.load_cert_chain(self.tls_certificate_file, self.tls_key_file)
        return context

    def check(self) -> "Access":
        """A copy with the token checked. Raises TypeError, ValueError naming the argument that cannot be used."""
        token = self.token
        if isinstance(token, str):
            token = checked_token(token)
        elif token is not None and not callable(token):
            raise wrong("token", token, "str, or a function that returns it")
        check_flag("tls", self.tls)
        for name in ("tls_trust_certs_file", "tls_certificate_file", "tls_key_file"):
            _check_file(name, getattr(self, name))
        if bool(self.tls_certificate_file) != bool(self.tls_key_file):
            raise ValueError("tls_certificate_file and tls_key_file need each other")
        for host in self.trusted_hosts:
            check_text("a host of trusted_hosts", host)
        try:
            self._replace(tls_certificate_file=None).context()
        except OSError as error:
            raise ValueError(f"tls_trust_certs_file cannot be used: {error}") from None
        try:
            self.context()
        except OSError as error:
            raise ValueError(f"tls_certificate_file and tls_key_file cannot be used: {error}") from None
        return self._replace(token=token)


def checked_token(token: object) -> str:
    """*token* as it goes into the metadata of a call: without the end of its line. Raises TypeError, ValueError."""
    if not isinstance(token, str):
        raise wrong("token", token, "str, or a function that returns it")
    text = token.strip()
    if not text:
        raise ValueError("token is empty; leave it out if the brokers ask for none")
    if not (text.isascii() and text.isprintable()):  # it is not shown: it is a secret
        raise ValueError("token has a character that no token has, such as the end of a line in its middle")
    return text


def hosts(name: str, value: object) -> tuple[str, ...]:
    """Several texts. Raises TypeError."""
    if isinstance(value, str | bytes) or not isinstance(value, Sequence):
        raise wrong(name, value, "a list of str")
    return tuple(value)


def _check_file(name: str, path: object) -> None:
    if path is None:
        return
    if not isinstance(path, str | Path):
        raise wrong(name, path, "the path of a file")
    try:
        Path(path).read_bytes()
    except OSError as error:
        raise ValueError(f"{name}: {error}") from None


def _read(path: str | None) -> bytes | None:
    return None if path is None else Path(path).read_bytes()
