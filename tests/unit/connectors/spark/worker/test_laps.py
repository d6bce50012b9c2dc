"""Where the time of a task went."""

from connectors.spark.worker.laps import Laps


def test_a_lap_begins_where_the_one_before_has_ended_and_laps_of_a_name_are_summed() -> None:
    times = iter((10.0, 10.5, 12.5, 12.75, 13.0))
    laps = Laps(lambda: next(times))
    for name in ("fetched_s", "built_s", "fetched_s", "handed_s"):
        laps.end(name)
    assert laps.rounded() == {"fetched_s": 0.75, "built_s": 2.0, "handed_s": 0.25}
