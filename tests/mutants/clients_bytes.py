"""Seeded bugs of what clients' bytes decide about: system topics, schemas, batches, names of the brokers' own."""

from typing import Final

from tests.mutants.catalogue import Mutant

_UNIT: Final = "tests/unit/broker"
_EVENTS: Final = (f"{_UNIT}/policies/topic/test_events.py",)
_SERVICE: Final = (f"{_UNIT}/policies/topic/test_service.py",)
_RIGHTS: Final = (f"{_UNIT}/security/test_authorization.py", "-k", "own_topics or names_like_theirs")
_AVRO: Final = ("tests/unit/managed_ledger/schemas/test_avro.py",)
_REGISTRY: Final = ("tests/unit/managed_ledger/schemas/test_registry.py",)
_COMPACTION: Final = (f"{_UNIT}/topic/compaction/test_latest_keys.py",)
_IN_TURNS: Final = (f"{_UNIT}/test_compaction_limits.py", "-k", "in_turns")
_WHOLE: Final = (f"{_UNIT}/grpc/test_whole_batches.py",)
_DELIVERIES: Final = (f"{_UNIT}/grpc/test_deliveries.py",)
_RESERVED: Final = (f"{_UNIT}/test_compacted_topics.py", "-k", "no_subscription_of_clients")
_VALUES: Final = "tests/unit/magnetar/client"

