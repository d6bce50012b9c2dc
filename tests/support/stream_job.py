"""A Spark driver, to be killed: `python -m tests.support.stream_job METADATA_URL TOPIC FOLDER [available-now]`.

Writes the values of a topic to Parquet files in FOLDER/rows, with the checkpoint in FOLDER/state.
"""

import os
import sys
from pathlib import Path

from tests.support.spark_session import spark_session


def main(url: str, topic: str, folder: str, available_now: bool) -> None:
    with spark_session("a job that is killed", scratch=Path(folder) / "scratch") as spark:
        # A kill may come while the first batch is noted, and Spark would refuse what that leaves.
        spark.conf.set("spark.sql.streaming.verifyCheckpointDirectoryEmptyOnStart", "false")
        stream = spark.readStream.format("magnetar").option("metadata.url", url).option("topic", topic)
        stream = stream.option("startingOffsets", "earliest").option("maxMessagesPerTrigger", "1000")
        writer = stream.load().select("value").writeStream.format("parquet")
        writer = writer.option("checkpointLocation", f"{folder}/state")
        trigger = {"availableNow": True} if available_now else {"processingTime": "0 seconds"}
        query = writer.trigger(**trigger).start(f"{folder}/rows")
        print("started", os.getpid(), flush=True)
        query.awaitTermination()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], "available-now" in sys.argv[4:])
