"""What roles were granted in a namespace: `auth_policies` and `subscription_auth_mode` of its record. No IO.

    "auth_policies": {"namespace_auth": {role: [permission, …]},
                      "destination_auth": {topic: {role: [permission, …]}},
                      "subscription_auth_roles": {subscription: [role, …]}},
    "subscription_auth_mode": "None" | "Prefix"

Rules:

1. What another program has stored and is not a permission, role or topic grants nothing; it does not make the namespace
   unusable. (Apache's broker stores null for a permission whose name it does not know.)
2. Only known permissions are stored by this broker; the other members of a record stay as they are.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from broker.records.json_records import InvalidRecord, NoRecord
from magnetar_core.topics.topic_name import TopicName

PERMISSIONS: Final = ("produce", "consume", "functions", "sources", "sinks", "packages")
"""All that a role can be granted."""

PRODUCE, CONSUME, FUNCTIONS, SOURCES, SINKS, PACKAGES = PERMISSIONS

SUBSCRIPTION_AUTH_MODES: Final = ("None", "Prefix")
"""Prefix: a subscription's name has to begin with the role that uses it."""

Grants = Mapping[str, frozenset[str]]
"""Role → its permissions, or subscription → its roles."""

_NAMESPACE: Final = "namespace_auth"
_TOPICS: Final = "destination_auth"
_SUBSCRIPTIONS: Final = "subscription_auth_roles"


class NotAListOfNames(InvalidRecord):
    """The permissions or roles that should be stored are not a JSON list of texts."""


class NoSubscriptionRoles(NoRecord):
    """The subscription has no list of roles from which one could be removed."""


@dataclass(frozen=True, slots=True)
class Permissions:
    """What the roles were granted in one namespace."""

    namespace: Grants = field(default_factory=dict)
    topics: Mapping[str, Grants] = field(default_factory=dict)
    subscriptions: Grants = field(default_factory=dict)
    """Who may use a subscription; everybody with `consume` where it is not named, or its set is empty."""
    needs_prefix: bool = False


NONE_GRANTED: Final = Permissions()


def parse_permissions(record: Mapping[str, Any]) -> Permissions:
    """The permissions in the record of a namespace (rule 1)."""
    granted = _members(record.get("auth_policies"))
    return Permissions(
        _grants(granted.get(_NAMESPACE)),
        {topic: _grants(roles) for topic, roles in _members(granted.get(_TOPICS)).items()},
        _grants(granted.get(_SUBSCRIPTIONS)),
        record.get("subscription_auth_mode") == "Prefix",
    )


