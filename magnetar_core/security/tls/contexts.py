"""TLS with Python's ssl: contexts of servers and clients, made from files and made anew when these change.

Rules:

1. New connections use changed files. If the changed files cannot be used, this is reported, and the former ones stay in
   use.
2. An expired certificate is refused at the start, where a person sees the error. One that expires later is reported at
   each check of the files.
3. The key of a key store is on no disk but in the store. OpenSSL reads keys from files, so it is given one in memory
   (or, where the system has none, one in a folder that only this user can enter), with the key encrypted by a password
   that is drawn for this one reading; the file is gone at once.
"""

import logging
import os
import secrets
import ssl
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final, NamedTuple

from magnetar_core.runtime.clock import Clock
from magnetar_core.runtime.types import ConfigurationError
from magnetar_core.security.tls.files import TlsFiles, Validity, validities

if TYPE_CHECKING:
    from magnetar_core.security.tls.key_stores import Own

log = logging.getLogger(__name__)

HANDSHAKE_S: Final = 10.0
"""Limit of one handshake, on both sides. (Apache's clients: startTLSTimeoutSecs.)"""

# Automatic issuers renew certificates earlier than this. A person who renews by hand gets a week's notice.
_EXPIRES_SOON: Final = timedelta(days=7)

_VERSIONS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}


class Certificates:
    """A context of the ssl library, made from files, and made again when they change (rule 1).

    Loading reads small files for about a millisecond, so it is done on the loop; a key store takes some 0.1 s, most
    of it for its password, and only when it has changed. Raises ConfigurationError.
    """

    def __init__(self, files: TlsFiles, make: Callable[[TlsFiles], ssl.SSLContext], clock: Clock) -> None:
        self.files = files
        self._make = make
        self._clock = clock
        self._stamps = self._read_stamps()
        self._context = self._new_context()
        self._checked_s = clock.monotonic()

    @property
    def context(self) -> ssl.SSLContext:
        """The context for the next connection."""
        now_s = self._clock.monotonic()
        if self.files.refresh_s and now_s - self._checked_s >= self.files.refresh_s:
            self._checked_s = now_s
            stamps = self._read_stamps()
            if stamps != self._stamps:
                try:
                    self._context = self._new_context()
                except ConfigurationError as error:
                    log.error("the changed TLS files are not used, the former ones stay: %s", error)
                else:
                    self._stamps = stamps
                    log.info("TLS files were read anew (%s)", self.files.origin)
            elif (problem := self._expired(self._validity)) is not None:
                log.error("new connections will fail: %s", problem)
        return self._context

    @property
    def ends_s(self) -> float:
        """When the certificate ends that is shown to peers, seconds since 1970; infinite if none is shown."""
        return min((end.timestamp() for _, end in self._validity.own[:1]), default=float("inf"))

    def _new_context(self) -> ssl.SSLContext:
        context = self._make(self.files)
        validity = _Validity(*(validities(_text_of(self.files, read)) for read in (certificate_pem, trusted_pem)))
        if (problem := self._expired(validity)) is not None:
            raise ConfigurationError(problem)
        self._validity, now = validity, self._now()
        for begin, end in validity.own[:1]:
            if begin > now:
                log.warning("certificate %s is not valid before %s", self.files.own, _date_text(begin))
            elif end - now < min(_EXPIRES_SOON, (end - begin) / 10):
                log.warning("certificate %s expires on %s", self.files.own, _date_text(end))
        return context

    def _now(self) -> datetime:
        return datetime.fromtimestamp(self._clock.wall_ms() / 1000, UTC)

    def _expired(self, validity: "_Validity") -> str | None:
        """Rule 2: why no peer will accept these certificates, or None."""
        files, now = self.files, self._now()
        for _, end in validity.own[:1]:  # its issuers' certificates follow it
            if end <= now:
                return f"{files.origin}: certificate {files.own} expired on {_date_text(end)}; put a new one there"
        trusted = validity.trusted
        if trusted and all(end <= now for _, end in trusted):
            last = _date_text(max(end for _, end in trusted))
            return (
                f"{files.origin}: all trusted certificates in {files.authorities} have expired, the last on {last}; "
                "put a new one there"
            )
        return None

    def _read_stamps(self) -> list[tuple[int, int] | None]:
        return [_file_stamp(path) for path in self.files.paths]


