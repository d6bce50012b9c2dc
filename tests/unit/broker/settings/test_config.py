import dataclasses
import itertools
from pathlib import Path

import pytest

from broker.broker import rules_of
from broker.policies.namespace import NamespacePolicies, new_policies, parse_policies
from broker.records.json_records import to_json
from broker.security.authorization import Rules
from broker.serving.storage import client_config, ledger_config
from broker.settings.apache.names import NAMES, REFUSED, SHIPPED, WITHOUT_EFFECT
from broker.settings.config import BrokerConfig, load_broker_config
from broker.settings.groups.authentication import PERMISSIONS_PROVIDER
from broker.settings.groups.load import PLACEMENT_STRATEGIES, SHEDDING_STRATEGIES
from broker.settings.groups.ports import parse_listeners
from broker.tenancy.changes import initial_nodes
from magnetar_core.bookkeeper.client.placing.regions import RegionRules
from magnetar_core.runtime.config import HIDDEN, names_of, shown_value
from magnetar_core.runtime.types import MIB, ConfigurationError, Corruption
from managed_ledger.records.records_pb2 import LZ4, NONE, ZSTD
from tests.support.vectors import load


def test_apaches_names_are_read_and_the_environment_wins() -> None:
    config = load_broker_config(
        {
            "brokerServicePort": "6651",
            "clusterName": "a",
            "numIOThreads": "8",
            "transactionCoordinatorEnabled": "false",
        },
        {"PULSAR_PREFIX_clusterName": "b"},
    )
    assert (config.service_port, config.cluster_name) == (6651, "b")


def test_all_problems_are_told_at_once() -> None:
    with pytest.raises(ConfigurationError) as error:
        load_broker_config(
            {
                "clusterNam": "x",
                "transactionCoordinatorEnabled": "true",
                "functionsWorkerEnabled": "true",
            }
        )
    for text in ("clusterName?", "transactionCoordinatorEnabled=true", "functionsWorkerEnabled=true"):
        assert text in str(error.value)
    with pytest.raises(ConfigurationError) as error:
        load_broker_config(
            {"managedLedgerDefaultAckQuorum": "3", "brokerServicePortTls": "6651", "schemaCompatibilityStrategy": "X"}
        )
    for text in ("managedLedgerDefaultAckQuorum", "tlsKeyFilePath is not set", "schemaCompatibilityStrategy=X"):
        assert text in str(error.value)


def test_no_setting_has_two_meanings() -> None:
    lists = [names_of(BrokerConfig), REFUSED.keys(), SHIPPED.keys(), WITHOUT_EFFECT.keys()]
    for one, other in itertools.combinations(lists, 2):
        assert not one & other


def test_the_largest_message_fits_into_a_frame_to_bookies() -> None:
    assert client_config(load_broker_config({})).frame_bytes_max == 5_253_120
    assert client_config(load_broker_config({"maxMessageSize": "100000"})).frame_bytes_max == 5_253_120
    large = client_config(load_broker_config({"maxMessageSize": str(100 * MIB)}))
    assert large.frame_bytes_max == large.outbox_bytes_max == 100 * MIB + 10 * 1024
    assert list(large.problems()) == []


def test_regions_are_told_to_the_client_and_checked_against_the_quorums() -> None:
    by_region = {"bookkeeperClientRegionawarePolicyEnabled": "true", "reppRegionsToWrite": "eu;us"}
    assert client_config(load_broker_config(by_region)).region_rules == RegionRules(2)
    assert client_config(load_broker_config({})).region_rules is None
    for changes, text in (
        ({"managedLedgerDefaultAckQuorum": "1"}, "needs an ack quorum of 2 at least with a write quorum of 2, it is 1"),
        ({"bookkeeperClientRegionawarePolicyEnabled": "false"}, "reppRegionsToWrite=eu;us needs"),
        ({"reppMinimumRegionsForDurability": "3"}, "reppMinimumRegionsForDurability=3 asks for more"),
        ({"reppDisableDurabilityFeatureName": "x"}, "reppDisableDurabilityFeatureName=x: features of BookKeeper"),
    ):
        with pytest.raises(ConfigurationError, match=text):
            load_broker_config({**by_region, **changes})


