"""A job for `spark-submit`: reads a topic, writes it into another one and into files, says what it saw as JSON.

spark_job.py METADATA_URL SERVICE_URL TOPIC OTHER_TOPIC FOLDER
"""

import json
import sys
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as f


def main(url: str, service: str, topic: str, other: str, folder: str) -> None:
    spark = SparkSession.builder.appName("a job of the tests").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    reader = spark.read.format("magnetar").option("metadata.url", url).option("topic", topic)
    frame = reader.option("valueFormat", "string").option("minPartitions", "4").load()
    tasks = frame.select(f.spark_partition_id().alias("task")).distinct().count()
    frame.select("value", "__key").write.format("magnetar").mode("append").options(
        **{"service.url": service, "topic": other}
    ).save()
    stream = spark.readStream.format("magnetar").option("metadata.url", url).option("topic", other)
    writer = stream.option("startingOffsets", "earliest").load().select("value").writeStream.format("parquet")
    writer = writer.option("checkpointLocation", f"{folder}/state").trigger(availableNow=True)
    writer.start(f"{folder}/rows").awaitTermination()
    scala_context: Any = spark.sparkContext._jsc
    found = {
        "rows": frame.count(),
        "tasks": tasks,
        "executors": scala_context.sc().getExecutorMemoryStatus().size() - 1,
        "in_files": spark.read.parquet(f"{folder}/rows").count(),
    }
    print(json.dumps(found), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
