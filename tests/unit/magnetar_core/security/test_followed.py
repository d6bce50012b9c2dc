"""Where a client goes on to with its credentials."""

import pytest

from magnetar_core.security.followed import KnownHosts, host_of, redirect_problem


@pytest.mark.parametrize(
    ("address", "host"),
    [
        ("b1:6648", "b1"), ("http://B1.example.org:80/x", "b1.example.org"), ("127.0.0.1:1", "localhost"),
        ("[::1]:1", "localhost"), ("https://localhost", "localhost"), ("http://user@evil.example/", "evil.example"),
        ("http://b1@evil.example:80", "evil.example"), ("", ""), ("http://[", ""),
    ],
)  # fmt: skip
def test_the_host_of_an_address(address: str, host: str) -> None:
    assert host_of(address) == host


@pytest.mark.parametrize(
    ("url", "target", "is_followed"),
    [
        ("http://a/x", "http://b/x", True),
        ("http://a/x", "https://b/x", True),
        ("https://a/x", "https://b/x", True),
        ("https://a/x", "http://a/x", False),
        ("https://a/x", "HTTP://a/x", False),
        ("http://a/x", "file:///etc/passwd", False),
        ("http://a/x", "ftp://a/x", False),
        ("http://a/x", "data:,x", False),
        ("http://a/x", "", False),
        ("http://a/x", "http://[", False),
    ],
)
def test_no_redirect_leads_out_of_tls_or_to_anything_but_http(url: str, target: str, is_followed: bool) -> None:
    assert (redirect_problem(url, target) is None) == is_followed


def test_known_are_those_that_were_given_allowed_or_listed() -> None:
    known = KnownHosts(["b1.example.org:6648", "127.0.0.1:1"], ["other", "*.shop.example", " ", ""])
    for address in (
        "b1.example.org:9",
        "http://B1.example.org/",
        "localhost:5",
        "[::1]:7",
        "other:1",
        "x.shop.example:1",
    ):
        assert known.has(address), address
    for address in (
        "b2.example.org:6648",
        "example.org",
        "xb1.example.org",
        "shop.example",
        "xshop.example",
        "",
        "http://[",
    ):
        assert not known.has(address), address
    known.learn(["http://b2.example.org:8080", ""])
    assert known.has("b2.example.org:1")
    assert str(known) == "b1.example.org, b2.example.org, localhost"
    assert KnownHosts([], ["*"]).has("anything:1")
