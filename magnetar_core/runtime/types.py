"""What every room may name: buffers, size units, and the one class for damaged data."""

from collections.abc import Sequence
from typing import Final, Protocol, TypeAlias, TypeVar

Buffer: TypeAlias = bytes | bytearray | memoryview
"""Bytes that nobody changes after they were handed over (I54)."""

Buffers: TypeAlias = Sequence[Buffer]
"""Pieces of one byte string that are written one behind the other."""

KIB: Final = 1024
MIB: Final = 1024 * KIB
GIB: Final = 1024 * MIB


class Cancellable(Protocol):
    """What was asked for at a later time."""

    def cancel(self) -> None:
        """Do not do it. Nothing happens if it is done already."""


class MagnetarError(Exception):
    """Root of every error that this package raises on purpose."""


E = TypeVar("E", bound=MagnetarError)


def bare(error: E) -> E:
    """A copy of *error* without the frames that it came through: they hold all that was worked on there.

    For errors that are kept, or raised more than once: whoever keeps the error itself keeps what its frames hold, which
    is mostly he himself, and only the collector of cycles would ever find it.
    """
    made = type(error).__new__(type(error), *error.args)
    made.__dict__.update(error.__dict__)
    return made


class Corruption(MagnetarError):
    """Stored or received bytes are not what their format promises.

    Whoever raises it names the place (file and offset, or ledger and entry), what was expected and
    what was found.
    """


class ConfigurationError(MagnetarError):
    """A setting or option is unknown or not possible; the text lists all problems at once."""


def do_nothing() -> None:
    """Stands for a callback once nothing is to be called any more."""