def _members(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _grants(value: Any) -> Grants:
    return {
        name: frozenset(text for text in texts if isinstance(text, str))
        for name, texts in _members(value).items()
        if isinstance(texts, list)
    }


# ------------------------------------------------------------------------------------------ shown


def namespace_grants(record: Mapping[str, Any]) -> dict[str, list[str]]:
    """Role → permissions in the whole namespace, as the admin API shows them."""
    return _shown(parse_permissions(record).namespace)


def subscription_grants(record: Mapping[str, Any]) -> dict[str, list[str]]:
    """Subscription → the roles that may use it."""
    return {name: sorted(roles) for name, roles in parse_permissions(record).subscriptions.items()}


def topic_grants(record: Mapping[str, Any], topic: TopicName) -> dict[str, list[str]]:
    """Role → permissions on *topic*: those on the topic itself, and those that it has through its namespace."""
    permissions = parse_permissions(record)
    grants_on_topic = permissions.topics.get(topic.full, {})
    none: frozenset[str] = frozenset()
    roles = [*permissions.namespace, *(role for role in grants_on_topic if role not in permissions.namespace)]
    return _shown({role: permissions.namespace.get(role, none) | grants_on_topic.get(role, none) for role in roles})


def _shown(grants: Grants) -> dict[str, list[str]]:
    """Permissions in the order of PERMISSIONS."""
    return {
        role: [permission for permission in PERMISSIONS if permission in granted] for role, granted in grants.items()
    }


# ------------------------------------------------------------------------------------------ changed


def permissions_from_json(body: Any) -> list[str]:
    """The permissions to be granted. Raises NotAListOfNames, InvalidRecord for names that are not permissions."""
    names = _names_from_json(body, "permissions")
    unknown = [name for name in names if name not in PERMISSIONS]
    if unknown:
        raise InvalidRecord(f"unknown permission {unknown[0][:100]!r}; permissions are {', '.join(PERMISSIONS)}")
    return [permission for permission in PERMISSIONS if permission in names]


def roles_from_json(body: Any) -> list[str]:
    """The roles that may use a subscription. Raises NotAListOfNames."""
    return sorted(set(_names_from_json(body, "roles")))


def _names_from_json(body: Any, what: str) -> list[str]:
    if not isinstance(body, list) or not all(isinstance(item, str) for item in body):
        raise NotAListOfNames(f'the {what} are needed as a JSON list, such as ["produce"]')
    return body


def grant(record: dict[str, Any], role: str, permissions: list[str], topic: TopicName | None = None) -> dict[str, Any]:
    """*record* with exactly these *permissions* of *role*, in the namespace or on one *topic*."""
    if topic is None:
        return _with(record, _NAMESPACE, {**_part(record, _NAMESPACE), role: permissions})
    topics = _part(record, _TOPICS)
    return _with(record, _TOPICS, {**topics, topic.full: {**_members(topics.get(topic.full)), role: permissions}})


def revoke(record: dict[str, Any], role: str, topic: TopicName | None = None) -> dict[str, Any]:
    """*record* without what *role* was granted in the namespace, or on one *topic*."""
    if topic is None:
        return _with(record, _NAMESPACE, _without(_part(record, _NAMESPACE), role))
    topics = _part(record, _TOPICS)
    remaining_roles = _without(_members(topics.get(topic.full)), role)
    remaining = {**topics, topic.full: remaining_roles} if remaining_roles else _without(topics, topic.full)
    return _with(record, _TOPICS, remaining)


def granted_on(permissions: Permissions, topic: TopicName, *, with_partitions: bool) -> frozenset[str]:
    """The names, *topic* or also those of its partitions, on which something was granted."""
    prefix = f"{topic.full}-partition-"
    return frozenset(
        name
        for name in permissions.topics
        if name == topic.full or (with_partitions and name.startswith(prefix) and name.removeprefix(prefix).isdecimal())
    )


def forget_topics(record: dict[str, Any], names: frozenset[str]) -> dict[str, Any]:
    """*record* without what was granted on the topics *names*, which are deleted."""
    remaining = {name: roles for name, roles in _part(record, _TOPICS).items() if name not in names}
    return _with(record, _TOPICS, remaining)


def grant_subscription(record: dict[str, Any], subscription: str, roles: list[str]) -> dict[str, Any]:
    """*record* with exactly these *roles* as those that may use *subscription*."""
    return _with(record, _SUBSCRIPTIONS, {**_part(record, _SUBSCRIPTIONS), subscription: roles})


def revoke_subscription(record: dict[str, Any], subscription: str, role: str) -> dict[str, Any]:
    """*record* without *role* among those that may use *subscription*. Raises NoSubscriptionRoles."""
    subscriptions = _part(record, _SUBSCRIPTIONS)
    roles = subscriptions.get(subscription)
    if not isinstance(roles, list):
        raise NoSubscriptionRoles(f"the subscription {subscription} has no list of roles; grant one first")
    others = [other for other in roles if other != role]
    remaining = {**subscriptions, subscription: others} if others else _without(subscriptions, subscription)
    return _with(record, _SUBSCRIPTIONS, remaining)


def _part(record: dict[str, Any], part: str) -> dict[str, Any]:
    return _members(_members(record.get("auth_policies")).get(part))


def _with(record: dict[str, Any], part: str, value: dict[str, Any]) -> dict[str, Any]:
    granted = {_NAMESPACE: {}, _TOPICS: {}, _SUBSCRIPTIONS: {}, **_members(record.get("auth_policies"))}
    return {**record, "auth_policies": {**granted, part: value}}


def _without(members: dict[str, Any], name: str) -> dict[str, Any]:
    return {member: value for member, value in members.items() if member != name}
