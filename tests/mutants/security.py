"""Seeded bugs of authentication and TLS."""

from typing import Final

from tests.mutants.catalogue import Mutant

_TOKENS: Final = ("tests/unit/magnetar_core/security/test_tokens.py",)
_BASIC: Final = ("tests/unit/magnetar_core/security/test_basic.py",)
_PROVIDERS: Final = ("tests/unit/magnetar_core/security/test_authentication.py",)
_BINARY: Final = ("tests/unit/broker/test_security.py",)
_OPENID: Final = ("tests/unit/broker/security/test_openid.py",)
_HTTP: Final = ("tests/unit/broker/admin/test_authentication.py",)
_FORWARDED: Final = ("tests/unit/broker/admin/test_forwarded.py",)
_KEY_STORES: Final = ("tests/unit/magnetar_core/security/tls/test_key_stores.py",)

MUTANTS: Final = (
    Mutant(
        "what Python demands of authorities from 3.13 on is demanded of ours",
        "magnetar_core/security/tls/contexts.py",
        "context.verify_flags &= ~ssl.VERIFY_X509_STRICT",
        "context.verify_flags |= 0",
        ("tests/unit/magnetar_core/security/test_usual_context.py",),
    ),
    # -- Java's key stores
    Mutant(
        "the key of a store is given to OpenSSL in clear",
        "magnetar_core/security/tls/contexts.py",
        "own.chain + own.key_pem(password.encode())",
        "own.chain + own.key_pem()",
        _KEY_STORES,
    ),
    Mutant(
        "all certificates of a store are shown, in the order in which they are there",
        "magnetar_core/security/tls/key_stores.py",
        "    while chain[-1].issuer != chain[-1].subject:",
        "    return [leaf, *others]\n    while chain[-1].issuer != chain[-1].subject:",
        _KEY_STORES,
    ),
    Mutant(
        "a trust store may have a private key",
        "magnetar_core/security/tls/key_stores.py",
        "    if store.key is not None:  # rule 3",
        "    if False:  # rule 3",
        _KEY_STORES,
    ),
    Mutant(
        "the password of a store is a part of what is told of its files",
        "magnetar_core/security/tls/files.py",
        'key_store_password: str = field(default="", repr=False)',
        'key_store_password: str = field(default="")',
        _KEY_STORES,
    ),
    Mutant(
        "clients with certificates are let in without a look at the trust store",
        "broker/security/doors.py",
        "client_certificates=bool(files.authorities)",
        "client_certificates=bool(files.trusted)",
        ("tests/unit/broker/test_key_stores.py",),
    ),
    Mutant(
        "a request behind a load balancer comes from the load balancer",
        "broker/admin/forwarded.py",
        'return self._peer if name == "peername" else',
        'return self._peer if name == "peer" else',
        _FORWARDED,
    ),
    Mutant(
        "the header before a handshake takes some of the handshake",
        "broker/binary/admission/proxy_header.py",
        "return max(_HEAD.size + int(_HEAD.unpack_from(data)[3]) - len(data), 1)",
        "return LINE_BYTES_MAX",
        _FORWARDED,
    ),
    Mutant(
        "a token is taken without a valid signature",
        "magnetar_core/security/tokens.py",
        '    "verify_signature": True,\n',
        '    "verify_signature": False,\n',
        _TOKENS,
    ),
    Mutant(
        "a token does not expire",
        "magnetar_core/security/tokens.py",
        "if expires_s is not None and now_s >= expires_s + self._leeway_s:",
        "if expires_s is not None and now_s < 0:",
        _TOKENS,
    ),
    Mutant(
        "a token for another audience is taken",
        "magnetar_core/security/tokens.py",
        "        if self._audience_claim:\n",
        "        if not self._audience_claim:\n",
        _TOKENS,
    ),
    Mutant(
        "an unknown user with somebody else's password comes in",
        "magnetar_core/security/basic.py",
        "            if hashed is None or kind != _kind(hashed):\n                matches(password, other)\n",
        "            if matches(password, other):\n                return Identity(name)\n",
        _BASIC,
    ),
    Mutant(
        "anybody asks for somebody else",
        "magnetar_core/security/authentication.py",
        "        if original is not None and original != role:\n",
        "        if original is not None and not role:\n",
        _PROVIDERS,
    ),
    Mutant(
        "wrong credentials make an anonymous client",
        "broker/security/doors.py",
        "        except NotValid as error:\n            self.failures[method or",
        "        except NotValid as error:\n"
        "            if method:\n                return self._providers.anonymous(), ''\n"
        "            self.failures[method or",
        _HTTP,
    ),
    Mutant(
        "commands are worked on before the client is authenticated",
        "broker/binary/connection.py",
        "        if self.state is State.AUTHENTICATING and kind not in (_T.PING, _T.PONG):\n",
        "        if self.state is State.CLOSED:\n",
        _BINARY,
    ),
    Mutant(
        "another role goes on with a connection",
        "broker/binary/admission/handshake.py",
        "        if identity.role != admitted.identity.role:\n",
        "        if not identity.role:\n",
        _BINARY,
    ),
    Mutant(
        "who does not renew expired credentials stays",
        "broker/binary/admission/handshake.py",
        "        if self._is_asked:\n            return",
        "        if self._is_asked and self._is_proxied:\n            return",
        _BINARY,
    ),
    Mutant(
        "connections that ended count for ever",
        "broker/binary/server.py",
        "            self._server.limits.release(self._counted)\n",
        "",
        _BINARY,
    ),
    Mutant(
        "a page without credentials is answered",
        "broker/admin/authentication.py",
        "            return _refusal(request, challenge)\n",
        "            return await handler(request)\n",
        _HTTP,
    ),
    Mutant(
        "any issuer is believed",
        "magnetar_core/security/openid.py",
        "        if claims.issuer not in self._issuers:\n",
        "        if not claims.issuer:\n",
        _OPENID,
    ),
    Mutant(
        "a token of an issuer may be for anybody",
        "magnetar_core/security/openid.py",
        "            audience_claim=AUDIENCE,\n",
        "",
        _OPENID,
    ),
    Mutant(
        "invented key ids make a broker ask the issuer each time",
        "broker/security/openid_provider.py",
        "        if is_old or (is_missing and now_s - cached.tried_s >= self._times.miss_s):\n",
        "        if is_old or is_missing:\n",
        _OPENID,
    ),
)
