"""A Spark driver, to be killed: `python -m tests.support.stream_job METADATA_URL TOPIC FOLDER [available-now]
[SERVICE_URL OTHER_TOPIC]`.

Writes the values of a topic to Parquet files in FOLDER/rows, or once each into another topic, with the checkpoint in
FOLDER/state.
"""

import os
import sys

from tests.support.spark_session import spark_session


def main(url: str, topic: str, folder: str, *more: str) -> None:
    with spark_session("a job that is killed") as spark:
        stream = spark.readStream.format("magnetar").option("metadata.url", url).option("topic", topic)
        stream = stream.option("startingOffsets", "earliest").option("maxMessagesPerTrigger", "1000")
        available_now = "available-now" in more
        into = [one for one in more if one != "available-now"]
        if into:
            writer = stream.load().select("value", "__key").writeStream.format("magnetar")
            writer = writer.option("service.url", into[0]).option("topic", into[1]).option("deduplication", "true")
        else:
            writer = stream.load().select("value").writeStream.format("parquet").option("path", f"{folder}/rows")
        writer = writer.option("checkpointLocation", f"{folder}/state")
        trigger = {"availableNow": True} if available_now else {"processingTime": "0 seconds"}
        query = writer.trigger(**trigger).start()
        print("started", os.getpid(), flush=True)
        query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
