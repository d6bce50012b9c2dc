"""Spark finds data sources in installed modules named `pyspark_*`; this one offers the format `magnetar`."""

from connectors.spark.source import MagnetarSource as DefaultSource
from connectors.spark.source import register

__all__ = ["DefaultSource", "register"]
