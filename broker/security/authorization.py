"""What a caller may do, by the rules of Pulsar's own provider of authorization. No IO.

    super user                    everything
    tenant's administrator        everything in the tenant, but what concerns the tenant itself or the brokers
    produce, consume, …           what the table RIGHTS says, where the namespace or the topic grants it

Rules:

1. What is not allowed here is refused, and the refusal is the same whether the thing that it is about exists or not.
2. A caller that has shown nothing may do only what needs no authentication (Right.OPEN).
3. A proxy's request needs the right of the proxy and that of the role for which it asks. That role is named, and is not
   a proxy itself; a caller that is not a proxy speaks for nobody else.
4. A permission on a partitioned topic holds for its partitions; one with a wildcard does not, as with Apache's brokers:
   nobody may do here what a broker of the same cluster refuses.
5. The brokers' own topics and namespaces are for super users (`broker.security.system_topics`).
6. A call that moves or removes subscriptions of many topics needs what the call for one of them needs: the right to use
   the subscription that it names, or every one where it names none.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum, StrEnum, auto
from typing import Final, NamedTuple

from broker.policies.permissions import CONSUME, FUNCTIONS, PACKAGES, PRODUCE, SINKS, SOURCES, Grants, Permissions
from broker.security.system_topics import belongs_to_brokers, is_of_brokers
from magnetar_core.security.caller import Caller
from magnetar_core.topics.topic_name import TopicName

# What Pulsar's WebSocket proxy names as the original role: the proxy has checked its client itself, so that only the
# proxy's own right counts.
WEBSOCKET_ORIGINAL: Final = "__websocket_dummy_original_principle"


class Right(Enum):
    """What an operation needs."""

    OPEN = auto()
    """Nothing, not even to be authenticated."""
    AUTHENTICATED = auto()
    SUPER_USER = auto()
    TENANT_ADMIN = auto()
    PRODUCE = auto()
    CONSUME = auto()
    PRODUCE_OR_CONSUME = auto()
    NAMESPACE_PRODUCE_OR_CONSUME = auto()
    """`produce` or `consume` in the whole namespace, not only on topics in it."""
    NAMESPACE_CONSUME = auto()
    FUNCTIONS = auto()
    SOURCES = auto()
    SINKS = auto()
    PACKAGES = auto()


class Operation(StrEnum):
    """Something to be allowed. Names and groups are Pulsar's; the text is for refusals, `{}` the target."""

    # Without a target.
    PROBE = "ask whether the broker is there"
    METRICS = "read metrics"
    ASK_BROKER = "ask the broker about itself"
    LIST_CLUSTERS = "list clusters"
    # ClusterOperation, BrokerOperation: clusters, brokers, bookies.
    CLUSTER = "read or change clusters"
    BROKER = "read or change what concerns the brokers"
    BOOKIES = "read or change where bookies stand"
    RESOURCE_GROUPS = "read or change resource groups"
    # TenantOperation.
    LIST_TENANTS = "list tenants"
    CREATE_TENANT = "create the tenant"
    UPDATE_TENANT = "change the tenant"
    DELETE_TENANT = "delete the tenant"
    GET_TENANT = "read the tenant"
    LIST_NAMESPACES = "list the namespaces"
    CREATE_NAMESPACE = "create namespaces"
    DELETE_NAMESPACE = "delete namespaces"
    NAMESPACE_PROPERTIES = "read or change the properties"
    # NamespaceOperation.
    CREATE_TOPIC = "create topics"
    GET_TOPICS = "list the topics"
    DELETE_TOPIC = "delete topics"
    GET_BUNDLE = "read the bundles"
    UNLOAD_NAMESPACE = "unload the namespace"
    GET_PERMISSION = "read the permissions"
    GRANT_PERMISSION = "grant permissions"
    REVOKE_PERMISSION = "revoke permissions"
    CLEAR_BACKLOG = "clear backlogs"
    UNSUBSCRIBE_NAMESPACE = "remove subscriptions in the namespace"
    PACKAGES = "use packages"
    FUNCTIONS = "use functions"
    SOURCES = "use sources"
    SINKS = "use sinks"
    # PolicyName with PolicyOperation; topics.
    READ_POLICY = "read the policies"
    WRITE_POLICY = "change the policies"
    WRITE_BROKER_POLICY = "change this policy"
    USE_RESOURCE_GROUP = "use a resource group, or leave one"
    # TopicOperation.
    LOOKUP = "look up {}"
    PRODUCE = "produce to {}"
    CONSUME = "consume from {}"
    SUBSCRIBE = "subscribe to {}"
    UNSUBSCRIBE = "unsubscribe from {}"
    SKIP = "skip messages of {}"
    EXPIRE_MESSAGES = "let messages of {} expire"
    EXPIRE_ALL = "let messages of {} expire in all subscriptions"
    RESET_CURSOR = "reset a subscription of {}"
    PEEK_MESSAGES = "read messages of {}"
    GET_SUBSCRIPTIONS = "list the subscriptions of {}"
    GET_STATS = "read statistics of {}"
    GET_METADATA = "read facts about {}"
    UPDATE_METADATA = "change facts about {}"
    UNLOAD = "unload {}"
    TERMINATE = "terminate {}"
    COMPACT = "compact {}"
    OFFLOAD = "offload {}"
    TRUNCATE = "truncate {}"
    TRIM = "trim {}"
    BACKLOG_SIZE = "read the size of the backlog of {}"
    TOPIC_PERMISSIONS = "read or change the permissions on {}"
    TOPIC_LIMITS = "read or change this limit of {}"
    GET_SCHEMA = "read the schema of {}"
    PUT_SCHEMA = "upload a schema of {}"
    DELETE_SCHEMA = "delete or check schemas of {}"