class _Validity(NamedTuple):
    """How long the certificates of the files in use are valid."""

    own: list[Validity]
    trusted: list[Validity]


def _date_text(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M} UTC"


def _text_of(files: TlsFiles, read: Callable[[TlsFiles], bytes]) -> str:
    """The certificates that *read* finds; none, where that fails: whoever makes the context says so."""
    try:
        return read(files).decode("ascii", errors="replace")
    except (OSError, ConfigurationError):
        return ""


def certificate_pem(files: TlsFiles) -> bytes:
    """The certificate that is shown, and the ones behind it; nothing, if there is none.

    Raises OSError, ConfigurationError.
    """
    if files.key_store:
        return _own_of(files).chain
    return _bytes_of(files.certificate)


def trusted_pem(files: TlsFiles) -> bytes:
    """The trusted certificates; nothing, if there are none. Raises OSError, ConfigurationError."""
    if not files.trust_store:
        return _bytes_of(files.trusted)
    # Here: few have stores, and what reads them is large.
    from magnetar_core.security.tls.key_stores import STORE_BYTES_MAX, trusted_certificates

    _must_be_readable(files.trust_store, "trust store", files)
    try:
        return trusted_certificates(
            _bytes_of(files.trust_store, STORE_BYTES_MAX + 1), files.trust_store_password, files.trust_store
        )
    except ConfigurationError as error:
        raise ConfigurationError(f"{files.origin}: {error}") from None


def key_pem(files: TlsFiles) -> bytes:
    """The key of the certificate, in clear if it comes from a key store. Raises OSError, ConfigurationError."""
    if files.key_store:
        return _own_of(files).key_pem()
    return _bytes_of(files.key)


def _own_of(files: TlsFiles) -> "Own":
    from magnetar_core.security.tls.key_stores import STORE_BYTES_MAX, own_certificate  # as above

    _must_be_readable(files.key_store, "key store", files)
    try:
        return own_certificate(
            _bytes_of(files.key_store, STORE_BYTES_MAX + 1), files.key_store_password, files.key_store
        )
    except ConfigurationError as error:
        raise ConfigurationError(f"{files.origin}: {error}") from None


def _bytes_of(path: str, most: int = -1) -> bytes:
    """What is in the file, *most* bytes of it; -1: all."""
    if not path:
        return b""
    with open(path, "rb") as source:
        return source.read(most)


@contextmanager
def _temporary_file(data: bytes) -> Iterator[str]:
    """A path where *data* can be read by this user alone, as long as the block runs (rule 3)."""
    if not hasattr(os, "memfd_create"):
        with tempfile.TemporaryDirectory() as folder:  # mode 0700
            path = os.path.join(folder, "own.pem")
            with open(path, "wb") as target:
                target.write(data)
            yield path
        return
    number = os.memfd_create("own.pem", os.MFD_CLOEXEC)
    try:
        with open(number, "wb", closefd=False) as target:
            target.write(data)
        yield f"/proc/self/fd/{number}"
    finally:
        os.close(number)


def _file_stamp(path: str) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size


def server_context(files: TlsFiles, *, client_certificates: bool) -> ssl.SSLContext:
    """A bookie's side. With *client_certificates* a client without a trusted one is refused.

    Raises ConfigurationError with path and reason.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.options |= ssl.OP_NO_RENEGOTIATION  # otherwise a client could demand handshakes without end
    limit(context, files)
    load_own(context, files)
    if client_certificates:
        context.verify_mode = ssl.CERT_REQUIRED
        _load_trusted(context, files)
    return context


def client_context(files: TlsFiles) -> ssl.SSLContext:
    """A client's side: the bookie must have a trusted certificate; ours is shown if there is one.

    Raises ConfigurationError with path and reason.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = files.verify_hostname
    limit(context, files)
    _load_trusted(context, files)
    if files.own:
        load_own(context, files)
    return context


