"""The record of a topic whose ledgers an Apache broker moved to S3 (tests/vectors/offloaded)."""

from managed_ledger.records.offloaded import is_offloaded, only_offloaded, place_of
from managed_ledger.records.pulsar_records import decode_ledger_info
from tests.support.golden import DECODES, Report, b64, golden, load


@golden("offloaded/*.json", how={DECODES}, compared="which ledgers are offloaded, and the names of their objects")
def test_an_offloaded_ledger_is_named_with_its_object(report: Report) -> None:
    vector = load(report.vector)
    record = decode_ledger_info(b64(vector["data"]), vector["path"])
    objects = set(vector["objects"])
    for info in record.ledgerInfo:
        with report.row(info.ledgerId):
            is_last = info.ledgerId == record.ledgerInfo[-1].ledgerId
            assert is_offloaded(info) is only_offloaded(info) is not is_last
            if not is_last:
                where, _, name = place_of(info).rpartition(", object ")
                assert where == "S3, bucket offload, http://127.0.0.1:25000, us-east-1"
                assert {name, f"{name}-index"} <= objects
                objects -= {name, f"{name}-index"}
    with report.row("objects"):
        assert objects == set()
