"""Golden bytes: computed by hand from the definitions, and recorded from Apache's client."""

import pytest

from magnetar_core.bookkeeper.wire.checksum import crc32c
from magnetar_core.bookkeeper.wire.entry import DigestMismatch, DigestType, EntryCodec, master_key

HEADER = bytes.fromhex("0000000000000001 0000000000000000 ffffffffffffffff 0000000000000005")
DIGESTS = {
    DigestType.CRC32: "0000000030a56872",
    DigestType.CRC32C: "e3a5f74d",
    DigestType.HMAC: "0d5356770ae579947e431d12ca88db6dda5bba73",
    DigestType.DUMMY: "",
}


def test_crc32c_gives_the_check_value_of_its_definition() -> None:
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(b"6789", crc32c(b"12345")) == 0xE3069283


def test_master_keys_are_golden() -> None:
    assert master_key(b"").hex() == "850bf1071c5e3d8c24235676f8816ae0cbe2f14f"
    assert master_key(b"foo").hex() == "3a0e704a758fbcf665879e1820fbd20472774f25"


@pytest.mark.parametrize("digest_type", DigestType)
def test_the_head_of_an_entry_is_golden(digest_type: DigestType) -> None:
    codec = EntryCodec(digest_type, b"foo")
    head = codec.head(1, 0, -1, 5, b"hello")
    assert head == HEADER + bytes.fromhex(DIGESTS[digest_type])
    assert codec.head(1, 0, -1, 5, memoryview(b"hello")) == head
    assert codec.digest_bytes == len(head) - 32


@pytest.mark.parametrize("digest_type", DigestType)
def test_an_entry_opens_to_what_was_packed(digest_type: DigestType) -> None:
    codec = EntryCodec(digest_type, b"secret")
    data = codec.head(7, 3, 2, 20, b"payload") + b"payload"
    for buffer in (data, bytearray(data), memoryview(data)):
        for entry_id in (3, None):
            entry = codec.open(buffer, 7, entry_id)
            assert (entry.ledger_id, entry.entry_id, entry.last_add_confirmed, entry.length) == (7, 3, 2, 20)
            assert bytes(entry.payload) == b"payload"


@pytest.mark.parametrize("digest_type", [DigestType.CRC32, DigestType.CRC32C, DigestType.HMAC])
def test_no_byte_of_an_entry_can_change_unnoticed(digest_type: DigestType) -> None:
    codec = EntryCodec(digest_type, b"secret")
    data = codec.head(7, 3, 2, 20, b"payload") + b"payload"
    for at in range(len(data)):
        damaged = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        with pytest.raises(DigestMismatch):
            codec.open(damaged, 7, 3)
    for cut in range(len(data)):
        with pytest.raises(DigestMismatch):
            codec.open(data[:cut], 7, 3)


def test_an_entry_of_another_place_is_refused() -> None:
    codec = EntryCodec(DigestType.DUMMY, b"")
    data = codec.head(7, 3, 2, 20, b"x") + b"x"
    with pytest.raises(DigestMismatch, match="ledger 8 entry 3: found ledger 7 entry 3"):
        codec.open(data, 8, 3)
    with pytest.raises(DigestMismatch, match="found ledger 7 entry 3"):
        codec.open(data, 7, 4)


def test_explicit_lac_blobs_are_golden() -> None:
    blob = EntryCodec(DigestType.CRC32C, b"").explicit_lac(1, 7)
    assert blob == bytes.fromhex("0000000000000001 0000000000000007 62842849")
    other = EntryCodec(DigestType.CRC32, b"").explicit_lac(1, 7)
    assert other == bytes.fromhex("0000000000000001 0000000000000007 0000000065a4cab5")


@pytest.mark.parametrize("digest_type", list(DigestType))
def test_a_check_says_what_opening_says(digest_type: DigestType) -> None:
    codec = EntryCodec(digest_type, b"secret")
    good = codec.head(7, 3, 2, 10, b"payload") + b"payload"
    codec.check(good, 7, 3)
    codec.check(memoryview(good), 7, 3)
    wrong = [(good, 8, 3), (good, 7, 4), (good[:20], 7, 3), (b"", 7, 3)]
    if digest_type is not DigestType.DUMMY:
        wrong += [(bytes([*good[:at], good[at] ^ 1, *good[at + 1 :]]), 7, 3) for at in range(len(good))]
        wrong += [(good[:-1], 7, 3), (good + b"x", 7, 3)]
    for data, ledger_id, entry_id in wrong:
        with pytest.raises(DigestMismatch):
            codec.open(data, ledger_id, entry_id)
        with pytest.raises(DigestMismatch):
            codec.check(data, ledger_id, entry_id)
