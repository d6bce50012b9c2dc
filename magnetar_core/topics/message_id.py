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
        ledger:entry:partition[:batch index], Python's (ledger,entry,partition,batch index). Raises ValueError."""
        if not _PRINTED.fullmatch(text):
            raise ValueError(
                f"{text!r} is not a message id; expected ledger:entry:partition[:batch index[:batch size]]"
            )
        made = MessageId(*map(int, text.strip("()").replace(",", ":").split(":")))
        ends = ((-1, -1), (_LATEST, _LATEST))
        if (made.ledger_id, made.entry_id) not in ends and (made.ledger_id < 0 or made.entry_id < -1):
            raise ValueError(f"{text!r} is not a message id: ledgers and entries are not negative")
        return made

    def to_bytes(self) -> bytes:
        """As `MessageId.serialize` of Pulsar's clients."""
        from magnetar_core.topics.message_ids_pb2 import SerializedMessageId

        made = SerializedMessageId(ledger_id=self.ledger_id % 2**64, entry_id=self.entry_id % 2**64)
        if self.partition >= 0:
            made.partition = self.partition
        if self.batch_index >= 0:
            made.batch_index, made.batch_size = self.batch_index, self.batch_size
        return made.SerializeToString()

    @staticmethod
    def from_bytes(data: bytes) -> "MessageId":
        """What `to_bytes`, or a client of Pulsar, wrote. Raises ValueError."""
        from google.protobuf.message import DecodeError

        from magnetar_core.topics.message_ids_pb2 import SerializedMessageId

        try:
            parsed = SerializedMessageId.FromString(data)
        except DecodeError as error:
            raise ValueError(f"{data[:40]!r} is not a message id: {error}") from None
        return MessageId(
            _signed(parsed.ledger_id), _signed(parsed.entry_id), parsed.partition, parsed.batch_index, parsed.batch_size
        )


EARLIEST: Final = MessageId(-1, -1)
LATEST: Final = MessageId(_LATEST, _LATEST)


def _signed(value: int) -> int:
    return value - 2**64 if value >= 2**63 else value
