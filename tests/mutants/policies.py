"""Seeded bugs of policies, rates, quotas, settings that change, and bundles that move."""

from typing import Final

from tests.mutants.catalogue import Mutant

_UNIT: Final = "tests/unit/broker"
_THROTTLING: Final = (f"{_UNIT}/topic/rates/test_throttling.py",)
_IN_FORCE: Final = (f"{_UNIT}/test_policies_in_force.py",)
_RECORD: Final = (f"{_UNIT}/policies/topic/test_record.py",)
_SERVICE: Final = (f"{_UNIT}/policies/topic/test_service.py",)
_NODES: Final = (f"{_UNIT}/policies/topic/test_nodes.py",)
_SETTINGS: Final = (f"{_UNIT}/settings/test_dynamic.py",)
_RULES: Final = (f"{_UNIT}/policies/test_rules.py",)
_BALANCING: Final = (f"{_UNIT}/ownership/load/test_balancing.py",)
_SHEDDING: Final = (f"{_UNIT}/ownership/load/test_shedding.py",)
_PLACEMENT: Final = (f"{_UNIT}/ownership/load/test_bundle_placement.py",)
_BUNDLES: Final = (f"{_UNIT}/transfer/test_bundles.py",)
_NON_PERSISTENT: Final = (f"{_UNIT}/test_non_persistent.py",)
_GROUP: Final = (f"{_UNIT}/topic/rates/test_resource_group.py",)
_GROUPS: Final = (f"{_UNIT}/tenancy/test_resource_groups.py",)
_BACKLOG: Final = (
    "tests/unit/managed_ledger/reading/test_backlog_size.py",
    "tests/unit/managed_ledger/test_position_leaving.py",
)