def usual_context(authorities: str = "") -> ssl.SSLContext:
    """A client's side with the ssl library's own choices. *authorities*: a PEM file; without it, those of the system.

    From Python 3.13 on the library refuses authorities that do not say what their key is for. Those that
    `openssl req -x509` makes do not, and Pulsar's other clients take them; so does this context.

    Raises OSError, ssl.SSLError.
    """
    context = ssl.create_default_context(cafile=authorities or None)
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context


def limit(context: ssl.SSLContext, files: TlsFiles) -> None:
    """Only the protocols and suites of *files*. Raises ConfigurationError."""
    versions = [_VERSIONS[protocol] for protocol in files.protocols] or list(_VERSIONS.values())
    if files.ciphers:
        # The ssl library has no way to choose the suites of TLS 1.3, so a list of suites excludes that version.
        versions = [version for version in versions if version is ssl.TLSVersion.TLSv1_2]
        if not versions:
            raise ConfigurationError(f"{files.origin}: cipher suites can be chosen for TLSv1.2 only; switch that on")
        try:
            context.set_ciphers(files.ciphers)
        except ssl.SSLError:
            raise ConfigurationError(f"{files.origin}: none of the suites {files.ciphers} is there") from None
    context.minimum_version, context.maximum_version = min(versions), max(versions)


def load_own(context: ssl.SSLContext, files: TlsFiles) -> None:
    """Show the certificate of *files*. Raises ConfigurationError."""
    if files.key_store:
        own, password = _own_of(files), secrets.token_hex(32)
        with _temporary_file(own.chain + own.key_pem(password.encode())) as path:
            try:
                context.load_cert_chain(path, password=password)
            except ssl.SSLError as error:
                raise ConfigurationError(
                    f"{files.origin}: key store {files.key_store} cannot be used: {error.reason or error}"
                ) from None
        return
    for what, path in (("certificate", files.certificate), ("key", files.key)):
        _must_be_readable(path, what, files)
    password = ""
    if files.key_password_file:
        try:
            with open(files.key_password_file, encoding="utf-8") as source:
                password = source.read().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(f"{files.origin}: no password in {files.key_password_file}: {error}") from None
    try:
        # Always with a password: without one, OpenSSL would ask for it on the terminal.
        context.load_cert_chain(files.certificate, files.key, password)
    except ssl.SSLError as error:
        reason = {
            "KEY_VALUES_MISMATCH": "the key does not belong to the certificate",
            "NO_START_LINE": "one of them is not PEM",
        }.get(error.reason or "", f"not PEM, or the password is wrong ({error.reason or error})")
        raise ConfigurationError(
            f"{files.origin}: certificate {files.certificate} with key {files.key} cannot be used: {reason}"
        ) from None


def _load_trusted(context: ssl.SSLContext, files: TlsFiles) -> None:
    if files.trust_store:
        context.load_verify_locations(cadata=trusted_pem(files).decode("ascii"))
        return
    _must_be_readable(files.trusted, "file of trusted certificates", files)
    try:
        context.load_verify_locations(files.trusted)
    except ssl.SSLError as error:
        reason = error.reason or str(error)
        raise ConfigurationError(f"{files.origin}: no PEM certificates in {files.trusted} ({reason})") from None


def _must_be_readable(path: str, what: str, files: TlsFiles) -> None:
    if not path:
        raise ConfigurationError(f"{files.origin}: TLS needs a {what}, and none is set")
    try:
        with open(path, "rb"):
            pass
    except OSError as error:
        raise ConfigurationError(f"{files.origin}: cannot read the {what} {path}: {error.strerror}") from None
