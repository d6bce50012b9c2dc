"""Writing, and a stream with `subscription`, at brokers that want TLS and tokens."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from pyspark.errors import AnalysisException, PythonException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from magnetar.inspect.access import Profile
from tests.process.test_secure_standalone import standalone as secure_standalone
from tests.spark.test_streams import run, written

pytestmark = [pytest.mark.spark, pytest.mark.process]

TOKEN = "org.apache.pulsar.client.impl.auth.AuthenticationToken"


class Secured(NamedTuple):
    folder: Path
    profile: Profile

    @property
    def metadata_url(self) -> str:
        return f"rocksdb:{self.folder / 'data/metadata'}"

    def trusting(self) -> dict[str, str]:
        """Options that know the broker's certificate, and show nothing."""
        return {
            "service.url": self.profile.service_url,
            "pulsar.client.tlsTrustCertsFilePath": str(self.folder / "keys/ca.crt"),
        }

    def with_token(self, parameters: str) -> dict[str, str]:
        shown = {"pulsar.client.authPluginClassName": TOKEN, "pulsar.client.authParams": parameters}
        return {**self.trusting(), **shown}

    def token_in_file(self) -> dict[str, str]:
        return self.with_token(f"file://{self.folder / 'keys/admin.token'}")

    def token_itself(self) -> dict[str, str]:
        return self.with_token(f"token:{(self.folder / 'keys/admin.token').read_text().strip()}")


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("secured")
    with secure_standalone(folder) as (profile, *_):
        assert profile.service_url.startswith("pulsar+ssl://")
        yield Secured(folder, profile)


def write(spark: SparkSession, topic: str, options: dict[str, str], *numbers: int) -> None:
    rows = spark.createDataFrame([(str(number),) for number in numbers], "value string").coalesce(1)
    rows.write.format("magnetar").mode("append").option("topic", topic).options(**options).save()


def follow(spark: SparkSession, secured: Secured, topic: str, options: dict[str, str]) -> DataFrame:
    reader = spark.readStream.format("magnetar").option("metadata.url", secured.metadata_url).option("topic", topic)
    reader = reader.option("bookkeeper.tlsDirectory", str(secured.folder / "keys/bookies"))
    return reader.option("subscription", "spark").option("startingOffsets", "earliest").options(**options).load()


@pytest.mark.parametrize("lenient", ["false", "true"])
@pytest.mark.parametrize("folder", ["", "keys"], ids=["in clear", "with another certificate"])
def test_who_has_no_certificate_for_the_bookies_reads_no_empty_topic(
    spark: SparkSession, secured: Secured, folder: str, lenient: str
) -> None:
    write(spark, "guarded", secured.token_in_file(), 1)
    reader = spark.read.format("magnetar").option("metadata.url", secured.metadata_url).option("topic", "guarded")
    reader = reader.option("failOnDataLoss", lenient)
    if folder:
        reader = reader.option("bookkeeper.tlsDirectory", str(secured.folder / folder))
    with pytest.raises(AnalysisException, match=r"do not let this reader in: .*set bookkeeper\.tlsDirectory"):
        reader.load().count()


def test_rows_are_written_and_followed_with_a_token_over_tls(
    spark: SparkSession, secured: Secured, tmp_path: Path
) -> None:
    write(spark, "secured", secured.token_in_file(), 1, 2)
    run(follow(spark, secured, "secured", secured.token_itself()), tmp_path)
    write(spark, "secured", secured.token_itself(), 3)
    run(follow(spark, secured, "secured", secured.token_in_file()), tmp_path)
    assert written(spark, tmp_path) == [b"1", b"2", b"3"]


@pytest.mark.parametrize(
    ("shown", "advice"),
    [
        ("nothing", "check service.url, pulsar.client.authPluginClassName"),
        ("a wrong token", "check service.url, pulsar.client.authPluginClassName"),
        ("no trust", "check .* pulsar.client.tlsTrustCertsFilePath"),
    ],
)
def test_who_is_not_let_in_is_told_where_and_what_to_look_at(
    spark: SparkSession, secured: Secured, tmp_path: Path, shown: str, advice: str
) -> None:
    options = {
        "nothing": secured.trusting(),
        "a wrong token": secured.with_token("token:x.y.z"),
        "no trust": {"service.url": secured.profile.service_url},
    }[shown]
    # Whom the broker does not let in, the client lets wait until the time is over.
    options["pulsar.client.operationTimeoutMs"] = "2000" if shown == "no trust" else "1000"
    address = re.escape(secured.profile.service_url)
    write(spark, "refusing", secured.token_in_file(), 1)
    with pytest.raises(PythonException, match=rf"no producer for .*{address}: .*{advice}"):
        write(spark, "refusing", options, 2)
    with pytest.raises(StreamingQueryException, match=rf"could not be made at {address}: .*{advice}"):
        run(follow(spark, secured, "refusing", options), tmp_path)
