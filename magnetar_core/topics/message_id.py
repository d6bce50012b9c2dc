"""A message's place in a topic: printable, parseable, comparable; the same place as in Pulsar's own clients. No IO."""

import re
from dataclasses import dataclass, field
from typing import Final

_LATEST: Final = 2**63 - 1

# Of 64 bits each, so that nothing longer is taken apart.
_PRINTED: Final = re.compile(r"-?\d{1,19}(:-?\d{1,19}){1,4}|\((-?\d{1,19}, ?){3}-?\d{1,19}\)", re.ASCII)


@dataclass(frozen=True, slots=True, order=True)
class MessageId:
    """Ordered by ledger, entry, partition, batch index.

    *partition* is -1 for a topic without partitions, *batch_index* -1 where the entry holds one message only.
    *batch_size* (messages of the entry) is not compared; acks need it.

    >>> MessageId.parse("12:7:-1:3:10")
    MessageId(ledger_id=12, entry_id=7, partition=-1, batch_index=3, batch_size=10)
    """

    ledger_id: int
    entry_id: int
    partition: int = -1
    batch_index: int = -1
    batch_size: int = field(default=0, compare=False)

    def __str__(self) -> str:
        """ledger:entry:partition, and :batch index[:batch size] for a message of a batch."""
        text = f"{self.ledger_id}:{self.entry_id}:{self.partition}"
        if self.batch_index >= 0:
            text += f":{self.batch_index}"
            if self.batch_size:
                text += f":{self.batch_size}"
        return text

    @staticmethod
    def parse(text: str) -> "MessageId":
        """The id that `str` wrote; also ledger:entry alone, and what Pulsar's clients print: Java's
        ledger:entry:partition[:batch index], Python's (ledger,entry,partition,batch index). Raises TypeError,
        ValueError."""
        if not isinstance(text, str):
            raise TypeError(f"a message id is {type(text).__name__}; `parse` takes the str that `str(id)` gave")
        if not _PRINTED.fullmatch(text):
            raise ValueError(
                f"{text!r} is not a message id; expected ledger:entry:partition[:batch index[:batch size]]"
            )
        message_id = MessageId(*map(int, text.strip("()").replace(",", ":").split(":")))
        ends = ((-1, -1), (_LATEST, _LATEST))
        if (message_id.ledger_id, message_id.entry_id) not in ends and (
            message_id.ledger_id < 0 or message_id.entry_id < -1
        ):
            raise ValueError(f"{text!r} is not a message id: ledgers and entries are not negative")
        return message_id

    def to_bytes(self) -> bytes:
        """As `MessageId.serialize` of Pulsar's clients."""
        from magnetar_core.topics.message_ids_pb2 import SerializedMessageId

        message_id = SerializedMessageId(ledger_id=self.ledger_id % 2**64, entry_id=self.entry_id % 2**64)
        if self.partition >= 0:
            message_id.partition = self.partition
        if self.batch_index >= 0:
            message_id.batch_index, message_id.batch_size = self.batch_index, self.batch_size
        return message_id.SerializeToString()

    @staticmethod
    def from_bytes(data: bytes) -> "MessageId":
        """What `to_bytes`, or a client of Pulsar, wrote. Raises TypeError, ValueError."""
        from google.protobuf.message import DecodeError

        from magnetar_core.topics.message_ids_pb2 import SerializedMessageId

        takes = "`from_bytes` takes what `to_bytes` gave, or `serialize` of a Pulsar client"
        if not isinstance(data, bytes):
            raise TypeError(f"a message id is {type(data).__name__}; {takes}")
        try:
            parsed = SerializedMessageId.FromString(data)
        except DecodeError:
            parsed = SerializedMessageId()
        if not parsed.IsInitialized():
            raise ValueError(f"{data[:40]!r} is not a message id; {takes}")
        return MessageId(
            _signed(parsed.ledger_id), _signed(parsed.entry_id), parsed.partition, parsed.batch_index, parsed.batch_size
        )


EARLIEST: Final = MessageId(-1, -1)
LATEST: Final = MessageId(_LATEST, _LATEST)


def _signed(value: int) -> int:
    return value - 2**64 if value >= 2**63 else value
