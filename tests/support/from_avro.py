"""Reads Avro with Spark's own `from_avro`, in a process of its own: the jar has to be there when Java starts.

    python -m tests.support.from_avro JAR SCHEMA.json VALUES.pickle ROWS.pickle

VALUES is a list of bytes; ROWS gets Spark's schema in JSON, and a dict for each row.
"""

import os
import pickle
import sys
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.avro.functions import from_avro


def main(jar: str, definition: str, values: str, rows: str) -> None:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    session = (
        SparkSession.builder.master("local[1]").config("spark.jars", jar).config("spark.ui.enabled", "false")
        .config("spark.driver.bindAddress", "127.0.0.1").config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.session.timeZone", "UTC").getOrCreate()
    )  # fmt: skip
    try:
        given = [(value,) for value in pickle.loads(Path(values).read_bytes())]
        frame = session.createDataFrame(given, "value binary")
        read = frame.select(from_avro("value", Path(definition).read_text()).alias("record")).select("record.*")
        found = read.schema.json(), [row.asDict(recursive=True) for row in read.collect()]
    finally:
        session.stop()
    Path(rows).write_bytes(pickle.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
