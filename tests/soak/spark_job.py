"""The driver of the rounds with Spark: a topic into files, and into another topic, each message once.

    spark_job.py run|finish METADATA_URL SERVICE_URL TOPIC OTHER_TOPIC FOLDER

`run` goes on until it is killed. `finish` takes what is left, and writes the values that the files hold to
FOLDER/values, a line each.
"""

import sys
from pathlib import Path

from pyspark.sql import SparkSession


def main(mode: str, url: str, service: str, topic: str, other: str, folder: str) -> None:
    spark = SparkSession.builder.appName(mode).getOrCreate()
    # A kill may come while the first batch is noted, and Spark would refuse what that leaves.
    spark.conf.set("spark.sql.streaming.verifyCheckpointDirectoryEmptyOnStart", "false")
    spark.sparkContext.setLogLevel("ERROR")
    reader = spark.readStream.format("magnetar").option("metadata.url", url).option("topic", topic)
    stream = reader.option("startingOffsets", "earliest").load().select("value", "__key")
    into_files = stream.select("value").writeStream.format("parquet").option("path", f"{folder}/rows")
    into_topic = stream.writeStream.format("magnetar").option("service.url", service).option("topic", other)
    writers = [
        into_files.option("checkpointLocation", f"{folder}/state-files"),
        into_topic.option("deduplication", "true").option("checkpointLocation", f"{folder}/state-topic"),
    ]
    if mode == "run":
        for writer in writers:
            writer.trigger(processingTime="0 seconds").start()
        print("started", flush=True)
        spark.streams.awaitAnyTermination()
    for writer in writers:
        writer.trigger(availableNow=True).start().awaitTermination()
    values = [bytes(row[0]).decode() for row in spark.read.parquet(f"{folder}/rows").select("value").collect()]
    Path(folder, "values").write_text("".join(f"{value}\n" for value in values))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
