"""The settings of a broker, under Apache's names (`broker.conf`, `standalone.conf`). No IO.

`BrokerConfig` inherits from its groups, so that each setting is a field of the one value that a broker's parts share
(`config.service_port`), and its checks are the sum of the groups' rules. (A value for each group would make every use
longer, and `dataclasses.replace` and changes of settings in use would have two levels.) What Apache's brokers have and
this one does not: `broker.settings.apache`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from broker.settings.apache import names
from broker.settings.groups.authentication import Authorization
from broker.settings.groups.broker_client import BrokerClient
from broker.settings.groups.cluster import Cluster
from broker.settings.groups.connections import Connections, Memory
from broker.settings.groups.dispatch import Dispatch
from broker.settings.groups.ledgers import Entries, Ledgers
from broker.settings.groups.load import LoadBalancing
from broker.settings.groups.metrics import ShownMetrics
from broker.settings.groups.policies import DefaultPolicies
from broker.settings.groups.tls import BookieTls
from broker.settings.groups.topics import Deduplication, Schemas, Topics
from magnetar_core.runtime.config import from_environment, load
from magnetar_core.runtime.types import ConfigurationError


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig(
    # The order of the settings, from the last to the first.
    Schemas,
    Entries,
    Dispatch,
    Memory,
    Deduplication,
    BookieTls,
    Ledgers,
    Topics,
    Connections,
    Authorization,
    ShownMetrics,
    DefaultPolicies,
    LoadBalancing,
    Cluster,
    BrokerClient,
):
    """One broker. Times end in their unit; sizes of messages are bytes."""


def change_in_use(config: BrokerConfig, changes: Mapping[str, object]) -> None:
    """Give fields of a configuration other values while it is in use: all parts of a broker share the one object.

    For `broker.settings.dynamic` alone, which knows the settings that are read anew whenever they are used.
    """
    for name, value in changes.items():
        object.__setattr__(config, name, value)


_TOKEN_PREFIX: Final = "tokenSettingPrefix"
_TOKEN_SETTINGS: Final = (
    "tokenSecretKey", "tokenPublicKey", "tokenPublicAlg", "tokenAuthClaim", "tokenAudienceClaim", "tokenAudience",
    "tokenAllowedClockSkewSeconds", "tokenSecretKeys", "tokenPublicKeys",
)  # fmt: skip


def _without_prefix(values: Mapping[str, str]) -> dict[str, str]:
    """With `tokenSettingPrefix=my` the settings of tokens are `mytokenSecretKey` and so on, and those without it are
    not looked at, as Apache's AuthenticationProviderToken has it."""
    prefix = values.get(_TOKEN_PREFIX, "").strip()
    kept = {name: value for name, value in values.items() if name != _TOKEN_PREFIX}
    if not prefix:
        return kept
    for name in _TOKEN_SETTINGS:
        kept.pop(name, None)
        if prefix + name in kept:
            kept[name] = kept.pop(prefix + name)
    return kept


def load_broker_config(
    values: Mapping[str, str],
    environ: Mapping[str, str] | None = None,
    *,
    overrides: Mapping[str, str] | None = None,
) -> BrokerConfig:
    """The configuration from a file's *values*, the environment and *overrides*; the later ones win.

    Raises ConfigurationError with all problems, among them features that this broker does not have.
    """
    texts = {**values, **from_environment(environ or {}), **(overrides or {})}
    merged = _without_prefix({**names.DEFAULTS_OF_LINES.get(texts.get("apacheLine", "").strip(), {}), **texts})
    problems = list(names.problems(merged))
    try:
        config = load(BrokerConfig, merged, ignored=names.KINDS)
    except ConfigurationError as error:
        raise ConfigurationError("\n".join([*problems, str(error)])) from None
    if problems:
        raise ConfigurationError("\n".join(problems))
    return config
