"""Seeded bugs of what hostile clients have found at running servers (`tests/abuse`)."""

from typing import Final

from tests.mutants.catalogue import Mutant

_ROLES: Final = "tests/abuse/test_roles.py::test_they_harm_nobody"
_HOSTILE: Final = "tests/abuse/test_hostile_server.py"
_CLIENT: Final = ("tests/unit/magnetar/client/test_followed.py", "-o", "timeout=20")

MUTANTS: Final = (
    Mutant(
        "an event without a schema keeps the policies of a namespace from being read",
        "broker/serving/schemas.py",
        "            elif strategy is not Strategy.ALWAYS_COMPATIBLE:\n",
        "            else:\n",
        ("tests/unit/broker/policies/topic/test_service.py", "-k", "without_a_schema"),
    ),
    Mutant(
        "a redirect leads to a path in which dots were taken out",
        "broker/admin/owners.py",
        '    redirect.headers["Location"] = url\n',
        "",
        ("tests/unit/broker/admin/test_deputies.py", "-k", "same_path"),
    ),
    Mutant(
        "a property that is no text is taken for one, where there are several",
        "broker/wire/frames.py",
        "    return all(bytes not in set(map(type, map(attrgetter(field.name), messages))) for field, _ in fields)\n",
        "    return True\n",
        ("tests/unit/broker/wire/test_frames.py", "-k", "not_utf8"),
    ),
    Mutant(
        "all names of a namespace are read in one turn",
        "broker/broker.py",
        "                await asyncio.sleep(0)  # others have their turn\n            topics =",
        "                pass\n            topics =",
        ("tests/unit/broker/test_non_persistent.py", "-k", "listed_in_turns"),
    ),
    # -- found by drawn inputs
    Mutant(
        "a role makes topics as quickly as it asks for them",
        "broker/arrivals.py",
        "MADE_AT_ONCE: Final = 16\n",
        "MADE_AT_ONCE: Final = 10_000\n",
        (f"{_ROLES}[topics]",),
    ),
    Mutant(
        "who is no administrator any more keeps its clients",
        "broker/broker.py",
        '            self._tasks.spawn(self._recheck(own), f"administrators of {tenant}")\n',
        "            pass\n",
        (f"{_ROLES}[revoked]",),
    ),
    Mutant(
        "a request over gRPC is read before it is known who calls",
        "broker/grpc/service.py",
        "message = await _guard(read, context, context, self._broker.doors)",
        "message = await _guard(read, context, context)",
        (f"{_ROLES}[calls]",),
    ),
    Mutant(
        "auto-recovery takes bodies in an encoding",
        "magnetar_core/runtime/http/server.py",
        'if encodings not in ("", "identity"):',
        'if encodings not in ("", "identity") and not request.path.startswith("/manage"):',
        (f"{_ROLES}[bodies]",),
    ),
    Mutant(
        "a name that begins like one of this machine is one of its names",
        "magnetar_core/runtime/http/hosts.py",
        'if "." not in name or name.endswith(_PRIVATE)',
        'if "." not in name or name.startswith("localhost") or name.endswith(_PRIVATE)',
        ("tests/abuse/test_hosts.py::test_a_page_of_others_reads_and_changes_nothing",),
    ),
    Mutant(
        "a bookie that demands certificates answers in clear text",
        "bookie/access.py",
        "return not self.demand_tls and self.roles is None",
        "return self.roles is None",
        ("tests/abuse/test_secured.py::test_who_has_no_certificate_for_it_reads_and_writes_nothing",),
    ),
    Mutant(
        "a host whose name begins like one of the cluster gets the token",
        "magnetar_core/security/followed.py",
        "return host in self._known or any(",
        "return any(host.startswith(one) for one in self._known) or any(",
        (f"{_HOSTILE}::test_commands[http]",),
    ),
    Mutant(
        "a peer of brokers sends them anywhere",
        "broker/admin/owners.py",
        "        if base in [",
        "        if base.startswith('http') or base in [",
        (f"{_HOSTILE}::test_brokers_among_themselves",),
    ),
    Mutant(
        "an entry unpacks to more than a task of Spark takes",
        "connectors/spark/task/entries.py",
        "            check_unpacked(metadata.uncompressed_size, bytes_max)\n",
        "            pass\n",
        ("tests/unit/connectors/spark/test_hostile.py", "-k", "limit_that_an_option_sets"),
    ),
    Mutant(
        "a message in chunks unpacks to whatever it says",
        "connectors/spark/task/entries.py",
        "            check_unpacked(size, max(",
        "            check_unpacked(0, max(",
        ("tests/unit/connectors/spark/test_hostile.py", "-k", "four_times_its_chunks"),
    ),
    Mutant(
        "a topic has as many partitions as its broker says",
        "magnetar/client/async_topics.py",
        "if not (0 <= answer.partitions <= PARTITIONS_MAX and",
        "if not (answer.partitions <= PARTITIONS_MAX and",
        (f"{_HOSTILE}::test_clients_of_the_topic_api",),
    ),
    Mutant(
        "whatever has a colon and digits is the address of a broker",
        "magnetar/client/brokers.py",
        "if is_url or _ADDRESS.fullmatch(address) is None:",
        'if is_url or not address.rpartition(":")[2].isdigit():',
        _CLIENT,
    ),
)
