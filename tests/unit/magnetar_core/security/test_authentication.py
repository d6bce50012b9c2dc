import base64

import pytest

from magnetar_core.security.authentication import (
    BasicProvider,
    InvalidRoles,
    Provider,
    Providers,
    Shown,
    TlsProvider,
    TokenProvider,
)
from magnetar_core.security.basic import PasswordRules, apr1
from magnetar_core.security.caller import Caller
from magnetar_core.security.identity import NotValid
from magnetar_core.security.tls.certificates import common_name
from magnetar_core.security.tokens import TokenRules, secret_key, sign

SECRET = bytes(32)
TOKEN = sign({"sub": "ann"}, SECRET, "HS256")


def providers(*names: str, anonymous: str = "", proxies: frozenset[str] = frozenset()) -> Providers:
    known: dict[str, Provider] = {
        "token": TokenProvider(TokenRules(secret_key(SECRET, "s"))),
        "basic": BasicProvider(PasswordRules({"bob": apr1(b"pw", b"salt")})),
        "tls": TlsProvider(),
    }
    return Providers({name: known[name] for name in names}, anonymous_role=anonymous, proxy_roles=proxies)


def test_the_header_decides_before_the_certificate() -> None:
    all_three = providers("token", "basic", "tls")
    basic = "Basic " + base64.b64encode(b"bob:pw").decode()
    assert all_three.of_http(f"Bearer {TOKEN}", None, "cn") == Shown("token", TOKEN.encode(), "cn")
    assert all_three.of_http(f"bearer   {TOKEN} ", None, None) == Shown("token", TOKEN.encode())
    assert all_three.of_http(basic, None, None) == Shown("basic", b"bob:pw")
    assert all_three.of_http(None, None, "cn") == Shown("tls", b"", "cn")
    assert all_three.of_http(basic, "tls", "cn") == Shown("tls", b"", "cn")


def test_what_no_provider_takes_counts_as_nothing_shown() -> None:
    assert providers("basic").of_http(f"Bearer {TOKEN}", None, "cn") == Shown()
    assert providers("token").of_http("Negotiate xyz", "sasl", None) == Shown()
    assert providers("token").of_http("", None, None) == Shown()


def test_a_method_that_is_named_and_shows_nothing_is_refused() -> None:
    shown = providers("token").of_http(None, "token", None)
    provider = providers("token").provider(shown.method)
    assert provider is not None
    with pytest.raises(NotValid):
        provider.identity(shown, 0)


@pytest.mark.parametrize("value", ["Basic", "Basic ", "Basic %%%", "Basic ü"])
def test_a_basic_header_that_cannot_be_read_admits_nobody(value: str) -> None:
    asked = providers("basic")
    provider = asked.provider("basic")
    assert provider is not None
    with pytest.raises(NotValid):
        provider.identity(asked.of_http(value, None, None), 0)


def test_who_shows_nothing_has_the_anonymous_role_if_there_is_one() -> None:
    assert providers("token", anonymous="guest").anonymous().role == "guest"
    with pytest.raises(NotValid, match=r"takes basic, token, and has no anonymousUserRole"):
        providers("token", "basic").anonymous()


def test_a_proxy_asks_for_somebody_else_and_only_a_proxy_does() -> None:
    asked = providers("token", proxies=frozenset({"proxy", "proxy-2"}))
    assert asked.caller("proxy", "ann") == Caller("proxy", "ann")
    assert asked.caller("ann", None) == asked.caller("ann", "  ") == asked.caller("ann", "ann") == Caller("ann")
    for role, original in (("proxy", None), ("proxy", " "), ("proxy", "proxy-2"), ("proxy", "proxy"), ("ann", "bob")):
        with pytest.raises(InvalidRoles):
            asked.caller(role, original)


def test_the_name_of_a_certificate_is_its_first_cn() -> None:
    subject = ((("organizationName", "x"),), (("commonName", "ann"),), (("commonName", "bob"),))
    assert common_name({"subject": subject}) == "ann"
    for nothing in (
        None,
        {},
        {"subject": ()},
        {"subject": ((("organizationName", "x"),),)},
        {"subject": ((("commonName", " "),),)},
    ):
        assert common_name(nothing) is None


def test_a_caller_by_certificate_needs_a_name() -> None:
    assert TlsProvider().identity(Shown("tls", b"", "ann"), 0).role == "ann"
    with pytest.raises(NotValid, match="CN"):
        TlsProvider().identity(Shown("tls"), 0)
