"""The layout of the metadata tree in RocksDB, shared by the process that owns it and those that only read it.

    key                       value
    <depth> <path>            version (8) owner (1) created (8) modified (8) value…    a node; depth is one byte
    0xfc "format"             1
    0xfc "identity"           8 bytes at random
    0xfd <path>               number (8)     the next sequential child of the node
    0xfe <path>               (empty)        the node is ephemeral

Because keys begin with the depth, the children of a node are adjacent, with no other keys between them.
"""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from rocksdict import BlockBasedOptions, Cache, DBCompressionType, Options, Rdict, ReadOptions

from magnetar_core.bookkeeper.metadata.stores.store import MetadataError
from magnetar_core.bookkeeper.metadata.stores.tree import DEPTH_MAX, PERSISTENT, Record
from magnetar_core.runtime.types import MIB, Corruption

_HEAD: Final = struct.Struct(">QBQQ")
NUMBER: Final = struct.Struct(">Q")
FORMAT_KEY: Final = b"\xfcformat"
FORMAT: Final = b"1"
IDENTITY_KEY: Final = b"\xfcidentity"
SEQUENCE: Final = b"\xfd"
EPHEMERAL: Final = b"\xfe"

assert DEPTH_MAX < 0xFC

# RocksDB replays its log when it is opened: at 4 MiB that takes a few milliseconds. A change has some hundred bytes.
_WRITE_BUFFER_BYTES: Final = 4 * MIB
_BLOCK_CACHE_BYTES: Final = 8 * MIB


class StoreInUse(MetadataError):
    """Another process owns the directory."""


class RocksTree:
    """Reads the tree as the database holds it, without changes that wait for their sync."""

    def __init__(self, database: Rdict) -> None:
        self.database = database

    def stored(self, path: str) -> Record | None:
        if path == "/":
            return Record(b"", 0, PERSISTENT, 0, 0)
        data = self.database.get(key_of(path))
        return None if data is None else decode(path, data)

    def next_number(self, path: str) -> int:
        """The number of the next sequential child."""
        data = self.database.get(SEQUENCE + path.encode())
        return 0 if data is None else int(NUMBER.unpack(data)[0])

    def stored_names(self, path: str) -> Iterator[str]:
        prefix = children_prefix(path)
        skip = len(prefix)
        for key in self._keys(prefix):
            yield key[skip:].decode()

    def keys_below(self, prefix: bytes) -> list[bytes]:
        return list(self._keys(prefix))

    def _keys(self, prefix: bytes) -> Iterator[bytes]:
        # A live iterator would keep the LOCK after close. It ends with this generator, so callers must exhaust the
        # generator or drop it at once.
        options = ReadOptions()
        options.set_iterate_upper_bound(_end_of(prefix))
        iterator = self.database.iter(options)
        iterator.seek(prefix)
        while iterator.valid():
            key: Any = iterator.key()
            yield key
            iterator.next()


def tree_options() -> Options:
    """The options with which both the owner and readers open the database."""
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_write_buffer_size(_WRITE_BUFFER_BYTES)
    options.set_max_total_wal_size(2 * _WRITE_BUFFER_BYTES)
    options.set_compression_type(DBCompressionType.none())
    options.set_keep_log_file_num(2)
    options.set_max_open_files(64)
    blocks = BlockBasedOptions()
    blocks.set_format_version(5)
    blocks.set_block_cache(Cache(_BLOCK_CACHE_BYTES))
    blocks.set_bloom_filter(10, False)
    options.set_block_based_table_factory(blocks)
    return options


def open_error(path: Path, error: Exception) -> MetadataError | Corruption:
    """Our error for a database that cannot be opened. RocksDB distinguishes the cases only in its texts."""
    text = str(error)
    if "lock" in text.lower():
        return StoreInUse(
            f"{path} is in use by another process: stop it, choose another directory, or open this one read-only"
        )
    if text.startswith("Corruption") or "No such file" in text:
        return Corruption(f"{path}: {text}. Files of it are damaged or missing: restore the whole folder from a backup")
    return MetadataError(f"{path} cannot be opened: {text}")


def key_of(path: str) -> bytes:
    """The key of a node."""
    return bytes((path.count("/"),)) + path.encode()


def children_prefix(path: str) -> bytes:
    """The prefix of the keys of all children of a node, and of no others."""
    if path == "/":
        return b"\x01/"
    return bytes((path.count("/") + 1,)) + path.encode() + b"/"


def _end_of(prefix: bytes) -> bytes:
    """The first key after all keys that begin with *prefix*."""
    return prefix[:-1] + bytes((prefix[-1] + 1,))


def encode(record: Record) -> bytes:
    """The value of a node's key."""
    return _HEAD.pack(record.version, record.owner, record.created_ms, record.modified_ms) + record.value


def decode(path: str, data: bytes) -> Record:
    """The node at *path*, from the value of its key. Raises Corruption."""
    if len(data) < _HEAD.size:
        raise Corruption(f"{path}: a stored node of {len(data)} bytes, expected at least {_HEAD.size}")
    version, owner, created_ms, modified_ms = _HEAD.unpack_from(data)
    return Record(data[_HEAD.size :], version, owner, created_ms, modified_ms)
