"""The credentials that a client of the topic API shows to brokers, and the certificates that it trusts."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import grpc

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
    """Certificates that brokers may have behind theirs, PEM; None: those that gRPC brings."""
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
        text = self.token if isinstance(self.token, str) else self.token()
        return (("authorization", f"Bearer {text}"),)

    def channel(self, address: str, options: Any) -> Any:
        """A channel to the broker at *address*. Raises OSError, ValueError."""
        loop = asyncio.get_running_loop()
        if isinstance(loop, WithChannels):
            return loop.grpc_channel(address)
        if not self.uses_tls:
            return grpc.aio.insecure_channel(address, options=options)
        if bool(self.tls_certificate_file) != bool(self.tls_key_file):
            raise ValueError("tls_certificate_file and tls_key_file need each other")
        credentials = grpc.ssl_channel_credentials(
            _read(self.tls_trust_certs_file), _read(self.tls_key_file), _read(self.tls_certificate_file)
        )
        return grpc.aio.secure_channel(address, credentials, options=options)


def _read(path: str | None) -> bytes | None:
    return None if path is None else Path(path).read_bytes()