_O = Operation

RIGHTS: Final[Mapping[Operation, Right]] = {
    _O.PROBE: Right.OPEN,
    _O.METRICS: Right.OPEN,  # as Apache's, unless authenticateMetricsEndpoint
    **dict.fromkeys((_O.ASK_BROKER, _O.LIST_CLUSTERS), Right.AUTHENTICATED),
    **dict.fromkeys(
        (_O.CLUSTER, _O.BROKER, _O.BOOKIES, _O.RESOURCE_GROUPS, _O.LIST_TENANTS, _O.CREATE_TENANT,
         _O.UPDATE_TENANT, _O.DELETE_TENANT, _O.UNLOAD_NAMESPACE, _O.WRITE_BROKER_POLICY, _O.USE_RESOURCE_GROUP),
        Right.SUPER_USER,
    ),
    **dict.fromkeys(
        (_O.GET_TENANT, _O.LIST_NAMESPACES, _O.CREATE_NAMESPACE, _O.DELETE_NAMESPACE, _O.NAMESPACE_PROPERTIES,
         _O.CREATE_TOPIC, _O.DELETE_TOPIC, _O.GET_PERMISSION, _O.GRANT_PERMISSION, _O.REVOKE_PERMISSION,
         _O.READ_POLICY, _O.WRITE_POLICY, _O.UPDATE_METADATA, _O.UNLOAD, _O.TERMINATE, _O.COMPACT, _O.OFFLOAD,
         _O.TRUNCATE, _O.TRIM, _O.TOPIC_PERMISSIONS, _O.TOPIC_LIMITS, _O.DELETE_SCHEMA),
        Right.TENANT_ADMIN,
    ),
    **dict.fromkeys((_O.GET_TOPICS, _O.GET_BUNDLE), Right.NAMESPACE_PRODUCE_OR_CONSUME),
    **dict.fromkeys((_O.CLEAR_BACKLOG, _O.UNSUBSCRIBE_NAMESPACE), Right.NAMESPACE_CONSUME),
    _O.PACKAGES: Right.PACKAGES,
    _O.FUNCTIONS: Right.FUNCTIONS,
    _O.SOURCES: Right.SOURCES,
    _O.SINKS: Right.SINKS,
    **dict.fromkeys((_O.LOOKUP, _O.GET_STATS, _O.GET_METADATA, _O.GET_SCHEMA), Right.PRODUCE_OR_CONSUME),
    **dict.fromkeys((_O.PRODUCE, _O.PUT_SCHEMA), Right.PRODUCE),
    **dict.fromkeys(
        (_O.CONSUME, _O.SUBSCRIBE, _O.UNSUBSCRIBE, _O.SKIP, _O.EXPIRE_MESSAGES, _O.EXPIRE_ALL, _O.RESET_CURSOR,
         _O.PEEK_MESSAGES, _O.BACKLOG_SIZE, _O.GET_SUBSCRIPTIONS),
        Right.CONSUME,
    ),
}  # fmt: skip

assert RIGHTS.keys() == set(Operation), "every operation needs a right"