MUTANTS: Final = (
    Mutant(
        "a change that was answered late takes back what was changed since",
        "broker/policies/topic/service.py",
        "self._last_read is not None and position <= self._last_read:\n",
        "False:\n",
        _SERVICE,
    ),
    Mutant(
        "what is set for all clusters goes over what is set for this one",
        "broker/policies/topic/service.py",
        "for record in (everywhere, local) if record",
        "for record in (local, everywhere) if record",
        (f"{_UNIT}/policies/topic/test_service.py",),
    ),
    # -- rates
    Mutant(
        "unused tokens are kept for ever",
        "broker/topic/rates/token_bucket.py",
        "        self._messages = min(self._messages + share * self.messages_max, self.messages_max)\n",
        "        self._messages = self._messages + share * self.messages_max\n",
        _THROTTLING,
    ),
    Mutant(
        "a clock that is set back takes tokens away",
        "broker/topic/rates/token_bucket.py",
        "        if passed_ms <= 0:  # the wall clock was set back: nothing comes in, and nothing is lost\n"
        "            return\n",
        "",
        _THROTTLING,
    ),
    Mutant(
        "the debt of an old rate is paid at the new one, however long that takes",
        "broker/topic/rates/token_bucket.py",
        "        self._bytes = min(max(self._bytes, -self.bytes_max), self.bytes_max)\n",
        "        self._bytes = min(self._bytes, self.bytes_max)\n",
        _THROTTLING,
    ),
    Mutant(
        "of two limits the one that is over first counts",
        "broker/topic/rates/token_bucket.py",
        "            wait = max(wait, -self._bytes / self.bytes_max)\n",
        "            wait = min(wait, -self._bytes / self.bytes_max)\n",
        _THROTTLING,
    ),
    Mutant(
        "consumers get messages above their rate",
        "broker/topic/rates/throttling.py",
        "        return (None, None) if self._bucket is None else self._bucket.room(now_ms)\n",
        "        return (None, None)\n",
        (*_THROTTLING, *_IN_FORCE),
    ),
    Mutant(
        "a relative rate is only its own number",
        "broker/topic/rates/throttling.py",
        "            messages = messages + int(published[0] * rate.period_s) if messages > 0 else messages\n",
        "",
        _THROTTLING,
    ),
    Mutant(
        "subscribing costs nothing",
        "broker/topic/rates/throttling.py",
        "        bucket.spend(1, 0, now_ms)\n",
        "",
        _THROTTLING,
    ),
    # -- resource groups
    Mutant(
        "who comes while others wait in a resource group goes before them",
        "broker/topic/rates/resource_group.py",
        "        if (is_its_turn or not self._waiting) and self._dispatches",
        "        if self._dispatches",
        _GROUP,
    ),
    Mutant(
        "what a resource group's topics read from bookies is spent when it is there",
        "broker/topic/reading/read_rates.py",
        "            group.reserve(messages, read.bytes_max)\n",
        "",
        _GROUP,
    ),
    Mutant(
        "a subscription that is closed keeps what it reserved of its resource group",
        "broker/topic/reading/pump.py",
        "        self.dispatcher = None\n        self.rates.settle()\n",
        "        self.dispatcher = None\n",
        _GROUP,
    ),
    Mutant(
        "a subscription whose topic leaves its resource group waits on",
        "broker/topic/reading/pump.py",
        "            former_group.forget(self)\n        self.run()\n",
        "            former_group.forget(self)\n",
        _GROUP,
    ),
    Mutant(
        "a resource group that is deleted holds its topics",
        "broker/tenancy/resource_groups.py",
        "        group.use(NO_GROUP_RATES)  # rule 3\n        self._changed(name)\n",
        "",
        _GROUPS,
    ),
    Mutant(
        "a change of a resource group that cannot be read is forgotten",
        "broker/tenancy/resource_groups.py",
        '        while isinstance(await attempt(f"{path}: applying a change", step()), Failed)',
        '        if isinstance(await attempt(f"{path}: applying a change", step()), Failed)',
        _GROUPS,
    ),
    Mutant(
        "a resource group that a namespace is in is deleted",
        "broker/tenancy/changes.py",
        "                if node is not None and parse_record(node).get(RESOURCE_GROUP) == name:\n",
        "                if node is not None and parse_record(node).get(RESOURCE_GROUP) == namespace:\n",
        _GROUPS,
    ),
    Mutant(
        "members of a resource group that are not given are lost when it is changed",
        "broker/tenancy/changes.py",
        "            await self._resource_groups.change(path, lambda old: {**old, **fields})\n",
        "            await self._resource_groups.change(path, lambda old: dict(fields))\n",
        _GROUPS,
    ),
    Mutant(
        "topics of the brokers are in resource groups",
        "broker/serving/in_force.py",
        "topic.join(None if topic.name.is_system else self.resource_groups",
        "topic.join(self.resource_groups",
        _GROUPS,
    ),
    Mutant(
        "each client is held by the topic's own rates alone",
        "broker/broker.py",
        "            hold(topic.membership)\n",
        "            pass\n",
        _GROUPS,
    ),
    # -- quotas
    Mutant(
        "the fastest subscription decides about the backlog",
        "broker/topic/reading/backlog_quota.py",
        "    slowest = min(durable)\n",
        "    slowest = max(durable)\n",
        _IN_FORCE,
    ),
    Mutant(
        "a backlog has no age",
        "broker/topic/reading/backlog_quota.py",
        "            if now_ms - oldest_ms >= age.limit_s * 1000:\n",
        "            if oldest_ms < 0:\n",
        _IN_FORCE,
    ),
    Mutant(
        "producers are refused although old messages are passed over",
        "broker/topic/reading/backlog_quota.py",
        "    return used_up.quota.policy != EVICTION\n",
        "    return True\n",
        _IN_FORCE,
    ),
    Mutant(
        "more is passed over than the quota says",
        "managed_ledger/reading/backlog_size.py",
        "            return Position(ledger.ledger_id, min(-(-bytes_to_pass // average), ledger.entries) - 1)\n",
        "            return Position(ledger.ledger_id, ledger.entries - 1)\n",
        _BACKLOG,
    ),
    Mutant(
        "what was read of a ledger counts as backlog",
        "managed_ledger/reading/backlog_size.py",
        "            return total - bytes_before - _bytes_up_to(ledger, position.entry_id)\n",
        "            return total - bytes_before\n",
        _BACKLOG,
    ),
    # -- policies of topics
    Mutant(
        "zero and false of a topic do not count",
        "broker/policies/topic/record.py",
        "    return replace(policies, **{name: value for name, value in changes.items() if value is not None})\n",
        "    return replace(policies, **{name: value for name, value in changes.items() if value})\n",
        _RECORD,
    ),
    Mutant(
        "the rate of a subscription takes those of the others away",
        "broker/policies/topic/record.py",
        '{**of_subscriptions, self.subscription: {"dispatchRate": value}}',
        '{self.subscription: {"dispatchRate": value}}',
        _RECORD,
    ),
    Mutant(
        "a topic is opened before its policies are read",
        "broker/policies/topic/service.py",
        "        if not namespace.is_read and not await namespace.bell.until("
        "lambda: namespace.is_read, self._clock, READ_S):\n",
        "        if namespace.problem:\n",
        _SERVICE,
    ),
    Mutant(
        "of two changes at the same moment one is lost",
        "broker/policies/topic/service.py",
        "            former = None if entry is None else entry[1]\n            changed",
        "            former = None\n            changed",
        _SERVICE,
    ),
    Mutant(
        "an older message takes a change back",
        "broker/policies/topic/service.py",
        "        if position_before is not None and position_before > position:\n            return\n",
        "",
        _SERVICE,
    ),
    Mutant(
        "open topics do not hear of a change",
        "broker/policies/topic/service.py",
        "        if before != policies and self.is_read:\n            self._changed(key[0])\n",
        "",
        _SERVICE,
    ),
    Mutant(
        "topics of brokers have the limits of clients",
        "broker/policies/topic/record.py",
        "        schema_auto_update=True,\n        permissions=policies.permissions,\n",
        "        schema_auto_update=True,\n        permissions=policies.permissions,\n"
        "        max_producers_per_topic=policies.max_producers_per_topic,\n"
        "        encryption_required=policies.encryption_required,\n",
        _RECORD,
    ),
    # -- policies of namespaces, settings
    Mutant(
        "nothing may be kept for some time but of no size",
        "broker/policies/rules.py",
        "    if (minutes == 0) != (mbytes == 0):\n",
        "    if minutes < -1:\n",
        _RULES,
    ),
    Mutant(
        "a quota above what is kept is taken",
        "broker/policies/rules.py",
        "    return (0 < kept_bytes <= quota_bytes) or (0 < kept_s <= quota_s)\n",
        "    return False\n",
        _RULES,
    ),
    Mutant(
        "a setting that is removed keeps its value",
        "broker/settings/dynamic.py",
        "            new_values, applied_texts = dict(self._started_with), {}\n",
        "            new_values, applied_texts = {}, {}\n",
        _SETTINGS,
    ),
    Mutant(
        "one value that is not valid keeps the others away",
        "broker/settings/dynamic.py",
        'is not applied: %s", PATH, name, shown, error)\n                    continue\n',
        'is not applied: %s", PATH, name, shown, error)\n                    return\n',
        _SETTINGS,
    ),
    Mutant(
        "a change holds at the broker that was asked only",
        "broker/settings/dynamic.py",
        "        self._cancel = self._store.watch_node(PATH, self._on_change)\n",
        "",
        _SETTINGS,
    ),
    # -- bundles
    Mutant(
        "a bundle is moved although that makes the other broker the more loaded one",
        "broker/ownership/load/balancing.py",
        "if 0 < usage < difference and may_move(name)}",
        "if 0 < usage and may_move(name)}",
        _BALANCING,
    ),
    Mutant(
        "a bundle goes to and fro",
        "broker/ownership/load/balancing.py",
        " for name in load.bundles if name not in self._moved_ms)",
        " for name in load.bundles)",
        _BALANCING,
    ),
    Mutant(
        "a move waits for brokers that had no part in the last one",
        "broker/ownership/load/balancing.py",
        " for broker in concerned & loads.keys()):  # rule 4\n",
        " for broker in loads):  # rule 4\n",
        _BALANCING,
    ),
    Mutant(
        "nothing moves while brokers take turns in being the least loaded one",
        "broker/ownership/load/balancing.py",
        "and self._is_unequal(pair, former_usage)):",
        "and pair == _ends(former_usage)):",
        _BALANCING,
    ),
    Mutant(
        "a move that failed is waited for as if it had changed the load",
        "broker/ownership/load/balancing.py",
        "        if is_done:\n            self._last_move",
        "        if True:\n            self._last_move",
        _BALANCING,
    ),
    # -- bundles that move by a strategy of Apache's
    Mutant(
        "shedding: a bundle that has just moved leaves again",
        "broker/ownership/load/shedding.py",
        " and bundle not in self.recent and",
        " and",
        _SHEDDING,
    ),
    Mutant(
        "shedding: a broker gives more than its excess",
        "broker/ownership/load/shedding.py",
        "        if chosen and traffic_wanted <= 0:\n            break\n",
        "",
        _SHEDDING,
    ),
    Mutant(
        "shedding: a misspelt weight goes over the right one",
        "broker/ownership/load/shedding.py",
        "    return weight if weight != 1.0 else misspelt\n",
        "    return misspelt\n",
        _SHEDDING,
    ),
    Mutant(
        "shedding: history does not count",
        "broker/ownership/load/shedding.py",
        "broker: self._usage.get(broker, used) * settings.history + used",
        "broker: used * settings.history + used",
        _SHEDDING,
    ),
    Mutant(
        "shedding: a large difference is not told from a small one",
        "broker/ownership/load/shedding.py",
        "                if difference >= settings.high:\n",
        "                if difference > 1:\n",
        _SHEDDING,
    ),
    Mutant(
        "placement: an overloaded broker gets a bundle though another is not",
        "broker/ownership/load/bundle_placement.py",
        "        if asked.settings.weights.usage(load) > asked.settings.overload:\n            return None\n",
        "",
        _PLACEMENT,
    ),
    Mutant(
        "placement: bundles that are on their way do not count",
        "broker/ownership/load/bundle_placement.py",
        "        bundles = {*load.bundles, *asked.arriving.get(broker, ())}\n",
        "        bundles = {*load.bundles}\n",
        _PLACEMENT,
    ),
    Mutant(
        "placement: a strategy that is chosen while brokers run is not used",
        "broker/transfer/load_manager.py",
        "                self._shedder = self._made_shedder()\n",
        "",
        (f"{_UNIT}/transfer/test_load_manager.py", "-k", "strategy"),
    ),
    # -- topics that store nothing
    Mutant(
        "a message goes to a consumer without permits",
        "broker/topic/non_persistent/delivery.py",
        "        return self.active if self.active is not None and self.active.is_available else None\n",
        "        return self.active\n",
        _NON_PERSISTENT,
    ),
    Mutant(
        "clients of one address and port are counted, not of one host",
        "broker/topic/limits.py",
        '    host = address.rpartition(":")[0]\n    return not count_max or sum(other.rpartition(":")[0] == host',
        "    host = address\n    return not count_max or sum(other == host",
        ("tests/unit/broker/topic/publishing/test_producers.py",),
    ),
    Mutant(
        "strict names are asked of partitions of a topic that is there",
        "broker/serving/creation.py",
        "is_partition = 0 <= topic.partition < await self.partitions_of_base(topic)",
        "is_partition = False",
        ("tests/unit/broker/admin/test_strict_names.py",),
    ),
    Mutant(
        "strict names may have any characters",
        "magnetar_core/topics/topic_name.py",
        '        if _ENTITY.match(local) is None:\n            return "only letters',
        '        if not local:\n            return "only letters',
        ("tests/unit/broker/admin/test_strict_names.py",),
    ),
    # -- what other clients of the admin API send
    Mutant(
        "what Go's library leaves out of new policies is taken for a value",
        "broker/policies/rules.py",
        'if value is not None and value != ""}',
        "if value is not None}",
        _RULES,
    ),
    Mutant(
        "permissions that were left out of new policies are null",
        "broker/policies/rules.py",
        'record["auth_policies"] = default_permissions | granted',
        "pass",
        _RULES,
    ),
    Mutant(
        "a partition may have policies of its own",
        "broker/admin/topics/topic_policies.py",
        "        if name.partition >= 0:\n",
        "        if name.partition > 99_999:\n",
        (f"{_UNIT}/admin/test_admin.py",),
    ),
    Mutant(
        "a partitioned topic is not unloaded in its partitions",
        "broker/admin/topics/topics.py",
        'await self._owners.ask_partitions("PUT", name, count, "/unload", fine=(404,))',
        "pass",
        (f"{_UNIT}/admin/test_admin.py",),
    ),
    Mutant(
        "a topic without schemas has no list of them",
        "broker/admin/topics/schemas.py",
        '        return json_answer({"version": NO_VERSION})\n',
        '        raise Refused(404, "Schema not found")\n',
        (f"{_UNIT}/admin/test_admin.py",),
    ),
    # -- what is told of the load
    Mutant(
        "a broker counts once for each bundle that a round moves from it",
        "broker/transfer/load_manager.py",
        "                    moved.add(shed.source)\n",
        "                    moved.add(shed.bundle)\n",
        (f"{_UNIT}/transfer/test_load_manager.py",),
    ),
    Mutant(
        "a network of unknown speed is told as unused",
        "broker/admin/numbers/service_metrics.py",
        "    if nic_gbps:\n",
        "    nic_gbps = nic_gbps or 1e9\n    if nic_gbps:\n",
        (f"{_UNIT}/transfer/test_load_manager.py",),
    ),
    Mutant(
        "the broker's publish latency counts a run of entries as one",
        "broker/topic/publishing/publishing.py",
        "            self._broker_latencies.add(took_s * 1000, end - start)\n",
        "            self._broker_latencies.add(took_s * 1000)\n",
        (f"{_UNIT}/topic/publishing/test_publishing.py",),
    ),
    Mutant(
        "a fraction of a minute is cut off",
        "magnetar_core/runtime/config.py",
        "return lambda text: _parse_int(text) if re.fullmatch",
        "return lambda text: int(float(text)) if re.match",
        ("tests/unit/magnetar_core/runtime/test_config.py",),
    ),
    Mutant(
        "a value that is not among the choices of a setting is taken",
        "magnetar_core/runtime/config.py",
        "        if choices and choice not in choices:\n",
        "        if False:\n",
        ("tests/unit/magnetar_core/runtime/test_config.py",),
    ),
    Mutant(
        "the rules of a group hide those of the groups below it",
        "broker/settings/groups/tls.py",
        "        yield from super().problems()\n        tls = self.tls_settings\n",
        "        tls = self.tls_settings\n",
        ("tests/unit/broker/settings/test_config.py::test_security_that_is_not_whole_is_refused",),
    ),
    # -- the cursor of compaction
    Mutant(
        "the cursor of compaction is never found where it is asked for by name",
        "broker/admin/topics/subscriptions.py",
        "if subscription is None and name == COMPACTION_CURSOR and topic.compactor.cursor:",
        "if subscription is None and name == COMPACTION_CURSOR and name in topic.subscriptions:",
        (f"{_UNIT}/admin/test_compaction_cursor.py",),
    ),
    Mutant(
        "the next compaction is told to have nothing to look at",
        "broker/admin/numbers/stats.py",
        '        "msgBacklogNoDelayed": backlog,\n',
        '        "msgBacklogNoDelayed": 0,\n',
        (f"{_UNIT}/admin/test_compaction_cursor.py",),
    ),
    Mutant(
        "the list of subscriptions has no cursor of compaction",
        "broker/admin/topics/subscriptions.py",
        "sorted([*topic.subscriptions, *compaction])",
        "sorted(topic.subscriptions)",
        (f"{_UNIT}/admin/test_compaction_cursor.py",),
    ),
    Mutant(
        "what another broker changed at the same moment is written over",
        "broker/policies/topic/service.py",
        "                        version = NO_NODE if node is None else node.version\n",
        "                        version = None\n",
        _NODES,
    ),
    Mutant(
        "members that are not known are lost when a node is written again",
        "broker/policies/topic/nodes.py",
        "if value is not None and not _is_derived(name)}",
        'if value is not None and not _is_derived(name) and name != "fresh"}',
        _NODES,
    ),
    Mutant(
        "entries that wait for another cluster are not summed over partitions",
        "broker/admin/numbers/stats.py",
        'entries + waits["replicationBacklog"]',
        'waits["replicationBacklog"]',
        (f"{_UNIT}/admin/test_replication_cursors.py",),
    ),
    Mutant(
        "the index of the last message that compaction kept is what the head says, whatever it says",
        "broker/topic/reading/positions.py",
        "if listed and 0 <= listed[-1] < entry.metadata.num_messages_in_batch:",
        "if listed:",
        (f"{_UNIT}/topic/compaction/test_latest_keys.py",),
    ),
    Mutant(
        "the bytes of a cursor of replication are those of all ledgers",
        "magnetar/inspect/contents_reading.py",
        "if info.ledgerId >= position.ledger_id)",
        "if info.ledgerId >= 0)",
        ("tests/unit/magnetar/inspect/test_contents.py",),
    ),
    Mutant(
        "what could not be removed with a deleted topic stays for the next one",
        "broker/serving/deleting.py",
        "        for pause_s in (*PAUSES_S, 0.0):\n",
        "        for pause_s in (0.0,):\n",
        (*_IN_FORCE, "-k", "stored_beside"),
    ),
    Mutant(
        "changed policies that could not be read are not read again",
        "broker/serving/in_force.py",
        "        while not await reload() and name not in self._retrying and not self._is_stopping:\n",
        "        while not await reload() and False:\n",
        (*_IN_FORCE, "-k", "is_read_again"),
    ),
    Mutant(
        "policies that change behind a split that failed do not reach the topics",
        "broker/broker.py",
        "            self.in_force.look_again(namespace)",
        "            pass",
        (*_IN_FORCE, "-k", "behind_a_split"),
    ),
)
