"""Slow adds: the bookies that they waited for."""

import asyncio

import pytest

from magnetar_core.bookkeeper.client.config import ClientConfig
from magnetar_core.bookkeeper.client.deciding.add_stages import AddWatch
from magnetar_core.bookkeeper.wire.codec_v2 import add_response
from tests.support.fake_bookies import fake_cluster


def test_an_add_that_was_quick_is_nobodys_business() -> None:
    watch = AddWatch(3, False, 1.0)
    watch.appended(9, 0.0)
    watch.answered(0, 9, 0.5)
    watch.answered(1, 9, 0.9)
    assert watch.acknowledged(9, 0.9) is None


def test_a_slow_add_tells_when_each_bookie_answered_its_last_entry() -> None:
    watch = AddWatch(3, False, 1.0)
    watch.appended(9, 0.0)
    watch.answered(0, 4, 0.1)
    watch.answered(0, 9, 0.2)
    watch.appended(19, 0.3)
    watch.answered(0, 19, 0.4)
    watch.answered(1, 9, 1.5)
    slow = watch.acknowledged(9, 1.5)
    assert slow is not None
    assert (slow.last_entry_id, slow.total_s, slow.change_s) == (9, 1.5, 0.0)
    assert slow.answers_s == (0.2, 1.5, None)
    # What the first bookie said of the next run is not forgotten.
    watch.answered(2, 19, 2.3)
    slow = watch.acknowledged(19, 2.3)
    assert slow is not None
    assert slow.answers_s[0] == pytest.approx(0.1)
    assert slow.answers_s[1] is None
    assert slow.answers_s[2] == pytest.approx(2.0)


def test_of_a_striped_ledger_a_bookie_answers_one_of_the_last_entries() -> None:
    watch = AddWatch(3, True, 1.0)
    watch.appended(9, 0.0)
    for index, entry_id in enumerate((7, 8, 9)):
        watch.answered(index, entry_id, 2.0 + index)
    slow = watch.acknowledged(9, 4.0)
    assert slow is not None
    assert slow.answers_s == (2.0, 3.0, 4.0)


def test_a_change_of_the_ensemble_is_a_stage_and_forgets_who_is_gone() -> None:
    watch = AddWatch(2, False, 1.0)
    watch.appended(0, 0.0)
    watch.answered(1, 0, 0.5)
    watch.changing(1.0)
    watch.changed(frozenset({1}), 3.0)
    watch.answered(0, 0, 3.5)
    watch.answered(1, 0, 3.75)
    slow = watch.acknowledged(0, 3.75)
    assert slow is not None
    assert (slow.change_s, slow.answers_s) == (2.0, (3.5, 3.75))


def test_memory_is_bounded_by_time_and_given_back() -> None:
    watch = AddWatch(1, False, 1.0)
    for number in range(10_000):
        watch.appended(number, number / 1e6)
        watch.answered(0, number, number / 1e6)
    assert len(watch._runs) <= 11
    assert len(watch._answers[0]) <= 11
    watch.acknowledged(9_999, 0.02)
    assert not watch._runs
    assert not watch._answers[0]


async def test_the_log_names_the_bookie_that_was_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    async with fake_cluster(3) as cluster:
        client = await cluster.client(ClientConfig(slow_add_ms=20))
        assert client._pool is not None
        slow = client._pool.slow_adds
        assert slow is not None
        threshold_s, slow.threshold_s = slow.threshold_s, float("inf")  # connecting may be slow, and has a line, too
        connecting = await client.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=3)
        await connecting.add(b"connects")
        slow.threshold_s = threshold_s
        handle = await client.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=3)
        await handle.add(b"is fast, or not")
        slow._next_s = float("-inf")
        caplog.clear()
        late = cluster.bookies["bookie-1"]
        late.silent = True
        entry_id = handle.append([b"waits"])
        while len(late.requests) < 3:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.05)
        # It answers after all.
        late.silent = False
        (connection,) = late.connections
        connection.transport.write(add_response(0, handle.ledger_id, entry_id))
        await handle.wait_for(entry_id)
        fields = [record.fields for record in caplog.records if hasattr(record, "fields")]
        assert len(fields) == 1
        line = fields[0]
        assert (line["operation"], line["ledger"], line["entry"]) == ("add", handle.ledger_id, entry_id)
        assert set(line["bookies"]) == set(cluster.bookies)
        slowest = max(line["bookies"], key=lambda name: line["bookies"][name]["answer_ms"])
        assert slowest == "bookie-1"
        assert line["bookies"]["bookie-1"]["answer_ms"] >= 20
        assert line["ensemble_change_ms"] == 0


def test_zero_turns_it_off() -> None:
    assert not list(ClientConfig(slow_add_ms=0).problems())
    assert any("SlowAddMillis" in text for text in ClientConfig(slow_add_ms=-1).problems())