def test_failure_domains_are_off_and_can_be_switched_on() -> None:
    assert not load_broker_config({}).failure_domains
    assert load_broker_config({"failureDomainsEnabled": "true"}).failure_domains


def test_listeners() -> None:
    assert parse_listeners("in:pulsar://a:1,in:pulsar+ssl://a:2, out:pulsar://b:3") == {
        "in": ("pulsar://a:1", "pulsar+ssl://a:2"),
        "out": ("pulsar://b:3", ""),
    }
    with pytest.raises(ValueError):
        parse_listeners("a:1")


def test_policies_of_apache_are_read() -> None:
    record = new_policies("lab", 4)
    policies = parse_policies(to_json(record), "/p")
    assert policies.bundles.ranges[0] == "0x00000000_0x40000000"
    assert policies.auto_creation is None
    assert policies.schema_strategy is None
    record |= {
        "deduplicationEnabled": True,
        "retention_policies": {"retentionTimeInMinutes": 5, "retentionSizeInMB": -1},
        "autoTopicCreationOverride": {
            "allowAutoTopicCreation": True,
            "topicType": "partitioned",
            "defaultNumPartitions": 3,
        },
        "schema_compatibility_strategy": "BACKWARD",
        "surprise": {"kept": 1},
    }
    policies = parse_policies(to_json(record), "/p")
    assert policies.deduplication is True
    assert (policies.retention_minutes, policies.retention_mbytes) == (5, -1)
    assert policies.auto_creation is not None
    assert policies.auto_creation.partitions == 3
    assert policies.schema_strategy == "BACKWARD"
    assert policies.raw["surprise"] == {"kept": 1}


@pytest.mark.parametrize("value", [b"nonsense", b"[]", b'{"bundles":{"boundaries":["0x1"]}}', b'{"persistence":7}'])
def test_policies_that_make_no_sense_are_corrupt(value: bytes) -> None:
    with pytest.raises(Corruption, match="/p"):
        parse_policies(value, "/p")
    assert isinstance(parse_policies(b"", "/p"), NamespacePolicies)


def test_a_cluster_is_initialised_with_the_bytes_of_apache() -> None:
    config = BrokerConfig(cluster_name="lab")
    nodes = initial_nodes(config, "http://127.0.0.1:8082", "pulsar://127.0.0.1:6652")
    assert nodes["/admin/policies/public"] == b'{"allowedClusters":["lab"],"adminRoles":[]}'
    assert nodes["/admin/policies/public/default"].startswith(
        b'{"auth_policies":{"namespace_auth":{},"destination_auth":{},"subscription_auth_roles":{}},'
        b'"replication_clusters":["lab"],"allowed_clusters":[],"bundles":{"boundaries":["0x00000000","0x10000000",'
    )
    assert nodes["/admin/clusters/lab"].startswith(
        b'{"serviceUrl":"http://127.0.0.1:8082","brokerServiceUrl":"pulsar://127.0.0.1:6652","brokerClientTlsEnabled":false'
    )


AUTHORIZED = {
    "authenticationEnabled": "true",
    "authorizationEnabled": "true",
    "superUserRoles": "admin, operations",
    "proxyRoles": "proxy",
    "authorizationAllowWildcardsMatching": "true",
}


def problems_with(**changes: str) -> str:
    with pytest.raises(ConfigurationError) as error:
        load_broker_config({**AUTHORIZED, **changes})
    return str(error.value)


def test_authorization_needs_authentication() -> None:
    assert "authorizationEnabled=true needs authenticationEnabled=true" in problems_with(authenticationEnabled="false")


def test_only_pulsars_own_rules_are_there() -> None:
    wanted = "org.example.OtherProvider"
    assert f"authorizationProvider={wanted}: only {PERMISSIONS_PROVIDER}" in problems_with(authorizationProvider=wanted)
    assert load_broker_config({"authorizationProvider": PERMISSIONS_PROVIDER}).authorization_provider


