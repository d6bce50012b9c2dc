import ipaddress
import struct

import pytest

from broker.binary.admission.proxy_header import (
    EXTENSION_BYTES_MAX,
    LINE_BYTES_MAX,
    ProxyHeader,
    missing_bytes,
    parse_proxy_header,
)
from magnetar_core.bookkeeper.wire.framing import MalformedFrame

LINE = b"PROXY TCP4 203.0.113.7 10.0.0.1 56324 6650\r\n"
LINE_6 = b"PROXY TCP6 2001:db8::1 ::1 1 65535\r\n"
FRAME = b"\0\0\0\x05\0\0\0\x01x"


def binary(source: str, port: int, *, command: int = 0x21, extensions: bytes = b"") -> bytes:
    host = ipaddress.ip_address(source)
    body = host.packed + bytes(len(host.packed)) + struct.pack(">HH", port, 6650) + extensions
    family = 0x11 if host.version == 4 else 0x21
    return b"\r\n\r\n\0\r\nQUIT\n" + struct.pack(">BBH", command, family, len(body)) + body


@pytest.mark.parametrize(
    ("header", "address"),
    [
        (LINE, "203.0.113.7:56324"),
        (LINE_6, "2001:db8::1:1"),
        (b"PROXY UNKNOWN\r\n", None),
        (b"PROXY UNKNOWN ff:ff::1 x 1 2\r\n", None),
        (binary("203.0.113.7", 56324), "203.0.113.7:56324"),
        (binary("2001:db8::1", 1, extensions=b"\x04\0\x01x"), "2001:db8::1:1"),
        (binary("203.0.113.7", 1, command=0x20), None),
    ],
)
def test_a_header_names_the_client_however_it_is_cut(header: bytes, address: str | None) -> None:
    for end in range(1, len(header)):
        assert parse_proxy_header(header[:end]) is None
    assert parse_proxy_header(header) == ProxyHeader(address, len(header))
    assert parse_proxy_header(header + FRAME) == ProxyHeader(address, len(header))


@pytest.mark.parametrize("header", [LINE, LINE_6, binary("2001:db8::1", 1, extensions=b"\x04\0\x01x")])
def test_a_header_is_read_without_taking_what_stands_behind_it(header: bytes) -> None:
    data = b""
    while parse_proxy_header(data) is None:
        data += (header + FRAME)[len(data) :][: missing_bytes(data)]
    assert data == header


def test_a_connection_without_a_header_is_taken_as_it_is() -> None:
    for data in (FRAME, b"\0", b"PROXX", b"\r\n\r\n\0\r\nQUIT!"):
        assert parse_proxy_header(data) == ProxyHeader(None, 0)


@pytest.mark.parametrize(
    "header",
    [
        b"PROXY " + b"x" * LINE_BYTES_MAX,
        b"PROXY TCP4 203.0.113.7 10.0.0.1 56324\r\n",
        b"PROXY TCP4 203.0.113.7 10.0.0.1 56324 99999\r\n",
        b"PROXY TCP4 203.0.113.7 10.0.0.1 -1 1\r\n",
        b"PROXY TCP6 203.0.113.7 10.0.0.1 1 1\r\n",
        b"PROXY TCP4 2001:db8::1 ::1 1 1\r\n",
        b"PROXY UDP4 203.0.113.7 10.0.0.1 1 1\r\n",
        b"PROXY \r\n",
        b"PROXY TCP4 \xff 10.0.0.1 1 1\r\n",
        binary("203.0.113.7", 1, command=0x11),
        binary("203.0.113.7", 1, command=0x2F),
        binary("203.0.113.7", 1)[:14] + b"\0\x04" + b"1234",
        binary("203.0.113.7", 1, extensions=bytes(EXTENSION_BYTES_MAX)),
    ],
)
def test_a_malformed_header_ends_the_connection(header: bytes) -> None:
    with pytest.raises(MalformedFrame):
        parse_proxy_header(header)
