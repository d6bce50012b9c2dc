"""Feeds a decoder in every way that a network may."""

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

V = TypeVar("V")


class Decoder(Protocol):
    def feed(self, data: bytes, /) -> Sequence[object]: ...


def check_stream(
    make: Callable[[], Decoder],
    data: bytes,
    expected: Sequence[V],
    *,
    value: Callable[[object], object] = lambda item: bytes(item) if isinstance(item, memoryview) else item,
) -> None:
    """Assert that a decoder gives *expected* for *data*: whole, byte by byte, cut at every place, and with
    the same again behind it. *value* turns what it gives into something that can be compared."""

    def read(*chunks: bytes) -> list[object]:
        decoder = make()
        return [value(item) for chunk in chunks for item in decoder.feed(chunk)]

    wanted = list(expected)
    assert read(data) == wanted
    assert read(*(data[at : at + 1] for at in range(len(data)))) == wanted
    for cut in range(len(data)):
        assert read(data[:cut], data[cut:]) == wanted, f"cut at {cut}"
        assert read(data + data[:cut], data[cut:]) == wanted * 2, f"with {cut} bytes of the next one"