MUTANTS: Final = (
    # -- events of system topics
    Mutant(
        "items of an event that take no bytes are not counted before they are read",
        "broker/policies/topic/avro_values.py",
        "            if abs(count) > self._left:\n                self._take(abs(count))\n",
        "            if abs(count) > self._left:\n                count = self._left = 0\n",
        _EVENTS,
    ),
    Mutant(
        "a small event may have as many items as a large one",
        "broker/policies/topic/avro_values.py",
        "min(ITEMS_FREE + ITEMS_PER_BYTE * len(self._data), ITEMS_MAX)",
        "ITEMS_MAX",
        _EVENTS,
    ),
    Mutant(
        "a large event may have any number of items",
        "broker/policies/topic/avro_values.py",
        "min(ITEMS_FREE + ITEMS_PER_BYTE * len(self._data), ITEMS_MAX)",
        "ITEMS_FREE + ITEMS_PER_BYTE * len(self._data)",
        _EVENTS,
    ),
    Mutant(
        "an event nests as deep as its bytes say",
        "broker/policies/topic/avro_values.py",
        "        if depth > DEPTH_MAX:\n",
        "        if depth > 20 * DEPTH_MAX:\n",
        _EVENTS,
    ),
    Mutant(
        "what an event does not have is missing although it has a default",
        "broker/policies/topic/avro_values.py",
        "                record[reader_field.name] = reader_field.default\n",
        "",
        _EVENTS,
    ),
    Mutant(
        "an event of a schema that is not there closes its namespace",
        "broker/policies/topic/service.py",
        "        except NoSuchSchema as error:\n",
        "        except ZeroDivisionError as error:\n",
        _SERVICE,
    ),
    Mutant(
        "an event is passed over while its schema cannot be asked for",
        "broker/policies/topic/service.py",
        "        except NoSuchSchema as error:\n",
        "        except SystemClientError as error:\n",
        _SERVICE,
    ),
    Mutant(
        "one event that cannot be read takes the others of its entry with it",
        "broker/policies/topic/events.py",
        "        except (TopicNameError, Corruption) as error:\n            yield Unreadable(str(error))\n",
        "        except (TopicNameError, Corruption) as error:\n            yield Unreadable(str(error))\n"
        "            return\n",
        _EVENTS,
    ),
    Mutant(
        "each event that cannot be read is a line in the log",
        "broker/policies/topic/service.py",
        "        namespace.has_unreadable = True\n",
        "",
        _SERVICE,
    ),
    Mutant(
        "a batch of events is read in one turn",
        "broker/policies/topic/service.py",
        "islice(changes, EVENTS_PER_TURN)",
        "changes",
        _SERVICE,
    ),
    # -- topics and cursors of the brokers
    Mutant(
        "who may produce to a namespace writes the policies of its topics",
        "broker/security/authorization.py",
        "        if right in _NOT_WITH_BROKERS_OWN and",
        "        if right is Right.CONSUME and",
        _RIGHTS,
    ),
    Mutant(
        "a tenant's administrator may delete the policies of all topics at once",
        "broker/security/authorization.py",
        "Right.CONSUME, Right.TENANT_ADMIN, Right.NAMESPACE_CONSUME})",
        "Right.CONSUME, Right.NAMESPACE_CONSUME})",
        _RIGHTS,
    ),
    Mutant(
        "clients that want transactions may not look up who coordinates them",
        "broker/security/authorization.py",
        "Right.CONSUME, Right.TENANT_ADMIN, Right.NAMESPACE_CONSUME})",
        "Right.CONSUME, Right.TENANT_ADMIN, Right.NAMESPACE_CONSUME, Right.PRODUCE_OR_CONSUME})",
        _RIGHTS,
    ),
    Mutant(
        "the health checks of brokers belong to whom they were granted",
        "broker/security/system_topics.py",
        'r"pulsar/(system|.+:[0-9]{1,5})"',
        'r"public/(system|.+:[0-9]{1,5})"',
        _RIGHTS,
    ),
    Mutant(
        "clients move the cursor of compaction",
        "broker/names.py",
        "    return name in (DEDUPLICATION_CURSOR, COMPACTION_CURSOR) or name.startswith(REPLICATION_PREFIX)\n",
        "    return name == DEDUPLICATION_CURSOR or name.startswith(REPLICATION_PREFIX)\n",
        _RESERVED,
    ),
    # -- schemas
    Mutant(
        "a type that holds by one that fails still holds",
        "managed_ledger/schemas/avro.py",
        "        for pair in needed_by.get(to_visit.pop(), ()):\n            if pair in failed:\n",
        "        for pair in needed_by.get(to_visit.pop(), ()):\n            if pair in failed or pair in open_ways:\n",
        _AVRO,
    ),
    Mutant(
        "a union fails with the first of its branches",
        "managed_ledger/schemas/avro.py",
        "                if open_ways[pair]:\n                    continue\n",
        "",
        _AVRO,
    ),
    Mutant(
        "a name means the first type that is called so anywhere",
        "managed_ledger/schemas/avro.py",
        "self._full.get(_full_name(name, namespace)) or self._full.get(name)",
        "self._short.get(name.rpartition('.')[2])",
        _AVRO,
    ),
    Mutant(
        "a comparison has no end",
        "managed_ledger/schemas/avro.py",
        "        if count > COMPARISONS_MAX:\n",
        "        if count < 0:\n",
        _AVRO,
    ),
    Mutant(
        "a definition may have any size",
        "managed_ledger/schemas/avro.py",
        "    if len(data) > DEFINITION_BYTES_MAX:\n",
        "    if len(data) > 2 * DEFINITION_BYTES_MAX:\n",
        _AVRO,
    ),
    Mutant(
        "what a topic has byte for byte is parsed again",
        "managed_ledger/schemas/registry.py",
        "        if (entry.schema.type, entry.schema.data) == (schema.type, schema.data):\n"
        "            return entry.version\n",
        "        pass\n",
        _REGISTRY,
    ),
    Mutant(
        "large schemas share the processor with each other",
        "managed_ledger/schemas/registry.py",
        "run_in_executor(_threads, work, *arguments)",
        "run_in_executor(None, work, *arguments)",
        _REGISTRY,
    ),
    # -- batches
    Mutant(
        "a compaction looks at a whole batch in one turn",
        "broker/topic/compaction/latest_keys.py",
        "        if self._in_turn < MESSAGES_PER_TURN:\n            return False\n",
        "        if self._in_turn:\n            return False\n",
        (*_COMPACTION, "-k", "have_their_turn"),
    ),
    Mutant(
        "a large batch is unpacked on the loop",
        "broker/topic/compaction/compactor.py",
        "    if opened_entry.unpacked_bytes <= INLINE_BYTES_MAX:\n",
        "    if opened_entry.unpacked_bytes:\n",
        _IN_TURNS,
    ),
    Mutant(
        "all that is left out of a batch is passed over in one turn",
        "broker/grpc/deliveries.py",
        "                    or looked_at >= LOOKED_AT_MAX\n",
        "",
        _DELIVERIES,
    ),
    Mutant(
        "a batch whose first messages are left out comes no more",
        "broker/grpc/consume_call.py",
        "            elif answer.deliveries:  # the rest goes with the next frame\n",
        "            elif answer is not None:  # the rest goes with the next frame\n",
        (f"{_UNIT}/grpc/test_consuming.py", "-k", "but_for_its_end"),
    ),
    Mutant(
        "a batch goes as it is although a part of it is left out",
        "broker/grpc/deliveries.py",
        "            self._batch = None\n",
        "",
        (*_WHOLE, "-k", "left_out"),
    ),
    Mutant(
        "what a damaged batch does not hold is never granted again",
        "magnetar/client/consuming.py",
        "        self._permits += missing\n",
        "",
        (*_WHOLE, "-k", "same_messages"),
    ),
    Mutant(
        "messages that compaction emptied are never acknowledged by who takes batches apart",
        "magnetar/client/consuming.py",
        '            self._acks += [Message(topic, delivery, self, index, b"", b"") for index in emptied]\n',
        "",
        (*_WHOLE, "-k", "same_messages and compacted"),
    ),
    Mutant(
        "the end of a key is taken for the number of a message",
        "magnetar_core/topics/batches.py",
        "        except DecodeError:  # it is the end of another field\n            return len(head)\n",
        "        except DecodeError:  # it is the end of another field\n            return len(start)\n",
        ("tests/property/test_batches.py", "-k", "looks_like"),
    ),
    Mutant(
        "a run that is acknowledged may end behind its batch",
        "broker/grpc/partial.py",
        "        elif not first <= last < size:\n",
        "        elif not first <= last:\n",
        (f"{_UNIT}/grpc/test_acks.py",),
    ),
    Mutant(
        "messages that do not stand one behind the other are acknowledged as a run",
        "magnetar/client/values.py",
        "item._delivery is delivery and item._index == last + 1:\n",
        "item._delivery is delivery:\n",
        (f"{_VALUES}/test_acks.py",),
    ),
    Mutant(
        "how often messages were delivered is forgotten with the only worker that they kill",
        "broker/topic/dispatchers/shared.py",
        "            if not consumer.keeps_counts:\n",
        "            if consumer.keeps_counts:\n",
        (f"{_VALUES}/test_retries.py", "-k", "ends_its_worker"),
    ),
    Mutant(
        "what waited behind a message that kills its worker is a dead letter, too",
        "magnetar/client/retries/letters.py",
        "            if source.buried < excess and not message.problem:\n",
        "            if excess > 0 and not message.problem:\n",
        (f"{_VALUES}/test_retries.py", "-k", "ends_its_worker"),
    ),
    Mutant(
        "messages that only waited in a worker that is stopped count as tried",
        "magnetar/client/consuming.py",
        "ConsumeRequest(leaving=in_hand <= 0)",
        "ConsumeRequest()",
        (f"{_VALUES}/test_retries.py", "-k", "left_in_order"),
    ),
    Mutant(
        "a schema that contains itself is read by the client, whose process deep values end",
        "magnetar/client/codecs/avro.py",
        '            raise ValueError(f"the schema has {name}, which contains itself: such are not read")\n',
        "            return 1\n",
        (f"{_VALUES}/test_codecs.py",),
    ),
    Mutant(
        "items of arrays may take no bytes",
        "magnetar/client/codecs/avro.py",
        "        if size < 1:\n",
        "        if size < 0:\n",
        (f"{_VALUES}/test_codecs.py",),
    ),
    Mutant(
        "a value of Avro is not checked before it is written",
        "magnetar/client/codecs/avro.py",
        "        if not validate(value, schema.schema, raise_errors=False):",
        "        if False:",
        (f"{_VALUES}/test_codecs.py",),
    ),
    Mutant(
        "a copy in the retry topic has the schema of its reader",
        "magnetar/client/async_consumer.py",
        "            letters.schema_of = self._decoder.schema\n",
        "            pass\n",
        (f"{_VALUES}/test_values.py", "-k", "keeps_the_schema_of_its_writer"),
    ),
    Mutant(
        "each partition looks up the schemas for itself",
        "magnetar/client/codecs/versions.py",
        "        self._lock = asyncio.Lock()\n",
        "        self._lock = asyncio.Semaphore(100)\n",
        (f"{_VALUES}/test_values.py", "-k", "looked_up_once"),
    ),
    Mutant(
        "what waits in send_async is left alone when the loop ends",
        "magnetar/client/blocking/sending.py",
        "        if pump.cancelled():\n            self._fail(",
        "        if pump.cancelled():\n            (",
        (f"{_VALUES}/test_send_async.py", "-k", "leaves_no_future_alone", "-o", "timeout=30"),
    ),
    Mutant(
        "send goes in front of what send_async has not begun",
        "magnetar/client/blocking/sending.py",
        "        return self._after_queued(work) if self._begins < self._puts else work()\n",
        "        return work()\n",
        (f"{_VALUES}/test_send_async.py", "-k", "waits_its_turn"),
    ),
)
