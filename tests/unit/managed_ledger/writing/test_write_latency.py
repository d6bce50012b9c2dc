"""How long ledgers take: runs are sent at one time, and confirmed in other pieces."""

from managed_ledger.writing.write_latency import WriteLatency


def test_each_entry_counts_from_when_its_run_was_sent() -> None:
    latency = WriteLatency()
    latency.sent(3, 10.0)
    latency.sent(2, 10.1)
    latency.stored(4, 10.25)
    counted = latency.latencies.so_far
    assert (counted.total, counted.sum) == (4, 3 * 250_000 + 150_000)
    latency.stored(1, 10.5)
    assert latency.latencies.so_far.sum == counted.sum + 400_000


def test_what_was_under_way_to_a_ledger_that_failed_is_not_counted() -> None:
    latency = WriteLatency()
    latency.sent(3, 10.0)
    latency.forget()
    latency.sent(1, 20.0)
    latency.stored(1, 20.5)
    assert latency.latencies.so_far.sum == 500_000


def test_a_clock_that_went_back_counts_as_no_time() -> None:
    latency = WriteLatency()
    latency.sent(1, 10.0)
    latency.stored(1, 9.0)
    assert (latency.latencies.so_far.total, latency.latencies.so_far.sum) == (1, 0)