def test_settings_become_rules() -> None:
    config = BrokerConfig(
        authorization_enabled=True, super_users=("admin", "ops"), proxy_roles=("proxy",), role_wildcards=True
    )
    assert rules_of(config) == Rules(frozenset({"admin", "ops"}), frozenset({"proxy"}), has_wildcards=True)
    assert rules_of(BrokerConfig(super_users=("admin",))) is None
    assert load_broker_config({"superUserRoles": "admin, ops"}).super_users == ("admin", "ops")


TOKEN_PROVIDER = "org.apache.pulsar.broker.authentication.AuthenticationProviderToken"
TLS_PROVIDER = "org.apache.pulsar.broker.authentication.AuthenticationProviderTls"
KEY_STORE = {"webServicePortTls": "0", "tlsEnabledWithKeyStore": "true"}
BASIC_PROVIDER = "org.apache.pulsar.broker.authentication.AuthenticationProviderBasic"


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"authenticationEnabled": "true"}, "needs authenticationProviders"),
        (
            {"authenticationProviders": "org.x.AuthenticationProviderSasl"},
            "AuthenticationProviderSasl: it is not there",
        ),
        ({"authenticationProviders": TOKEN_PROVIDER}, "AuthenticationProviderToken needs tokenSecretKey"),
        ({"authenticationProviders": BASIC_PROVIDER}, "AuthenticationProviderBasic needs basicAuthConf"),
        ({"authenticationProviders": TLS_PROVIDER}, "AuthenticationProviderTls needs a port with TLS"),
        ({"brokerServicePortTls": "0"}, "tlsCertificateFilePath is not set"),
        ({"tlsEnabled": "true"}, "tlsEnabled=true: no port speaks TLS"),
        ({**KEY_STORE}, "tlsKeyStore is not set"),
        (
            {
                "webServicePortTls": "0",
                "tlsEnabledWithKeyStore": "true",
                "tlsKeyStore": "s",
                "tlsTrustStoreType": "BKS",
            },
            "tlsTrustStoreType=BKS: expected one of JKS, PKCS12",
        ),
        (
            {
                "webServicePortTls": "0",
                "tlsEnabledWithKeyStore": "true",
                "tlsKeyStore": "s",
                "tlsRequireTrustedClientCertOnConnect": "true",
            },
            "needs tlsTrustStore: whom to trust",
        ),
        (
            {"brokerClientTlsEnabledWithKeyStore": "true", "brokerClientTlsKeyStoreType": "PKCS11"},
            "brokerClientTlsKeyStoreType=PKCS11",
        ),
        (
            {"brokerClientAuthenticationPlugin": "org.apache.pulsar.client.impl.auth.AuthenticationKeyStoreTls"},
            "needs brokerClientTlsEnabledWithKeyStore=true",
        ),
        ({"webServicePortTls": "0", "tlsRequireTrustedClientCertOnConnect": "true"}, "whom to trust"),
        ({"webServicePortTls": "0", "tlsProtocols": "SSLv3"}, "SSLv3 is not offered"),
        ({"brokerClientTlsProtocols": "SSLv3"}, "brokerClientTlsProtocols: SSLv3 is not offered"),
        ({"brokerServicePort": ""}, "brokerServicePort or brokerServicePortTls must be set"),
        ({"brokerClientAuthenticationPlugin": "org.x.Sasl"}, "brokerClientAuthenticationPlugin=org.x.Sasl: expected"),
    ],
)
def test_security_that_is_not_whole_is_refused(values: dict[str, str], reason: str) -> None:
    if "authenticationProviders" in values or "brokerClientAuthenticationPlugin" in values:
        values = {"authenticationEnabled": "true", **values}
    with pytest.raises(ConfigurationError, match=reason):
        load_broker_config(values)


def test_a_secret_is_shown_neither_by_the_configuration_nor_by_its_text() -> None:
    config = load_broker_config({"tokenSecretKey": "data:;base64,c2VjcmV0", "basicAuthConf": "c2VjcmV0"})
    assert "c2VjcmV0" not in repr(config)
    shown = {
        field.metadata["name"]: shown_value(field, getattr(config, field.name)) for field in dataclasses.fields(config)
    }
    assert shown["tokenSecretKey"] == shown["basicAuthConf"] == HIDDEN
    assert shown["brokerClientAuthenticationParameters"] == ""