# The permissions that give a right; one of them is enough.
_ON_TOPICS: Final = {
    Right.PRODUCE: (PRODUCE,),
    Right.CONSUME: (CONSUME,),
    Right.PRODUCE_OR_CONSUME: (PRODUCE, CONSUME),
}
_IN_NAMESPACES: Final = {
    Right.NAMESPACE_PRODUCE_OR_CONSUME: (PRODUCE, CONSUME),
    Right.NAMESPACE_CONSUME: (CONSUME,),
    Right.FUNCTIONS: (FUNCTIONS,),
    Right.SOURCES: (SOURCES,),
    Right.SINKS: (SINKS,),
    Right.PACKAGES: (PACKAGES,),
}


# What a caller may not do with the brokers' own topics and namespaces, even if it was granted to it.
_NOT_WITH_BROKERS_OWN: Final = frozenset({Right.PRODUCE, Right.CONSUME, Right.TENANT_ADMIN, Right.NAMESPACE_CONSUME})

# Without the name of a subscription they are about all subscriptions (rule 6).
_ABOUT_EVERY_SUBSCRIPTION: Final = frozenset({Operation.CLEAR_BACKLOG, Operation.EXPIRE_ALL})


class Need(NamedTuple):
    """An operation, and what it is about."""

    operation: Operation
    tenant: str = ""
    namespace: str = ""
    """`tenant/namespace`."""
    topic: TopicName | None = None
    subscription: str = ""

    @property
    def right(self) -> Right:
        right = RIGHTS[self.operation]
        if right in _NOT_WITH_BROKERS_OWN and (
            is_of_brokers(self.namespace) if self.topic is None else belongs_to_brokers(self.topic)
        ):
            return Right.SUPER_USER  # rule 5
        return right

    @property
    def is_about_every_subscription(self) -> bool:
        return not self.subscription and self.operation in _ABOUT_EVERY_SUBSCRIPTION

    def __str__(self) -> str:
        """For refusals: `consume from persistent://public/default/orders with the subscription billing`."""
        about = str(self.topic or self.namespace or self.tenant)
        text = str(self.operation)
        if "{}" in text:
            text = text.format(about)
        elif about:
            text += f" ({about})"
        return f"{text} with the subscription {self.subscription}" if self.subscription else text


def about_tenant(operation: Operation, tenant: str) -> Need:
    return Need(operation, tenant)


def about_namespace(operation: Operation, namespace: str, subscription: str = "") -> Need:
    """*namespace* is `tenant/namespace`."""
    return Need(operation, namespace.partition("/")[0], namespace, None, subscription)


def about_topic(operation: Operation, topic: TopicName, subscription: str = "") -> Need:
    return Need(operation, topic.tenant, topic.namespace, topic, subscription)


@dataclass(frozen=True, slots=True)
class Rules:
    """The settings of a broker that say who may do what."""

    super_users: frozenset[str] = frozenset()
    proxies: frozenset[str] = frozenset()
    has_wildcards: bool = False
    """A role in a permission may begin or end with `*`."""


class Known(NamedTuple):
    """What is stored about the target of an operation."""

    admins: frozenset[str] = frozenset()
    """The administrators of its tenant; none if there is no such tenant."""
    permissions: Permissions | None = None
    """None: there is no such namespace."""
    has_tenant: bool = True


def role_problem(rules: Rules, caller: Caller) -> str | None:
    """What is wrong with the roles that *caller* names (rule 3); None: nothing."""
    original = caller.original
    if caller.role in rules.proxies:
        if not original:
            return f"{caller.role} is among proxyRoles: a proxy has to name the original role of its client"
        if original in rules.proxies:
            return f"the original role {original} is among proxyRoles itself"
    elif original and original not in (caller.role, WEBSOCKET_ORIGINAL):
        return f"{caller.role} is not among proxyRoles, so it cannot ask for another role"
    return None


def denial(rules: Rules, caller: Caller, need: Need, known: Known) -> str | None:
    """Why *caller* may not do what *need* says; None: it may."""
    if caller.is_trusted or need.right is Right.OPEN:
        return None
    if caller.role is None:
        return f"to {need}, show who you are"  # rule 2
    if (problem := role_problem(rules, caller)) is not None:
        return problem
    for role in _asking(rules, caller):
        if not _allows(rules, role, need, known):
            return f"{role} may not {need}; {_way_out(rules, role, need, known)}"
    return None


