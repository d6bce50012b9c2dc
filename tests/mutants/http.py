"""Seeded bugs of the HTTP servers, of descriptors, of what brokers ask for others, and of where credentials go."""

from typing import Final

from tests.mutants.catalogue import Mutant

_RUNTIME: Final = "tests/unit/magnetar_core/runtime"
_SERVER: Final = (f"{_RUNTIME}/http/test_server.py", "-o", "timeout=20")
_DESCRIPTORS: Final = (f"{_RUNTIME}/process/test_descriptors.py", "-o", "timeout=20")
_HOSTS: Final = (f"{_RUNTIME}/http/test_hosts.py",)
_NUMBERS: Final = (f"{_RUNTIME}/test_numbers.py", "-k", "json")
_TOKENS: Final = ("tests/unit/magnetar_core/security/test_tokens.py",)
_DEPUTIES: Final = ("tests/unit/broker/admin/test_deputies.py", "-o", "timeout=60")
_FOLLOWED: Final = ("tests/unit/magnetar_core/security/test_followed.py",)
_COMMANDS: Final = ("tests/unit/magnetar/inspect/test_broker_admin.py",)
_TOPICS: Final = ("tests/unit/magnetar/client/test_followed.py", "-o", "timeout=20")
_DOORS: Final = ("tests/unit/magnetar/processes/test_http_doors.py", "-o", "timeout=30")

_PACING: Final = (f"{_RUNTIME}/http/test_pacing.py", "-o", "timeout=20")

