"""The bench of several Pythons: what it reads and what it prints."""

from bench.pythons import parse_rows, table

PRINTED = """\
bookie adds, 100 B, 3/3/2              114,739/s (110,000 to 120,000), p99 76 ms with 4,000 under way
official Python client, publish 1 KiB  25,100/s = 0.93 of what it reaches against a broker that does nothing
standalone, start                      0.75 s
standalone, CPU while idle             0.20 % of a core
kill -9 of the broker                  none
"""


def test_the_leading_number_of_each_row_counts() -> None:
    assert parse_rows(PRINTED) == {
        "bookie adds, 100 B, 3/3/2 (/s)": 114_739.0,
        "official Python client, publish 1 KiB (/s)": 25_100.0,
        "standalone, start (s)": 0.75,
        "standalone, CPU while idle (%)": 0.2,
    }


def test_each_python_has_the_median_of_its_rounds_and_the_ratio_to_the_first() -> None:
    runs = {"3.11": [{"a (/s)": 100.0, "b": 2.0}, {"a (/s)": 300.0, "b": 2.0}], "3.14": [{"a (/s)": 250.0}]}
    assert table(runs) == [
        "| what | 3.11 | 3.14 | 3.14 ÷ 3.11 |",
        "|---|---:|---:|---:|",
        "| a (/s) | 200 | 250 | 1.25 |",
        "| b | 2.00 | – | – |",
    ]
