"""What speaks at a port where the topic API was looked for: asked once, when a first call there has failed.

The port is sent the beginning of a call, then, if it hangs up, that of TLS, then a greeting of the Pulsar protocol.

    answer to the beginning of HTTP/2       it is
    a frame of settings                     gRPC
    `HTTP/1.1 …`                            HTTP
    an alert of TLS, or a handshake         TLS
    an answer to CONNECT                    Pulsar's binary protocol
    nothing                                 not known: a server that is held up says nothing, too
"""

import asyncio
import contextlib
import ssl
from enum import Enum
from typing import Final, NamedTuple

# One question and its answer. A server that says nothing is asked one question only.
ANSWER_S: Final = 0.3

# The connection, before any question: also of a machine that is busy.
CONNECT_S: Final = 0.3

_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes.fromhex("000000040000000000")
# CommandConnect with client_version "?", which is all that it must have.
_CONNECT: Final = bytes.fromhex("0000000b 00000007 0802 1203 0a013f")
_SETTINGS: Final = 4
_ALERT: Final = b"\x15\x03"


_NOT_GRPC: Final = "behind its TLS is no gRPC"


class Speaks(Enum):
    """What was heard at a port."""

    GRPC = "gRPC"
    TLS = "TLS"
    HTTP = "HTTP"
    PULSAR = "the binary protocol"
    REFUSES = "nothing listens"
    UNKNOWN = "something else"
    SILENT = "not known"


class Heard(NamedTuple):
    """What speaks at a port, and the words with which it does not."""

    kind: Speaks
    detail: str = ""


def split_address(address: str) -> tuple[str, int]:
    """(host, port) of host:port."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


async def listen(address: str, trust: ssl.SSLContext | None = None) -> Heard:
    """What speaks at *address*. *trust*: certificates are checked with it, and TLS is what is wanted."""
    host, port = split_address(address)
    if trust is not None:
        heard = await _by_tls(host, port, trust)
        if heard.kind is not Speaks.UNKNOWN:
            return heard
    heard = _of_preface(await _answer(host, port, _PREFACE))
    if heard.kind is not Speaks.UNKNOWN or heard.detail:
        return heard
    if trust is None:
        blind = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        blind.check_hostname, blind.verify_mode = False, ssl.CERT_NONE
        by_tls = await _by_tls(host, port, blind)
        if by_tls.kind is Speaks.TLS:
            return by_tls
    answer = await _answer(host, port, _CONNECT)
    # Size of the frame, size of the command, then its type: CONNECTED (3) or ERROR (14).
    if isinstance(answer, bytes) and answer[8:10] in (b"\x08\x03", b"\x08\x0e"):
        return Heard(Speaks.PULSAR)
    return heard


def _of_preface(answer: bytes | Heard) -> Heard:
    """What the *answer* to the beginning of a call means; UNKNOWN without detail if the port hung up."""
    if isinstance(answer, Heard):
        return answer
    if answer[:5] == b"HTTP/":
        return Heard(Speaks.HTTP)
    if answer[:2] == _ALERT:
        return Heard(Speaks.TLS)
    if len(answer) >= 9 and answer[3] == _SETTINGS:
        return Heard(Speaks.GRPC)
    if answer[8:10] in (b"\x08\x03", b"\x08\x0e"):
        return Heard(Speaks.PULSAR)
    return Heard(Speaks.UNKNOWN, f"it answers {answer[:20]!r}" if answer else "")


async def _answer(host: str, port: int, question: bytes) -> bytes | Heard:
    """The first bytes that come back; none: the port hung up."""
    try:
        async with asyncio.timeout(CONNECT_S):
            reader, writer = await asyncio.open_connection(host, port)
    except TimeoutError:
        return Heard(Speaks.REFUSES, "nobody takes the connection")
    except (OSError, UnicodeError) as error:
        return Heard(Speaks.REFUSES, _error_text(error))
    try:
        async with asyncio.timeout(ANSWER_S):
            writer.write(question)
            return await reader.read(64)
    except TimeoutError:
        return Heard(Speaks.SILENT)
    except OSError:
        return b""
    finally:
        writer.transport.abort()


async def _by_tls(host: str, port: int, context: ssl.SSLContext) -> Heard:
    context.set_alpn_protocols(["h2"])
    try:
        async with asyncio.timeout(ANSWER_S):
            reader, writer = await asyncio.open_connection(host, port, ssl=context)
    except TimeoutError:
        return Heard(Speaks.SILENT)
    except ssl.SSLCertVerificationError as error:
        return Heard(Speaks.TLS, f"its certificate is not trusted: {error.verify_message}")
    except ssl.SSLError:
        return Heard(Speaks.UNKNOWN)
    except ConnectionRefusedError as error:
        return Heard(Speaks.REFUSES, _error_text(error))
    except OSError:
        return Heard(Speaks.UNKNOWN)
    try:
        async with asyncio.timeout(ANSWER_S):
            writer.write(_PREFACE)
            answer = await reader.read(64)
    except ssl.SSLError as error:
        return Heard(Speaks.TLS, f"it refuses the client's certificate: {error.reason}")
    except (OSError, TimeoutError):
        return Heard(Speaks.TLS)
    finally:
        with contextlib.suppress(OSError):
            writer.transport.abort()
    heard = _of_preface(answer)
    if heard.kind is Speaks.GRPC:
        return Heard(Speaks.TLS)
    if heard.kind is Speaks.HTTP:
        return heard
    return Heard(Speaks.TLS, _NOT_GRPC)


def _error_text(error: Exception) -> str:
    if isinstance(error, ConnectionRefusedError):
        return "the connection is refused"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error)


_OURS: Final = (
    "the topic API is at the gRPC port of a broker: 6648 of a standalone, 6750 and on of a cluster, else what "
    "grpcServicePort says"
)
_TLS: Final = "grpcServicePortTls"


def problem(heard: Heard, address: str, *, uses_tls: bool) -> str:
    """Why no call can succeed at *address*, and what to do; empty if one may."""
    kind, detail = heard
    if kind is Speaks.HTTP:
        return f"{address} speaks HTTP (a page, the admin API); {_OURS}"
    if kind is Speaks.PULSAR:
        return f"{address} speaks Pulsar's binary protocol, for the clients of Pulsar (pulsar.Client); {_OURS}"
    if kind is Speaks.UNKNOWN:
        return f"{address} does not speak gRPC{f' ({detail})' if detail else ''}; {_OURS}"
    if kind is Speaks.TLS and not uses_tls:
        return (
            f"{address} speaks TLS, and this client does not: give it tls=True or tls_trust_certs_file. If that does "
            f"not help, {_OURS} (with TLS {_TLS})"
        )
    if kind is Speaks.TLS and detail == _NOT_GRPC:
        return f"{address} speaks TLS, and no gRPC (pulsar+ssl, for the clients of Pulsar?); {_OURS} (with TLS {_TLS})"
    if kind is Speaks.TLS and detail:
        return f"{address}: {detail}; see tls_trust_certs_file, tls_certificate_file and tls_key_file"
    if kind is Speaks.GRPC and uses_tls:
        return (
            f"{address} speaks gRPC without TLS, and this client uses TLS: leave tls=True and the files tls_… out, or "
            f"give it the port {_TLS}"
        )
    return ""
