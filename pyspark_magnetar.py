"""Spark finds data sources in installed modules named `pyspark_*`; this one offers the format `magnetar`."""

from typing import Any

from pyspark.sql.datasource import DataSource

from magnetar_core.runtime.own_packages import HiddenPackage, check_own_packages

__all__ = ["DefaultSource", "register"]

try:
    check_own_packages()
except HiddenPackage as hidden:
    # Spark passes over a module that cannot be imported and says later that there is no such format. So there is one,
    # and it says what is wrong when it is used.
    _WHY = str(hidden)

    class HiddenSource(DataSource):
        """In the place of the data source, whose packages Python does not find."""

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
