"""A Spark driver, to be killed: `python -m tests.support.stream_job METADATA_URL TOPIC FOLDER`.

Writes the values of a topic to Parquet files in FOLDER/rows, with the checkpoint in FOLDER/state.
"""

import os
import sys
from pathlib import Path

from tests.support.spark_session import spark_session


def main(url: str, topic: str, folder: str) -> None:
    with spark_session("a job that is killed", scratch=Path(folder) / "scratch", quick=True) as spark:
        # A kill may come while the first batch is noted, and Spark would refuse what that leaves.
        spark.conf.set("spark.sql.streaming.verifyCheckpointDirectoryEmptyOnStart", "false")
        stream = spark.readStream.format("magnetar").option("metadata.url", url).option("topic", topic)
        stream = stream.option("startingOffsets", "earliest").option("maxMessagesPerTrigger", "1000")
        writer = stream.load().select("value").writeStream.format("parquet")
        writer = writer.option("checkpointLocation", f"{folder}/state")
        query = writer.trigger(processingTime="0 seconds").start(f"{folder}/rows")
        print("started", os.getpid(), flush=True)
        query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
