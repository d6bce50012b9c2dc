"""What the broker puts before entries: the index counts messages, without gap or repetition."""

from broker.topic.publishing.entry_metadata import EntryMetadata
from magnetar_core.runtime.types import Buffer
from managed_ledger.messages import broker_metadata_of, split_entry
from managed_ledger.messages_pb2 import BrokerEntryMetadata

ENTRY = bytes.fromhex("0e01 00000000 00000002 0801 61")


def read(data: Buffer) -> BrokerEntryMetadata:
    found = broker_metadata_of(split_entry(data))
    assert found is not None
    return found


def indexing(index: int = -1, *, stamps: bool = False) -> EntryMetadata:
    return EntryMetadata(stamps=stamps, indexes=True, index=index)


def test_the_index_of_an_entry_is_that_of_its_last_message() -> None:
    metadata = indexing()
    assert [read(metadata.with_metadata(ENTRY, count)).index for count in (1, 3, 1)] == [0, 3, 4]


def test_the_index_goes_on_behind_what_is_stored() -> None:
    assert read(indexing(41).with_metadata(ENTRY, 2)).index == 43


def test_the_form_is_the_one_of_pulsar() -> None:
    metadata = EntryMetadata(stamps=True, indexes=True, index=6)
    metadata.begin_run(1_000)
    assert metadata.with_metadata(ENTRY, 1) == bytes.fromhex("0e02 00000005 08e807 1007") + ENTRY


def test_either_of_both_may_be_missing() -> None:
    stamped = EntryMetadata(stamps=True, indexes=False, index=-1)
    stamped.begin_run(5)
    assert read(stamped.with_metadata(ENTRY, 1)) == BrokerEntryMetadata(broker_timestamp=5)
    indexed = indexing()
    indexed.begin_run(5)
    assert read(indexed.with_metadata(ENTRY, 1)) == BrokerEntryMetadata(index=0)


def test_an_entry_without_messages_is_not_numbered() -> None:
    metadata = indexing()
    assert metadata.with_metadata(ENTRY, 0) is ENTRY
    assert read(metadata.with_metadata(ENTRY, 1)).index == 0
    metadata.on_stored([0, 1])
    assert metadata.stored_index == 0


def test_what_is_stored_counts_and_what_is_pending_does_not() -> None:
    metadata = indexing()
    for count in (2, 5):
        metadata.with_metadata(ENTRY, count)
    metadata.on_stored([2])
    assert metadata.stored_index == 1
    metadata.on_stored([5])
    assert metadata.stored_index == 6


def test_what_was_refused_leaves_no_gap() -> None:
    metadata = indexing()
    metadata.with_metadata(ENTRY, 1)
    metadata.on_stored([1])
    metadata.with_metadata(ENTRY, 4)
    metadata.go_back()
    assert read(metadata.with_metadata(ENTRY, 1)).index == 1
