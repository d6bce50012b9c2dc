"""Mistakes that the broker could make (see `catalogue`)."""

from tests.mutants.catalogue import Mutant

UNIT = "tests/unit/broker"
RULES = (f"{UNIT}/topic/test_rules.py",)
DISPATCH = (f"{UNIT}/topic/test_dispatch.py",)
ACKS = (f"{UNIT}/topic/test_acks_over_ledgers.py",)
DISPATCH_PROPERTIES = ("tests/property/test_broker_dispatch.py",)
WHOLE = (f"{UNIT}/test_broker.py",)
OWNERSHIP = (f"{UNIT}/ownership/test_ownership.py",)
RIGHTS = (f"{UNIT}/security/test_authorization.py",)
ACCESS = (f"{UNIT}/security/test_access.py",)
ROLES = ("tests/golden/test_permissions.py",)

MUTANTS = (
    # -- de-duplication
    Mutant(
        "the last sequence id may come again",
        "broker/topic/deduplication.py",
        "        if highest > self._pushed.get(producer, _NONE):\n",
        "        if highest >= self._pushed.get(producer, _NONE):\n",
        RULES,
    ),
    Mutant(
        "what is in flight is confirmed",
        "broker/topic/deduplication.py",
        "return Verdict.DUPLICATE if highest <= self._persisted.get(producer, _NONE) else Verdict.IN_FLIGHT",
        "return Verdict.DUPLICATE",
        RULES,
    ),
    Mutant(
        "after a failure nothing may come again",
        "broker/topic/deduplication.py",
        "        self._pushed = dict(self._persisted)\n",
        "        pass\n",
        RULES,
    ),
    Mutant(
        "a batch is known by its first number",
        "broker/topic/deduplication.py",
        "return max(sequence, _signed(highest_sequence_id)) if highest_sequence_id else sequence",
        "return sequence",
        RULES,
    ),
    Mutant(
        "chunks of a message are told apart",
        "broker/topic/deduplication.py",
        "        if metadata.num_chunks_from_msg > 1 and metadata.chunk_id != metadata.num_chunks_from_msg - 1:\n"
        "            return\n",
        "",
        RULES,
    ),
    Mutant(
        "a snapshot holds what is not durable",
        "broker/topic/deduplication.py",
        "        self.entries_since_snapshot = 0\n        return dict(self._persisted)\n",
        "        self.entries_since_snapshot = 0\n        return dict(self._pushed)\n",
        RULES,
    ),
    Mutant(
        "sequence ids are unsigned",
        "broker/topic/deduplication.py",
        "return sequence_id - 2 * _SIGN if sequence_id >= _SIGN else sequence_id",
        "return sequence_id",
        RULES,
    ),
    Mutant(
        "connected producers are forgotten as well",
        "broker/topic/deduplication.py",
        "            if name in connected:\n",
        "            if name in ():\n",
        RULES,
    ),
    # -- who may write
    Mutant(
        "an outdated epoch is taken",
        "broker/topic/producer_access.py",
        "if topic_epoch is not None and self.epoch is not None and topic_epoch < self.epoch:",
        "if topic_epoch is not None and self.epoch is not None and topic_epoch < 0:",
        RULES,
    ),
    Mutant(
        "an exclusive producer joins shared ones",
        "broker/topic/producer_access.py",
        '        if producers:\n            raise ProducerFenced(f"Topic has {producers} existing shared producers")\n',
        "",
        RULES,
    ),
    Mutant(
        "shared producers join while somebody waits",
        "broker/topic/producer_access.py",
        "taken = self.holder is not None or bool(self.waiting)",
        "taken = self.holder is not None",
        RULES,
    ),
    Mutant(
        "who waits last is next",
        "broker/topic/producer_access.py",
        "producer, topic_epoch = self.waiting.popleft()",
        "producer, topic_epoch = self.waiting.pop()",
        RULES,
    ),
    Mutant(
        "a new holder gets the epoch of the former one",
        "broker/topic/producer_access.py",
        "return 0 if self.epoch is None else self.epoch + 1",
        "return 0 if self.epoch is None else self.epoch",
        RULES,
    ),
    Mutant(
        "a holder that leaves keeps the topic",
        "broker/topic/producer_access.py",
        "        if self.holder == producer:\n            self.holder = None\n            return True\n",
        "        if self.holder == producer:\n            return True\n",
        RULES,
    ),
    # -- keys
    Mutant(
        "a key's hash may be 0",
        "broker/topic/sticky_keys.py",
        "return murmur3(sticky_key(metadata)) % HASHES or 1",
        "return murmur3(sticky_key(metadata)) % HASHES",
        RULES,
    ),
    Mutant(
        "the key comes before the ordering key",
        "broker/topic/sticky_keys.py",
        '    if metadata.HasField("ordering_key"):\n        return metadata.ordering_key\n',
        '    if metadata.HasField("ordering_key") and not metadata.HasField("partition_key"):\n'
        "        return metadata.ordering_key\n",
        RULES,
    ),
    Mutant(
        "a ring's last point has no owner",
        "broker/topic/sticky_keys.py",
        "        return self._owners[ring[at if at < len(ring) else 0]][0]\n",
        "        return self._owners[ring[at]][0] if at < len(ring) else None\n",
        RULES,
    ),
    Mutant(
        "ranges of two consumers may meet in one hash",
        "broker/topic/sticky_keys.py",
        "            if following <= end:\n",
        "            if following < end:\n",
        RULES,
    ),
    Mutant(
        "the end of a range is not part of it",
        "broker/topic/sticky_keys.py",
        "if at >= 0 and self._ranges[at][1] >= hash_:",
        "if at >= 0 and self._ranges[at][1] > hash_:",
        RULES,
    ),
    # -- replays
    Mutant(
        "what waits again waits twice",
        "broker/topic/replay_set.py",
        "        if position in self._hashes:\n            return\n        self._hashes[position] = hash_\n",
        "        self._hashes[position] = hash_\n",
        DISPATCH_PROPERTIES,
    ),
    Mutant(
        "the position itself stays when all up to it goes",
        "broker/topic/replay_set.py",
        "end = bisect_left(self._sorted, Position(position.ledger_id, position.entry_id + 1))",
        "end = bisect_left(self._sorted, position)",
        RULES,
    ),
    # -- dispatch
    Mutant(
        "entries go to consumers without permits",
        "broker/topic/consumer.py",
        "return self.permits > 0 and not self.is_blocked",
        "return self.permits >= 0 and not self.is_blocked",
        DISPATCH,
    ),
    Mutant(
        "a permit is counted twice",
        "broker/topic/consumer.py",
        "self.permits = min(self.permits + permits, PERMITS_MAX)",
        "self.permits = min(self.permits + 2 * permits, PERMITS_MAX)",
        DISPATCH,
    ),
    Mutant(
        "a batch costs one permit",
        "broker/topic/consumer.py",
        "        self.permits -= messages\n",
        "        self.permits -= 1\n",
        DISPATCH,
    ),
    Mutant(
        "who becomes active does not begin anew",
        "broker/topic/dispatchers/single_active.py",
        "        self._active_from_ms = None\n        self._cursor.rewind()\n",
        "        self._active_from_ms = None\n",
        DISPATCH,
    ),
    Mutant(
        "an entry that came for the former active consumer goes to nobody",
        "broker/topic/dispatchers/single_active.py",
        "        if active is None or self._active_from_ms is not None:\n            return  # the next active",
        "        if active is None:\n            return  # the next active",
        DISPATCH,
    ),
    Mutant(
        "the active consumer's unacknowledged entries are not read again",
        "broker/topic/dispatchers/single_active.py",
        "        if consumer is self.active and self._active_from_ms is None:\n            self._cursor.rewind()\n",
        "",
        DISPATCH,
    ),
    Mutant(
        "what a consumer leaves behind is lost",
        "broker/topic/dispatchers/shared.py",
        "        self.consumers.remove(consumer)\n        self._give_back(consumer, list(consumer.pending))\n",
        "        self.consumers.remove(consumer)\n",
        DISPATCH,
    ),
    Mutant(
        "what cannot go out is forgotten",
        "broker/topic/dispatchers/shared.py",
        "            if consumer is None:\n                self._replay.add(position, hash_)\n"
        "                continue\n",
        "            if consumer is None:\n                continue\n",
        DISPATCH,
    ),
    Mutant(
        "the limit of what is not acknowledged is one too high",
        "broker/topic/dispatchers/shared.py",
        "            if consumer.unacked_messages >= limit:\n",
        "            if consumer.unacked_messages > limit:\n",
        DISPATCH,
    ),
    Mutant(
        "a consumer that was blocked stays so",
        "broker/topic/dispatchers/shared.py",
        "            elif consumer.is_blocked and consumer.unacked_messages <= limit // 2:\n"
        "                consumer.is_blocked = False\n",
        "",
        DISPATCH,
    ),
    Mutant(
        "a key overtakes itself",
        "broker/topic/dispatchers/key_shared.py",
        "        if position not in self._replay and self._replay.waiting_by_hash.get(hash_) "
        "and not self.allows_out_of_order:\n            return None\n",
        "",
        DISPATCH_PROPERTIES,
    ),
    Mutant(
        "a key goes to a new consumer while the former one has some of it",
        "broker/topic/dispatchers/key_shared.py",
        "if holder is not None and holder[0] is not consumer and not self.allows_out_of_order:",
        "if holder is not None and holder[0] is None and not self.allows_out_of_order:",
        DISPATCH,
    ),
    Mutant(
        "entries that a give-back overtook are sent",
        "broker/topic/dispatchers/key_shared.py",
        "        if read.first is not None and self._is_overtaken:\n            return",
        "        if read.first is None and self._is_overtaken:\n            return",
        DISPATCH_PROPERTIES,
    ),
    Mutant(
        "a key's last entry leaves its holder behind",
        "broker/topic/dispatchers/key_shared.py",
        "            del self._holders[hash_]\n            if self._draining",
        "            if self._draining",
        DISPATCH,
    ),
    Mutant(
        "delayed messages are not woken",
        "broker/topic/dispatchers/shared.py",
        "        if self._delayed:\n            self._wake_delayed()\n",
        "",
        DISPATCH,
    ),
    # -- subscriptions
    Mutant(
        "an ack's entry is unsigned",
        "broker/topic/subscription.py",
        "position = named_position(message_id.ledgerId, message_id.entryId)",
        "position = Position(message_id.ledgerId, message_id.entryId)",
        ACKS,
    ),
    Mutant(
        "a cumulative ack moves a Shared cursor",
        "broker/topic/subscription.py",
        "        if self.type not in _SINGLE_ACTIVE or len(ack.message_id) != 1:\n",
        "        if len(ack.message_id) != 1:\n",
        DISPATCH,
    ),
    Mutant(
        "an ack inside a batch acknowledges the batch",
        "broker/topic/subscription.py",
        "            self.cursor.mark_delete(self._ledger.previous_position(position))\n",
        "            self.cursor.mark_delete(position)\n",
        DISPATCH,
    ),
    Mutant(
        "a flow wakes nobody",
        "broker/topic/subscription.py",
        "        consumer.add_permits(permits)\n        self.pump()\n",
        "        consumer.add_permits(permits)\n",
        DISPATCH,
    ),
    Mutant(
        "a failed read is not tried again",
        "broker/topic/subscription.py",
        "                self._arm(self._host.now_ms() + self._retry_ms)\n                return\n",
        "                return\n",
        DISPATCH,
    ),
    Mutant(
        "consumers go on while their cursor is reset",
        "broker/topic/subscription.py",
        "            self.disconnect_consumers()\n            await self.cursor.reset(position)\n",
        "            await self.cursor.reset(position)\n",
        DISPATCH,
    ),
    # -- topics
    Mutant(
        "a topic is opened twice",
        "broker/broker.py",
        "        if loaded is not None and not loaded.is_closed:\n            return loaded\n"
        "        return await self._loading",
        "        return await self._loading",
        WHOLE,
    ),
    Mutant(
        "what is under way is begun once more",
        "magnetar_core/runtime/tasks.py",
        "        if task is None or task.done():\n            task = self._under_way[key] = ",
        "        if True:\n            task = self._under_way[key] = ",
        ("tests/unit/magnetar_core/runtime/test_tasks.py",),
    ),
    Mutant(
        "a topic is opened while it is being closed",
        "broker/broker.py",
        "            await asyncio.wait([ending])\n",
        "            break\n",
        WHOLE,
    ),
    Mutant(
        "a topic stays open that lost its bundle while it was opened",
        "broker/broker.py",
        "                if not self.ownership.owns(name) or self._is_stopping:  # rule 2\n",
        "                if self._is_stopping:  # rule 2\n",
        WHOLE,
    ),
    Mutant(
        "a receipt overtakes those that are held back",
        "broker/topic/publishing.py",
        "        if self._withheld or not self._ownership.may_acknowledge():\n            self._withheld.append",
        "        if not self._ownership.may_acknowledge():\n            self._withheld.append",
        WHOLE,
    ),
    Mutant(
        "receipts leave although the session is in doubt",
        "broker/topic/publishing.py",
        "        if self._withheld or not self._ownership.may_acknowledge():\n            self._withheld.append",
        "        if self._withheld:\n            self._withheld.append",
        WHOLE,
    ),
    Mutant(
        "receipts name the entry before",
        "broker/topic/publishing.py",
        "messages, _) in enumerate(contexts, first_entry_id):",
        "messages, _) in enumerate(contexts, first_entry_id - 1):",
        WHOLE,
    ),
    Mutant(
        "a failed write leaves its producers connected",
        "broker/topic/topic.py",
        "        self._producers.disconnect_all()\n        if not self.ledger.is_open:",
        "        if not self.ledger.is_open:",
        WHOLE,
    ),
    Mutant(
        "two producers have one name",
        "broker/topic/producers.py",
        "            if not are_generated or producer.epoch <= other.epoch:\n                raise ProducerBusy(",
        "            if False:\n                raise ProducerBusy(",
        WHOLE,
    ),
    Mutant(
        "the sequence ids of what stands behind the snapshot are not learned",
        "broker/topic/stored_deduplication.py",
        "                        state.replay(parse_metadata(entry.data))\n",
        "                        parse_metadata(entry.data)\n",
        WHOLE,
    ),
    # -- ownership
    Mutant(
        "a bundle that is being given back is served",
        "broker/ownership/ownership.py",
        "return bundle in self._owned and bundle not in self._unloading",
        "return bundle in self._owned",
        OWNERSHIP,
    ),
    Mutant(
        "a session that ended leaves the bundles",
        "broker/ownership/ownership.py",
        "            self._lose(sorted(self._owned))\n",
        "",
        OWNERSHIP,
    ),
    Mutant(
        "a bundle's node is removed although it is another broker's",
        "broker/ownership/ownership.py",
        "        if node is not None and node.own:\n            with contextlib.suppress(NoNode, VersionConflict):",
        "        if node is not None:\n            with contextlib.suppress(NoNode, VersionConflict):",
        OWNERSHIP,
    ),
    Mutant(
        "a bundle that another took meanwhile is ours",
        "broker/ownership/ownership.py",
        "            except (VersionConflict, OutcomeUnknown):\n                return\n"
        "            self._adopt(bundle)\n",
        "            except (VersionConflict, OutcomeUnknown):\n                pass\n"
        "            self._adopt(bundle)\n",
        OWNERSHIP,
    ),
    Mutant(
        "topics stay open when their bundle's node is gone",
        "broker/ownership/ownership.py",
        "            if (node is None or not node.own) and bundle in self._owned:\n"
        "                self._lose([bundle])\n",
        "            pass\n",
        OWNERSHIP,
    ),
    Mutant(
        "nobody is told that a bundle was lost",
        "broker/ownership/ownership.py",
        "            for callback in list(self._lost_callbacks):\n                callback(bundles)\n",
        "",
        OWNERSHIP,
    ),
    Mutant(
        "an owner's node that goes while we begin to watch is waited for",
        "broker/ownership/ownership.py",
        "            if now is None or now.version != node.version:\n                return True\n",
        "",
        OWNERSHIP,
    ),
    Mutant(
        "receipts leave at any time of the session",
        "broker/ownership/bundle_assignment.py",
        "return now_s - last_answer_s < session_timeout_s",
        "return now_s - last_answer_s < 2 * session_timeout_s",
        OWNERSHIP,
    ),
    # -- who may do what
    Mutant(
        "a proxy needs only its own right",
        "broker/security/authorization.py",
        "return (caller.role, caller.original) if is_for_another and caller.original else (caller.role,)",
        "return (caller.role,)",
        RIGHTS,
    ),
    Mutant(
        "a proxy needs only its client's right",
        "broker/security/authorization.py",
        "return (caller.role, caller.original) if is_for_another and caller.original else (caller.role,)",
        "return (caller.original,) if is_for_another and caller.original else (caller.role,)",
        RIGHTS,
    ),
    Mutant(
        "anybody speaks for another role",
        "broker/security/authorization.py",
        "    elif original and original not in (caller.role, WEBSOCKET_ORIGINAL):\n",
        "    elif False:\n",
        RIGHTS,
    ),
    Mutant(
        "an administrator of a tenant counts as a super user",
        "broker/security/authorization.py",
        "    if right is Right.SUPER_USER:\n        return False\n",
        "",
        RIGHTS,
    ),
    Mutant(
        "a caller that has shown nothing is let in",
        "broker/security/authorization.py",
        '        return f"to {need}, show who you are"  # rule 2\n',
        "        return None\n",
        RIGHTS,
    ),
    Mutant(
        "a subscription's roles are not asked for",
        "broker/security/authorization.py",
        "    if roles and role not in roles:\n",
        "    if False:\n",
        RIGHTS,
    ),
    Mutant(
        "a revoked permission leaves producers there",
        "broker/security/rechecks.py",
        "            topic.disconnect_producer(producer)\n",
        "            pass\n",
        ACCESS,
    ),
    Mutant(
        "a deleted topic leaves its permissions",
        "broker/broker.py",
        "        await self._forget_permissions(name)\n",
        "",
        ACCESS,
    ),
    Mutant(
        "calls of the topic API are not asked about",
        "broker/grpc/service.py",
        "                await self._broker.access.check(caller_of(context), _need(operation, wanted))\n",
        "",
        ACCESS,
    ),
    Mutant(
        "lookups are not asked about",
        "broker/binary/guard.py",
        "        await self.check(about_topic(operation, name, subscription))\n",
        "",
        ROLES,
    ),
    Mutant(
        "calls of the admin API are not asked about",
        "broker/admin/rights.py",
        "                await access.check(caller_of(request), need_of(request, operation))\n",
        "                pass\n",
        ROLES,
    ),
)
