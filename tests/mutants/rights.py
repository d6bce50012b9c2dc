"""Seeded bugs of rights that reach further than they say, of names, and of what others of the machine may read."""

from typing import Final

from tests.mutants.catalogue import Mutant

_RULES: Final = ("tests/unit/broker/security/test_authorization.py",)
_ACCESS: Final = ("tests/unit/broker/security/test_access.py", "-o", "timeout=20")
_ROLES: Final = ("tests/golden/test_permissions.py", "-k", "resource_groups or new_namespace")
_NAMES: Final = ("tests/unit/broker/admin/test_odd_names.py", "-o", "timeout=60")
_FOLDER: Final = ("tests/unit/magnetar/processes/test_secure_folder.py",)
_SETTINGS: Final = ("tests/unit/magnetar/processes/test_standalone_settings.py",)
_FILES: Final = ("tests/unit/magnetar_core/runtime/test_files.py", "-k", "others or owners")
_BASIC: Final = ("tests/unit/magnetar_core/security/test_basic.py",)

MUTANTS: Final = (
    Mutant(
        "the roles of a subscription do not hold for the calls of its namespace",
        "broker/security/authorization.py",
        "if right in (Right.CONSUME, Right.NAMESPACE_CONSUME) and not _may_use",
        "if right is Right.CONSUME and not _may_use",
        _RULES,
    ),
    Mutant(
        "who may use one subscription clears the backlogs of all",
        "broker/security/authorization.py",
        "return not permissions.needs_prefix and all(role in roles",
        "return not permissions.needs_prefix and any(role in roles",
        _RULES,
    ),
    Mutant(
        "with prefixes everybody clears all backlogs",
        "broker/security/authorization.py",
        "return not permissions.needs_prefix and all(",
        "return all(",
        _RULES,
    ),
    Mutant(
        "the administrator of the tenant pulsar deletes the brokers' own namespaces",
        "broker/security/authorization.py",
        "is_of_brokers(self.namespace) if self.topic is None else",
        "False if self.topic is None else",
        _RULES,
    ),
    Mutant(
        "the path of a namespace's call names no subscription",
        "broker/admin/rights.py",
        "return about_namespace(operation, namespace_of(request), subscription)",
        "return about_namespace(operation, namespace_of(request))",
        ("tests/unit/broker/admin/test_deputies.py", "-k", "roles_of_a_subscription", "-o", "timeout=60"),
    ),
    Mutant(
        "an administrator of a tenant uses another tenant's resource group",
        "broker/admin/namespaces/namespace_policies.py",
        "self.set_resource_group, Operation.USE_RESOURCE_GROUP)",
        "self.set_resource_group, Operation.WRITE_POLICY)",
        _ROLES,
    ),
    Mutant(
        "a new namespace brings along what its maker may not set",
        "broker/admin/namespaces/namespaces.py",
        "for operation in more_needed_for(policies):",
        "for operation in list(more_needed_for(policies))[1:]:",
        _ROLES,
    ),
    Mutant(
        "the clients of an administrator that was removed go on",
        "broker/broker.py",
        "own = [topic for topic in topics if topic.name.tenant == tenant]",
        "own = [topic for topic in topics if topic.name.tenant != tenant]",
        _ACCESS,
    ),
    Mutant(
        "the streams over gRPC of an administrator that was removed go on",
        "broker/broker.py",
        "        for namespace in {topic.name.namespace for topic in topics}:\n",
        "        for namespace in set[str]():\n",
        _ACCESS,
    ),
    Mutant(
        "ten thousand producers are asked about in one turn",
        "broker/security/rechecks.py",
        "enumerate(list(topic.producers.values()), 1):\n        if number % CLIENTS_PER_TURN == 0:",
        "enumerate(list(topic.producers.values()), 1):\n        if number < 0:",
        _ACCESS,
    ),
    Mutant(
        "names that no tenant has push out those of others",
        "broker/tenancy/administrators.py",
        "                raise _NoTenant(tenant)\n",
        "                return frozenset()\n",
        ("tests/unit/test_limits_overflow.py", "-k", "tenant"),
    ),
    Mutant(
        "the bookies of a secured standalone ask nobody",
        "magnetar/processes/secure_folder.py",
        'return {"tlsDirectory": str(self.path / BOOKIES)}',
        "return {}",
        _FOLDER,
    ),
    Mutant(
        "the authority of a secured standalone signs for its bookies",
        "magnetar/processes/secure_folder.py",
        'authority = new_authority("magnetar standalone, bookies", self._now)',
        "authority = self._authority()",
        _FOLDER,
    ),
    Mutant(
        "metrics of a secured standalone are for everybody",
        "magnetar/processes/standalone_settings.py",
        '"authenticateMetricsEndpoint": "true",',
        '"authenticateMetricsEndpoint": "false",',
        _SETTINGS,
    ),
    Mutant(
        "a topic is made whose name ends the lines of logs",
        "broker/serving/creation.py",
        "if character is not None and not is_partition:",
        "if character is not None and is_partition:",
        _NAMES,
    ),
    Mutant(
        "a subscription is made whose name steers terminals",
        "broker/names.py",
        "if (character := controlling(name)) is not None:",
        "if (character := None) is not None:",
        _NAMES,
    ),
    Mutant(
        "a subscription that is there by such a name is not deleted",
        "broker/admin/http.py",
        '"subscription": (re.compile(r".+", re.DOTALL), "it is not empty"),',
        '"subscription": _ANY_PART,',
        _NAMES,
    ),
    Mutant(
        "a name makes lines of its own in a log",
        "magnetar_core/runtime/observe.py",
        "        return visible(text)\n",
        "        return text\n",
        ("tests/unit/magnetar_core/runtime/test_observe.py",),
    ),
    Mutant(
        "everybody reads what is stored",
        "magnetar_core/runtime/files.py",
        "FILE_MODE = 0o640",
        "FILE_MODE = 0o644",
        _FILES,
    ),
    Mutant(
        "a folder is taken for closed though its link leads elsewhere",
        "magnetar_core/runtime/files.py",
        "path = os.path.realpath(directory)",
        "path = os.path.abspath(directory)",
        _FILES,
    ),
    Mutant(
        "the time of a refusal tells which kind of hash a user has",
        "magnetar_core/security/basic.py",
        "if hashed is None or kind != _kind(hashed):",
        "if hashed is None:",
        _BASIC,
    ),
)
