"""Batches as producers write them."""

from managed_ledger.messages_pb2 import SingleMessageMetadata


def plain_batch(count: int, payload: bytes = b"") -> bytes:
    """*count* messages of nothing but *payload*, before compression: 6 bytes each and the payload."""
    single = SingleMessageMetadata(payload_size=len(payload)).SerializeToString()
    return (len(single).to_bytes(4, "big") + single + payload) * count
