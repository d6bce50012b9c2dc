"""Spark finds data sources in installed modules named `pyspark_*`; this one offers the format `magnetar`."""

from typing import Any

from pyspark.sql.datasource import DataSource

from magnetar_core.runtime.process.own_packages import HiddenPackage, check_own_packages

__all__ = ["DefaultSource", "register"]

try:
    check_own_packages()
except HiddenPackage as hidden:
    # Spark skips a module that cannot be imported, and later reports that the format does not exist. So the format is
    # always offered, and reports what is wrong when it is used.
    _WHY = str(hidden)

    class HiddenSource(DataSource):
        """Stands in for the data source when its packages are not installed."""

        def __init__(self, options: Any) -> None:
            raise HiddenPackage(_WHY)

        @classmethod
        def name(cls) -> str:
            return "magnetar"

    DefaultSource: type[DataSource] = HiddenSource

    def register(spark: Any) -> None:
        raise HiddenPackage(_WHY)

else:
    from connectors.spark.source import MagnetarSource as DefaultSource
    from connectors.spark.source import register