@pytest.mark.parametrize(
    "values",
    [
        {"configurationMetadataStoreUrl": "zk:127.0.0.1:2181"},
        {"configurationMetadataStoreUrl": "metadata-store:zk://127.0.0.1:2181"},
        {"bookkeeperMetadataServiceUri": "zk+hierarchical://127.0.0.1:2181/ledgers"},
        {"metadataStoreUrl": "zk:a:1,b:2/pulsar", "bookkeeperMetadataServiceUri": "zk://b:2;a:1/pulsar/ledgers"},
        {"metadataStoreUrl": "rocksdb:/data", "configurationMetadataStoreUrl": "rocksdb:/data"},
        {"configurationMetadataStoreUrl": "", "bookkeeperMetadataServiceUri": ""},
    ],
)
def test_a_second_name_for_the_one_metadata_store_is_taken(values: dict[str, str]) -> None:
    assert load_broker_config(values)


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ({"configurationMetadataStoreUrl": "zk:global:2181"}, "configurationMetadataStoreUrl"),
        ({"bookkeeperMetadataServiceUri": "zk://other:2181/ledgers"}, "bookkeeperMetadataServiceUri"),
        ({"bookkeeperMetadataServiceUri": "zk://127.0.0.1:2181/bk/ledgers"}, "bookkeeperMetadataServiceUri"),
    ],
)
def test_a_second_metadata_store_is_refused(values: dict[str, str], name: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{name}=.*: .*remove it"):
        load_broker_config(values)


def test_the_settings_of_subscriptions_ledgers_are_in_force() -> None:
    config = load_broker_config(
        {
            "managedLedgerCursorMaxEntriesPerLedger": "7",
            "managedLedgerCursorRolloverTimeInSeconds": "8",
            "managedLedgerMaxUnackedRangesToPersistInMetadataStore": "9",
        }
    )
    made = ledger_config(config)
    assert (made.cursor_ledger_entries_max, made.cursor_ledger_age_max_s, made.cursor_ranges_in_node_max) == (7, 8, 9)
    more = load_broker_config({"managedLedgerMaxUnackedRangesToPersistInMetadataStore": "200000"})
    assert ledger_config(more).cursor_ranges_in_node_max == 10_000, "what a node holds"


def test_how_records_and_cursors_are_stored_is_a_setting() -> None:
    made = ledger_config(load_broker_config({}))
    assert (made.record_compression, made.record_compression_bytes, made.cursor_words) == (LZ4, 16_384, True)
    made = ledger_config(
        load_broker_config(
            {
                "managedLedgerInfoCompressionType": "ZSTD",
                "managedLedgerInfoCompressionThresholdInBytes": "1",
                "managedCursorInfoCompressionType": "NONE",
                "managedCursorInfoCompressionThresholdInBytes": "2",
                "managedLedgerPersistIndividualAckAsLongArray": "false",
            }
        )
    )
    assert (made.record_compression, made.record_compression_bytes) == (ZSTD, 1)
    assert (made.cursor_compression, made.cursor_compression_bytes, made.cursor_words) == (NONE, 2, False)


def test_the_time_limits_of_ledgers_are_in_force() -> None:
    config = load_broker_config({"bookkeeperClientTimeoutInSeconds": "7", "managedLedgerAddEntryTimeoutSeconds": "8"})
    assert client_config(config).timeout_s == 7
    assert ledger_config(config).append_timeout_s == 8
    assert ledger_config(load_broker_config({})).append_timeout_s == 30
    assert client_config(load_broker_config({})).timeout_s == 30


# ------------------------------------------------------------------------------------- files that Apache ships


def test_settings_that_are_not_here_are_taken_with_the_values_that_apache_ships() -> None:
    for name, accepted in SHIPPED.items():
        for value in accepted.values:
            load_broker_config({name: value})


@pytest.mark.parametrize("name", sorted(SHIPPED))
def test_with_other_values_they_are_refused_by_name(name: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"{name}=(other|\*+): this broker does not have the setting"):
        load_broker_config({name: "other"})


def test_a_setting_of_another_load_manager_is_refused_with_whose_it_is() -> None:
    left = {one for one in SHIPPED if one.startswith(("loadBalance", "loadManager"))}
    assert left <= {name for name, listed in SHIPPED.items() if listed.comment}, "all others take effect"
    with pytest.raises(
        ConfigurationError, match="one of ExtensibleLoadManagerImpl and this load manager is as Modular"
    ):
        load_broker_config({"loadBalancerTransferEnabled": "false"})


def test_the_strategies_of_the_load_manager_are_known_by_apache_s_class_names() -> None:
    for name, strategies in (
        ("loadBalancerLoadSheddingStrategy", SHEDDING_STRATEGIES),
        ("loadBalancerLoadPlacementStrategy", PLACEMENT_STRATEGIES),
    ):
        for one in strategies:
            load_broker_config({name: one})
        with pytest.raises(ConfigurationError, match=f"{name}=my.Own: expected one of .*others are Java classes"):
            load_broker_config({name: "my.Own"})
    assert load_broker_config({}).shedding_strategy.endswith(".AvgShedder")


def test_the_speed_of_the_network_may_be_left_empty_as_apache_ships_it() -> None:
    assert load_broker_config({"loadBalancerOverrideBrokerNicSpeedGbps": ""}).nic_gbps is None
    assert load_broker_config({"loadBalancerOverrideBrokerNicSpeedGbps": "0.8"}).nic_gbps == 0.8


def test_each_setting_that_apache_s_broker_tells_is_known_or_refused_by_name() -> None:
    told = load("http/017-get-admin-v2-brokers-configuration-runtime.json")["response"]["json"]
    assert told.keys() - names_of(BrokerConfig) - NAMES == set()


def test_the_page_about_compatibility_names_each_setting_that_is_refused() -> None:
    page = (Path(__file__).parents[4] / "docs/compatibility.md").read_text(encoding="utf-8")
    section = page.partition("## What is refused")[2].partition("\n## ")[0]
    assert {name for name in REFUSED if f"`{name}`" not in section} == set()


def test_a_type_of_subscriptions_that_does_not_exist_is_told() -> None:
    with pytest.raises(ConfigurationError, match="subscriptionTypesEnabled=Some: expected some of"):
        load_broker_config({"subscriptionTypesEnabled": "Shared,Some"})


def test_brokers_do_not_tell_each_other_what_the_topics_of_a_resource_group_used() -> None:
    given = {"resourceUsageTransportClassName": "", "resourceUsageTransportPublishIntervalInSecs": "60"}
    load_broker_config(given)
    transport = "org.apache.pulsar.broker.resourcegroup.ResourceUsageTopicTransportManager"
    with pytest.raises(ConfigurationError, match=r"resourceUsageTransportClassName=org.*each keeps the rates"):
        load_broker_config({**given, "resourceUsageTransportClassName": transport})


def test_a_number_that_is_left_open_has_its_default() -> None:
    assert load_broker_config({"managedLedgerCacheSizeMB": " "}).cache_mbytes == BrokerConfig().cache_mbytes


def test_the_settings_of_tokens_may_have_a_prefix() -> None:
    secure = {
        "authenticationEnabled": "true",
        "authenticationProviders": "org.apache.pulsar.broker.authentication.AuthenticationProviderToken",
        "tokenSettingPrefix": "my",
        "tokenSecretKey": "data:;base64,bm90IHRoaXM=",
        "mytokenSecretKey": "data:;base64,dGhpcyBvbmU=",
        "mytokenAuthClaim": "role",
    }
    config = load_broker_config(secure)
    assert (config.token_secret_key, config.token_claim) == ("data:;base64,dGhpcyBvbmU=", "role")
    without = {name: value for name, value in secure.items() if not name.startswith("my")}
    with pytest.raises(ConfigurationError, match=r"needs tokenSecretKey or tokenPublicKey"):
        load_broker_config(without)


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("numIOThreads", "abc", "expected a number"),
        ("managedLedgerCacheCopyEntries", "yes", "expected true or false"),
    ],
)
def test_settings_without_effect_have_values_of_their_kind(name: str, text: str, words: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{name}={text}: {words}"):
        load_broker_config({name: text})
