"""Types that every package uses: buffers, size units, the base of all errors and the class for damaged data. No IO."""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Final, Protocol, TypeAlias, TypeVar, cast

Buffer: TypeAlias = bytes | bytearray | memoryview
"""Bytes that are not changed after they were handed over (I54)."""

Buffers: TypeAlias = Sequence[Buffer]
"""Pieces of one byte string that are written one after the other."""

Allocate: TypeAlias = Callable[[int], bytearray | memoryview]
"""Makes room for so many bytes, which nobody else writes to."""

KIB: Final = 1024
MIB: Final = 1024 * KIB
GIB: Final = 1024 * MIB


class Cancellable(Protocol):
    """A call that was scheduled for later."""

    def cancel(self) -> None:
        """Do not make the call. No effect if it was made already."""


class MagnetarError(Exception):
    """Root of every error that this package raises on purpose."""


T = TypeVar("T")
E = TypeVar("E", bound=MagnetarError)


def bare(error: E) -> E:
    """A copy of *error* without its traceback, whose frames hold all their local variables.

    For errors that are kept, or raised more than once. An object that keeps the error itself keeps those frames, and
    they mostly hold the object: a reference cycle that only the garbage collector would free.
    """
    copy = type(error).__new__(type(error), *error.args)
    copy.__dict__.update(error.__dict__)
    return copy


START_NEWER: Final = "start the newer release that wrote it"
"""What the operator can do where a format has a version above those that are known: the end of the error's text."""


class Corruption(MagnetarError):
    """Stored or received bytes violate their format.

    The text names the place (file and offset, or ledger and entry), what was expected and what was found.
    """


class ConfigurationError(MagnetarError):
    """A setting or option is unknown or not possible; the text lists all problems at once."""


# The settings of a topic are the same for nearly all topics of a namespace, so few are in use at the same time.
_SHARED_MAX: Final = 1024

_shared = lru_cache(maxsize=_SHARED_MAX, typed=True)(lambda value: value)


def shared(value: T) -> T:
    """An object that is equal to *value*, a value that nobody changes: the same one for all callers.

    Ten thousand topics that each keep the same settings then keep one copy of them.
    """
    return cast(T, _shared(value))


def do_nothing() -> None:
    """Replaces a callback that must not be called any more."""
