"""The policies of topics as nodes of the metadata store (PIP-469, brokers of 5.0). No IO.

    /admin/topic-policies/local/<tenant>/<namespace>/persistent/<encoded topic>      for this cluster
    /admin/topic-policies/global/…                                                   for all clusters

Each is JSON with the members of Apache's class TopicPolicies (`MetadataStoreTopicPoliciesService`, 5.0.1): those that
are set, and some that Java derives from them. Members that are not known here are kept when a node is written again.
"""

import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from broker.policies.topic.record import NONE_SET, Record
from magnetar_core.runtime.data.json_text import parse_json
from magnetar_core.runtime.types import Corruption
from magnetar_core.topics.topic_name import PERSISTENT, TopicName, decode

LOCAL_ROOT: Final = "/admin/topic-policies/local"
GLOBAL_ROOT: Final = "/admin/topic-policies/global"

_IS_GLOBAL: Final = "isGlobal"
_DERIVED: Final = "globalPolicies"
_DERIVED_SUFFIX: Final = "Set"
"""`messageTTLSet` says that `messageTTLInSeconds` is set."""


class Place(NamedTuple):
    """The topic whose policies a node holds, and whether they are those for all clusters."""

    topic: TopicName
    is_global: bool


def folder(namespace: str, *, is_global: bool) -> str:
    """The node above those of a namespace's topics."""
    return f"{GLOBAL_ROOT if is_global else LOCAL_ROOT}/{namespace}/{PERSISTENT}"


def path_of(topic: TopicName, *, is_global: bool) -> str:
    """The node of a topic, or of the partitioned topic that it belongs to."""
    return f"{folder(topic.namespace, is_global=is_global)}/{topic.base.encoded_local}"


def place_of(path: str, namespace: str) -> Place | None:
    """What a node below `folder` is about; None for another one."""
    for is_global in (False, True):
        above = f"{folder(namespace, is_global=is_global)}/"
        name = path.removeprefix(above)
        if path.startswith(above) and name and "/" not in name:
            tenant, _, local = namespace.partition("/")
            return Place(TopicName(PERSISTENT, tenant, local, decode(name)), is_global)
    return None


def read_node(value: bytes, path: str) -> Record | None:
    """The members that are set; None: none is. Raises Corruption."""
    try:
        record = parse_json(value)
    except ValueError as error:
        raise Corruption(f"{path}: {error}") from None
    if not isinstance(record, dict):
        raise Corruption(f"{path} is not a JSON object")
    policies = {name: value for name, value in record.items() if value is not None and not _is_derived(name)}
    return policies or None


def node_of(policies: Mapping[str, Any], *, is_global: bool) -> bytes:
    """The node of a topic with *policies*."""
    members = {name: value for name, value in {**NONE_SET, **policies}.items() if value is not None}
    return json.dumps({**members, _IS_GLOBAL: is_global}, separators=(",", ":")).encode()


def _is_derived(name: str) -> bool:
    return name in (_IS_GLOBAL, _DERIVED) or name.endswith(_DERIVED_SUFFIX)
