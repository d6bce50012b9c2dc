r"""The header of the PROXY protocol, with which a load balancer names the client that it forwards. No IO.

    version 1    PROXY TCP4 203.0.113.7 10.0.0.1 56324 6650\r\n      (107 bytes at most; UNKNOWN: no address)
    version 2    \r\n\r\n\0\r\nQUIT\n  version and command (1)  family (1)  length (2)  addresses, extensions

A connection that begins with neither is taken as one without a load balancer, as Apache's brokers do.
"""

import ipaddress
import struct
from typing import Final, NamedTuple

from magnetar_core.bookkeeper.wire.framing import MalformedFrame

# The specification's length of a line of version 1.
LINE_BYTES_MAX: Final = 107

# Addresses are 36 bytes at most; the rest are extensions, a client certificate's subject among them.
EXTENSION_BYTES_MAX: Final = 4096

_LINE: Final = b"PROXY "
_SIGNATURE: Final = b"\r\n\r\n\0\r\nQUIT\n"
_HEAD: Final = struct.Struct(">12sBBH")
_INET4: Final = 1
_INET6: Final = 2


class ProxyHeader(NamedTuple):
    """The beginning of a connection, read."""

    address: str | None
    """host:port of the client; None if the load balancer names none, or there is no header."""
    size_bytes: int
    """How much of the data the header takes."""


def parse_proxy_header(data: bytes) -> ProxyHeader | None:
    """The header at the beginning of *data*; None while more bytes are needed. Raises MalformedFrame."""
    if data.startswith(_LINE):
        return _line(data)
    if data.startswith(_SIGNATURE):
        return _binary(data)
    if _LINE.startswith(data) or _SIGNATURE.startswith(data):
        return None
    return ProxyHeader(None, 0)


def missing_bytes(data: bytes) -> int:
    """How many bytes may be read after *data*, the beginning of a header, without taking what stands behind it."""
    if not data.startswith(_SIGNATURE[:1]):
        return 1
    if len(data) < _HEAD.size:
        return _HEAD.size - len(data)
    return max(_HEAD.size + int(_HEAD.unpack_from(data)[3]) - len(data), 1)


def _line(data: bytes) -> ProxyHeader | None:
    """Version 1, a line of text; None: it has not come as a whole yet. Raises MalformedFrame."""
    end = data.find(b"\r\n", 0, LINE_BYTES_MAX)
    if end < 0:
        if len(data) >= LINE_BYTES_MAX:
            raise MalformedFrame("a PROXY line without an end")
        return None
    size_bytes = end + 2
    try:
        words = data[:end].decode("ascii").split(" ")
        if words[1] == "UNKNOWN":
            return ProxyHeader(None, size_bytes)
        family, source, target, source_port, target_port = words[1:]
        version = {"TCP4": 4, "TCP6": 6}[family]
        addresses = [ipaddress.ip_address(text) for text in (source, target)]
        ports = [_port(text) for text in (source_port, target_port)]
        if any(address.version != version for address in addresses):
            raise ValueError("not of the family")
    except (ValueError, LookupError):
        raise MalformedFrame("a PROXY line that cannot be read") from None
    return ProxyHeader(f"{addresses[0]}:{ports[0]}", size_bytes)


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 5 and int(text) <= 65_535):
        raise ValueError("not a port")
    return int(text)


def _binary(data: bytes) -> ProxyHeader | None:
    """Version 2, a binary header; None: it has not come as a whole yet. Raises MalformedFrame."""
    if len(data) < _HEAD.size:
        return None
    _, command, family, length = _HEAD.unpack_from(data)
    if command >> 4 != 2 or command & 0xF > 1:
        raise MalformedFrame(f"a PROXY header of version and command {command:#x}")
    if length > EXTENSION_BYTES_MAX:
        raise MalformedFrame(f"a PROXY header of {length} bytes")
    size_bytes = _HEAD.size + length
    if len(data) < size_bytes:
        return None
    address_bytes = {_INET4: 4, _INET6: 16}.get(family >> 4)
    if command & 0xF == 0 or address_bytes is None:  # LOCAL: the load balancer's own check; or a local socket
        return ProxyHeader(None, size_bytes)
    if length < 2 * address_bytes + 4:
        raise MalformedFrame("a PROXY header that is too short for its addresses")
    host = ipaddress.ip_address(data[_HEAD.size : _HEAD.size + address_bytes])
    (port,) = struct.unpack_from(">H", data, _HEAD.size + 2 * address_bytes)
    return ProxyHeader(f"{host}:{port}", size_bytes)