def needs_records(rules: Rules, caller: Caller, need: Need) -> bool:
    """Whether the answer depends on what is stored about the target."""
    if caller.is_trusted or caller.role is None or need.right in (Right.OPEN, Right.AUTHENTICATED, Right.SUPER_USER):
        return False
    return not all(role in rules.super_users for role in _asking(rules, caller))


def _asking(rules: Rules, caller: Caller) -> tuple[str, ...]:
    """The roles that all need the right."""
    assert caller.role is not None, "a caller without a role was refused before"
    is_for_another = caller.role in rules.proxies and caller.original and caller.original != WEBSOCKET_ORIGINAL
    return (caller.role, caller.original) if is_for_another and caller.original else (caller.role,)


def _allows(rules: Rules, role: str, need: Need, known: Known) -> bool:
    """Whether *role* may do what *need* says. The order is Apache's: super users, tenant's administrators, grants."""
    right = need.right
    if role in rules.super_users or right is Right.AUTHENTICATED:
        return True
    if right is Right.SUPER_USER:
        return False
    if role in known.admins:
        return True
    permissions = known.permissions
    if right is Right.TENANT_ADMIN or permissions is None:
        return False
    if right in (Right.CONSUME, Right.NAMESPACE_CONSUME) and not _may_use(permissions, role, need):
        return False
    return _is_granted(rules, permissions, role, need)


def _may_use(permissions: Permissions, role: str, need: Need) -> bool:
    """Whether *role* may use the subscription that *need* is about, if it may consume at all."""
    if need.is_about_every_subscription:  # rule 6; with prefixes some may be there that others use
        named = permissions.subscriptions.values()
        return not permissions.needs_prefix and all(role in roles for roles in named if roles)
    subscription = need.subscription
    if not subscription:
        return True
    roles = permissions.subscriptions.get(subscription)
    if roles and role not in roles:
        return False
    return not permissions.needs_prefix or subscription.startswith(role)


def _is_granted(rules: Rules, permissions: Permissions, role: str, need: Need) -> bool:
    """Whether *role* has one of the permissions that give the right."""
    if need.right in _IN_NAMESPACES:
        return _has(rules, permissions.namespace, role, _IN_NAMESPACES[need.right])
    assert need.topic is not None, f"{need.operation.name} is about a topic"
    return _has_on_topic(rules, permissions, role, need.topic, _ON_TOPICS[need.right])


def _has_on_topic(rules: Rules, permissions: Permissions, role: str, topic: TopicName, wanted: Iterable[str]) -> bool:
    wanted = frozenset(wanted)
    if _has(rules, permissions.namespace, role, wanted):
        return True
    if _has(rules, permissions.topics.get(topic.full, {}), role, wanted):
        return True
    return not wanted.isdisjoint(permissions.topics.get(topic.base.full, {}).get(role, ()))  # rule 4


def _has(rules: Rules, grants: Grants, role: str, wanted: Iterable[str]) -> bool:
    """Whether *grants* give *role* one of the permissions *wanted*."""
    wanted = frozenset(wanted)
    if not wanted.isdisjoint(grants.get(role, ())):
        return True
    return rules.has_wildcards and any(
        _matches(pattern, role) for pattern, granted in grants.items() if not wanted.isdisjoint(granted)
    )


def _matches(pattern: str, role: str) -> bool:
    """A `*` stands for anything, at the end or the beginning of a pattern and nowhere else."""
    if pattern.endswith("*") and role.startswith(pattern[:-1]):
        return True
    return pattern.startswith("*") and role.endswith(pattern[1:])


def _way_out(rules: Rules, role: str, need: Need, known: Known) -> str:
    """What would have to be granted. Says more only to callers that have the permission."""
    right = need.right
    if right is Right.SUPER_USER:
        return "that needs a role of superUserRoles"
    if right is Right.TENANT_ADMIN:
        return "that needs an administrator of the tenant"
    wanted = _ON_TOPICS.get(right) or _IN_NAMESPACES[right]
    permissions = known.permissions
    if permissions is None or not _is_granted(rules, permissions, role, need):
        return f"that needs the permission {' or '.join(wanted)}"
    if need.is_about_every_subscription:
        return "some subscriptions are for other roles: name the one that is meant"
    if permissions.needs_prefix and not need.subscription.startswith(role):
        return f"the name of the subscription has to begin with {role} (subscriptionAuthMode Prefix)"
    return "the subscription is for other roles"
