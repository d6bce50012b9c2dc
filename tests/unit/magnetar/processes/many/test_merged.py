"""One text of metrics, and one JSON, out of several."""

from magnetar.processes.many.merged import joined_addresses, merged_json, merged_metrics

_FIRST = """# HELP pulsar_topics_count Topics.
# TYPE pulsar_topics_count gauge
pulsar_topics_count{cluster="c",namespace="a/b"} 2
pulsar_topics_count{cluster="c",namespace="a/only"} 1
# HELP up_seconds_total Since the start.
# TYPE up_seconds_total counter
up_seconds_total 5
"""
_SECOND = """# HELP up_seconds_total Since the start.
# TYPE up_seconds_total counter
up_seconds_total 7
# HELP pulsar_topics_count Topics.
# TYPE pulsar_topics_count gauge
pulsar_topics_count{cluster="c",namespace="a/b"} 3
"""


def test_families_of_several_processes_have_one_head_and_a_label_where_lines_would_be_equal() -> None:
    assert (
        merged_metrics({0: _FIRST, 1: _SECOND})
        == """# HELP pulsar_topics_count Topics.
# TYPE pulsar_topics_count gauge
pulsar_topics_count{cluster="c",namespace="a/b",process="0"} 2
pulsar_topics_count{cluster="c",namespace="a/only"} 1
pulsar_topics_count{cluster="c",namespace="a/b",process="1"} 3
# HELP up_seconds_total Since the start.
# TYPE up_seconds_total counter
up_seconds_total{process="0"} 5
up_seconds_total{process="1"} 7
"""
    )


def test_the_metrics_of_one_process_stay_as_they_are() -> None:
    assert merged_metrics({1: _FIRST}) == _FIRST


def test_lines_of_a_summary_stand_in_its_family() -> None:
    text = '# HELP t Time.\n# TYPE t summary\nt{quantile="0.5"} 1\nt_count 3\nt_sum 4\n'
    told = merged_metrics({0: text, 1: text}).splitlines()
    assert told[:2] == ["# HELP t Time.", "# TYPE t summary"]
    assert told[2:5] == ['t{quantile="0.5",process="0"} 1', 't_count{process="0"} 3', 't_sum{process="0"} 4']


def test_values_of_labels_may_hold_whatever_they_like() -> None:
    line = 'a{topic="x } \\" 1 {",b="2"} 3\n'
    assert merged_metrics({0: line, 1: line}) == (
        'a{topic="x } \\" 1 {",b="2",process="0"} 3\na{topic="x } \\" 1 {",b="2",process="1"} 3\n'
    )


def test_a_line_without_a_head_is_a_family_of_its_own() -> None:
    assert merged_metrics({0: _FIRST + "loose 1\n"}).endswith("up_seconds_total 5\nloose 1\n")


def test_objects_are_joined_and_lists_stand_one_behind_the_other() -> None:
    assert merged_json([{"a": {"x": 1}, "l": [1]}, {"a": {"y": 2}, "l": [2], "b": 3}]) == {
        "a": {"x": 1, "y": 2},
        "l": [1, 2],
        "b": 3,
    }


def test_several_addresses_are_one_service_url() -> None:
    assert joined_addresses(["pulsar://h:1", "pulsar://h:2"]) == "pulsar://h:1,h:2"
