"""The values of the messages of one consumer, and the schemas by which they were written.

Rules:

1. A schema is looked up when the first message that names it arrives, before the program sees that message: reading a
   value waits for nothing. It is kept, so it is looked up once; VERSIONS_MAX are, those that came last.
2. A schema that cannot be had is no error of the consumer: the values that need it raise ValueError. It is looked up
   again when the next messages name it.
"""

import asyncio
from collections.abc import Iterable
from typing import Any, Final

from magnetar.client.base.rpc import log
from magnetar.client.brokers import Brokers
from magnetar.client.codecs import avro
from magnetar.client.codecs.codec import Codec
from magnetar.client.codecs.declared import type_name
from magnetar.client.errors import TopicError
from magnetar_core.topics import topics_pb2 as api

# Schemas that a consumer keeps: far more than a topic has versions that are in use.
VERSIONS_MAX: Final = 1_000

_AVRO: Final = "avro"


class Decoder:
    """Reads the values of the messages of one consumer."""

    def __init__(self, codec: Codec[Any], brokers: Brokers) -> None:
        self.codec: Final = codec
        self.needs_versions: Final = codec.reader is not None
        self._brokers = brokers
        self._kept: dict[tuple[str, bytes], tuple[api.Schema, avro.Parsed] | str] = {}
        """(topic, version) → the schema, or why it is not there."""
        self._lock = asyncio.Lock()

    def value(self, topic: str, payload: bytes, version: bytes) -> Any:
        """The value of a message of *topic*. Raises ValueError."""
        kept = self._writer(topic, version)
        if isinstance(kept, str):
            raise ValueError(kept)
        return self.codec.read(payload, None if kept is None else kept[1])

    def _writer(self, topic: str, version: bytes) -> tuple[api.Schema, avro.Parsed] | str | None:
        """The schema by which a message was written, or why it is not there; None: the reader's will do."""
        if not (self.needs_versions and version):
            return None
        kept = self._kept.get((topic, version), "is not kept any more: read values sooner")
        if isinstance(kept, str):
            return f"the schema of version {shown(version)}, by which it was written, {kept}"
        return kept

    def pickled(self, topic: str, version: bytes) -> tuple[bytes, str]:
        """What `codec.Unpickled` needs: the definition, or why it is not there."""
        kept = self._writer(topic, version)
        if kept is None:
            return b"", ""
        return (b"", kept) if isinstance(kept, str) else (kept[0].data, "")

    def schema(self, topic: str, version: bytes) -> api.Schema | None:
        """The schema by which a message was written, as it goes with a copy of it. Raises TopicError: with another one
        the copy would be read as something else."""
        kept = self._writer(topic, version)
        if isinstance(kept, str):
            raise TopicError(f"{topic}: {kept}")
        if kept is not None:
            return kept[0]
        return None if self.codec.schema is None else self.codec.schema.to_api()

    async def learn(self, topic: str, versions: Iterable[bytes]) -> None:
        """Look up the schemas of *topic* that are not known (rule 1)."""
        for version in dict.fromkeys(versions):
            if not version:
                continue
            kept = self._kept.get((topic, version), "")
            if isinstance(kept, str):
                async with self._lock:  # partitions share their schemas
                    kept = self._kept.get((topic, version), "")
                    if isinstance(kept, str):
                        kept = await self._look_up(topic, version)
            self._kept.pop((topic, version), None)  # the last ones that were used stay
            self._kept[topic, version] = kept
            if len(self._kept) > VERSIONS_MAX:
                del self._kept[next(iter(self._kept))]

    async def _look_up(self, topic: str, version: bytes) -> tuple[api.Schema, avro.Parsed] | str:
        try:
            request = api.GetSchemaRequest(topic=topic, version=version)
            schema = (await self._brokers.ask_any("GetSchema", request, api.GetSchemaResponse)).schema
            if type_name(schema.type) != _AVRO:
                return f"is of the type {type_name(schema.type)}"
            return schema, self.codec.writer(schema.data)
        except (TopicError, ValueError) as error:
            log.warning("%s: the schema of version %s cannot be had: %s", topic, shown(version), error)
            return f"cannot be had: {error}"


def shown(version: bytes) -> str:
    """A version as the admin API shows it: a number."""
    return str(int.from_bytes(version[:8], "big", signed=True))
