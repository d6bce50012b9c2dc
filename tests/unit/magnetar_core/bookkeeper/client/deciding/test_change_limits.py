"""The limit on the rate of ensemble changes."""

from magnetar_core.bookkeeper.client.deciding.change_limits import (
    BOOKIES_MAX,
    BURST,
    LEDGER_FIRST_S,
    LEDGER_LAST_S,
    PER_SECOND,
    QUIET_S,
    BookieLimits,
    LedgerBackoff,
)


def test_a_ledger_changes_at_once_then_ever_more_slowly_and_at_once_again_after_a_quiet_time() -> None:
    backoff = LedgerBackoff()
    assert backoff.delay_s(100.0) == 0.0
    now, delays = 100.0, []
    for _ in range(10):
        delays.append(backoff.delay_s(now))
        now += delays[-1]
    assert delays[:4] == [LEDGER_FIRST_S * 2**at for at in range(4)]
    assert delays[-1] == LEDGER_LAST_S
    assert backoff.delay_s(now + QUIET_S + 0.1) == 0.0


def test_a_bookie_loses_a_burst_of_ledgers_at_once_and_then_so_many_a_second() -> None:
    limits = BookieLimits()
    delays = [limits.delay_s("a", 5.0) for _ in range(int(BURST) + 300)]
    assert delays[: int(BURST)] == [0.0] * int(BURST)
    assert delays[-1] == 300 / PER_SECOND
    assert limits.delay_s("b", 5.0) == 0.0, "each bookie for itself"
    assert limits.delay_s("a", 5.0 + 2 * BURST / PER_SECOND + 3) == 0.0


def test_what_is_remembered_has_an_end() -> None:
    limits = BookieLimits()
    for number in range(3 * BOOKIES_MAX):
        limits.delay_s(str(number), 1.0)
    assert len(limits._tokens) == BOOKIES_MAX