MUTANTS: Final = (
    Mutant(
        "whatever a socket brings is parsed at once",
        "magnetar_core/runtime/http/pacing.py",
        "        if not self.has_more and self._pace.takes(len(data)):\n",
        "        if not self.has_more and self._pace.takes(0):\n",
        _PACING,
    ),
    Mutant(
        "a connection with pieces that wait is read",
        "magnetar_core/runtime/http/pacing.py",
        "        if not self._is_held:\n",
        "        if self._is_wanted:\n",
        _PACING,
    ),
    Mutant(
        "answers that nobody reads have no sum",
        "magnetar_core/runtime/http/answers.py",
        "        while self._going and self.bytes + size_bytes > self._bytes_max:\n",
        "        while self._going and size_bytes > self._bytes_max:\n",
        _PACING,
    ),
    Mutant(
        "who does not read keeps others from their answers",
        "magnetar_core/runtime/http/answers.py",
        "            if age_s < SLOW_S:\n",
        "            if age_s >= 0:\n",
        _PACING,
    ),
    Mutant(
        "the library unpacks bodies as they come",
        "magnetar_core/runtime/http/server.py",
        "auto_decompress=False",
        "auto_decompress=True",
        _SERVER,
    ),
    Mutant(
        "an encoded body is handed to its handler",
        "magnetar_core/runtime/http/server.py",
        'if encodings not in ("", "identity"):',
        'if encodings not in ("", "identity", "gzip"):',
        _SERVER,
    ),
    Mutant(
        "a connection that sends nothing stays",
        "magnetar_core/runtime/http/server.py",
        "keepalive_timeout=idle_s,",
        "keepalive_timeout=3600,",
        _SERVER,
    ),
    Mutant(
        "connections above the limit are served",
        "magnetar_core/runtime/http/server.py",
        "if len(server.connections) >= most:",
        "if len(server.connections) > most:",
        _SERVER,
    ),
    Mutant(
        "bodies under way are counted and never given back",
        "magnetar_core/runtime/http/bodies.py",
        "            self.bytes -= reading.bytes\n            reading.bytes = 0\n",
        "",
        _SERVER,
    ),
    Mutant(
        "who sends slowly keeps others out",
        "magnetar_core/runtime/http/bodies.py",
        "if oldest is reading or age_s < SLOW_S:",
        "if oldest is reading or True:",
        _SERVER,
    ),
    Mutant(
        "a connection takes a descriptor of storage",
        "magnetar_core/runtime/process/descriptors.py",
        "        if number < most:",
        "        if number <= most:",
        _DESCRIPTORS,
    ),
    Mutant(
        "the soft limit of open files stays",
        "magnetar_core/runtime/process/descriptors.py",
        "resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))",
        "resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))",
        _DESCRIPTORS,
    ),
    Mutant(
        "a page reads under its own name what only this host may ask",
        "magnetar_core/runtime/http/hosts.py",
        "if self._is_local or (origin",
        "if (self._is_local and method not in READING) or (origin",
        _HOSTS,
    ),
    Mutant(
        "a page changes something under its own name",
        "magnetar_core/runtime/http/hosts.py",
        "(origin is not None and method not in READING)",
        "False",
        _HOSTS,
    ),
    Mutant(
        "the HTTP of a bookie answers under every name",
        "bookie/admin/server.py",
        "is_local=is_loopback(str(listening.getsockname()[0]))",
        "asks_callers=True",
        _DOORS,
    ),
    Mutant(
        "the HTTP of a broker answers under every name",
        "broker/admin/server.py",
        "asks_callers=self._broker.doors is not None and not config.anonymous_role",
        "asks_callers=True",
        _DOORS,
    ),
    Mutant(
        "a number of a thousand digits is read",
        "magnetar_core/runtime/data/json_text.py",
        "    if len(text) > DIGITS_MAX:",
        "    if len(text) > 100 * DIGITS_MAX:",
        _NUMBERS,
    ),
    Mutant(
        "a number without bounds becomes infinite",
        "magnetar_core/runtime/data/json_text.py",
        "    if math.isinf(number):",
        "    if math.isnan(number):",
        _NUMBERS,
    ),
    Mutant(
        "a token has many forms",
        "magnetar_core/security/tokens.py",
        "if _FORM.fullmatch(token) is None:",
        "if _FORM.match(token) is None:",
        _TOKENS,
    ),
    Mutant(
        "a time of 400 digits is compared as a float",
        "magnetar_core/security/tokens.py",
        "or not -_TIME_MAX < value < _TIME_MAX",
        "or value != value",
        _TOKENS,
    ),
    # -- what brokers ask for others
    Mutant(
        "two dots are the folder above",
        "broker/admin/deputies.py",
        '    return segment(quoted.replace(".", "%2E") if text in (".", "..") else quoted)',
        "    return segment(quoted)",
        _DEPUTIES,
    ),
    Mutant(
        "the name of a subscription is put into the path as it came",
        "broker/admin/topics/non_persistent.py",
        'suffix = f"/subscription/{encode_twice(decode(subscription))}"',
        'suffix = f"/subscription/{subscription}"',
        _DEPUTIES,
    ),
    Mutant(
        "a broker asks another one with its own right alone",
        "broker/admin/owners.py",
        "self._client.headers() | deputies.headers() | _JSON",
        "self._client.headers() | _JSON",
        _DEPUTIES,
    ),
    Mutant(
        "everybody asks for others",
        "broker/security/access.py",
        "if rules is None or caller.is_trusted or (caller.role in rules.super_users and caller.original is None):",
        "if True:",
        _DEPUTIES,
    ),
    Mutant(
        "a broker follows redirects to anywhere",
        "broker/admin/owners.py",
        "        if base in [",
        "        if base or base in [",
        _DEPUTIES,
    ),
    # -- where credentials go
    Mutant(
        "a redirect leads out of TLS",
        "magnetar_core/security/followed.py",
        'if came == "https" and goes == "http":',
        'if came == "https" and goes == "ftp":',
        _FOLLOWED,
    ),
    Mutant(
        "a redirect opens files",
        "magnetar_core/security/followed.py",
        '_SCHEMES: Final = ("http", "https")',
        '_SCHEMES: Final = ("http", "https", "file")',
        _FOLLOWED,
    ),
    Mutant(
        "a command sends its token to any host",
        "magnetar/inspect/broker_admin.py",
        "self._access.headers() and not self._is_known(url, target)",
        "False",
        _COMMANDS,
    ),
    Mutant(
        "a client of the topic API takes its token wherever a lookup points",
        "magnetar/client/brokers.py",
        "if access.token is None or access.tls_trust_certs_file is not None or self._known.has(target):",
        "if True:",
        _TOPICS,
    ),
    Mutant(
        "what cannot be decoded is taken for an answer",
        "magnetar/client/brokers.py",
        "            raise garbage(address)\n        return response",
        "            pass\n        return response",
        _TOPICS,
    ),
)
