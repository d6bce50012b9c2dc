"""Lines about what was planned and read, for Spark's log of its Python workers.

    spark.conf.set("spark.sql.pyspark.worker.logging.enabled", "true")
    spark.tvf.python_worker_logs()

Python drops lines below WARNING unless a program asks for them, and nobody can ask in a worker.
"""

import logging
import os
from typing import Final

_GATHERED: Final = "PYSPARK_SPARK_SESSION_UUID"
"""Set in workers of which Spark gathers the lines."""


def let_through() -> None:
    """Let the lines of this package reach Spark from now on, if it gathers them."""
    logger = logging.getLogger("connectors.spark")
    if _GATHERED in os.environ and logger.level == logging.NOTSET:
        logger.setLevel(logging.INFO)
