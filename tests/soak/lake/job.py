"""Spark's process in the rounds with tables: `python -m tests.soak.lake.job run|finish`, in a folder that has the
programs of docs/lakehouse.md.

`run` goes on until it is killed. `finish` takes what is left, and writes the numbers of the orders in each table to a
file, a line each.
"""

import sys
from pathlib import Path

# Of the folder where this runs: what the page says.
from lake import LAKE, iceberg, spark  # type: ignore[import-not-found]
from to_delta import to_delta  # type: ignore[import-not-found]
from to_iceberg import to_iceberg  # type: ignore[import-not-found]


def main(mode: str) -> None:
    spark.sparkContext.setLogLevel("ERROR")
    # A kill may come while the first batch is noted, and Spark would refuse what that leaves.
    spark.conf.set("spark.sql.streaming.verifyCheckpointDirectoryEmptyOnStart", "false")
    if mode == "run":
        for start in (to_delta, to_iceberg):
            start(processingTime="0 seconds")
        print("started", flush=True)
        spark.streams.awaitAnyTermination()
    for start in (to_delta, to_iceberg):
        start(availableNow=True).awaitTermination()
    in_delta = [row.euros for row in spark.read.format("delta").load(f"{LAKE}/orders").select("euros").collect()]
    in_iceberg = iceberg.load_table("shop.orders").scan(selected_fields=("euros",)).to_arrow()["euros"].to_pylist()
    for name, numbers in (("delta", in_delta), ("iceberg", in_iceberg)):
        Path(name).write_text("".join(f"{number}\n" for number in numbers))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
