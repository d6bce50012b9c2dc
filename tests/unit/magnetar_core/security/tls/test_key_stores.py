"""Key stores that Java's keytool made, read into certificates, keys and TLS contexts."""

import logging
import os
import shutil
import ssl
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from magnetar_core.runtime.types import ConfigurationError
from magnetar_core.security.tls import contexts as tls_contexts
from magnetar_core.security.tls import key_stores
from magnetar_core.security.tls.contexts import (
    Certificates,
    certificate_pem,
    client_context,
    key_pem,
    server_context,
    trusted_pem,
)
from magnetar_core.security.tls.files import TlsFiles, store_type_problem
from magnetar_core.security.tls.key_stores import own_certificate, trusted_certificates
from tests.support.java_stores import PASSWORD, RECORDED, STRANGER, keytool, make_all
from tests.support.manual_clock import ManualClock


def files(**changes: str) -> TlsFiles:
    usual = TlsFiles(
        origin="tlsKeyStore, tlsTrustStore",
        key_store=str(RECORDED / "server.jks"),
        key_store_password=PASSWORD,
        trust_store=str(RECORDED / "trust.jks"),
        trust_store_password=PASSWORD,
    )
    return replace(usual, **changes)  # type: ignore[arg-type]


def subjects(pem: bytes) -> list[str]:
    return [one.subject.rfc4514_string() for one in x509.load_pem_x509_certificates(pem)]


# ------------------------------------------------------------------------------------------- bytes


def test_a_store_gives_its_key_and_the_chain_in_order_whatever_its_name() -> None:
    own = own_certificate((RECORDED / "server.jks").read_bytes(), PASSWORD, "server.jks")
    assert subjects(own.chain) == ["CN=localhost", "CN=authority"], "the authority is in the store twice"
    leaf = x509.load_pem_x509_certificates(own.chain)[0]
    assert leaf.public_key() == load_pem_private_key(own.key_pem(), None).public_key()
    assert load_pem_private_key(own.key_pem(b"once"), b"once").public_key() == leaf.public_key()
    with pytest.raises(TypeError):
        load_pem_private_key(own.key_pem(b"once"), None)


@pytest.mark.parametrize(
    ("name", "password"),
    [("trust.jks", PASSWORD), ("legacy.p12", PASSWORD), ("open.p12", ""), ("open.p12", PASSWORD)],
)
def test_a_store_with_trusted_certificates_alone_is_read(name: str, password: str) -> None:
    store = RECORDED / name
    assert subjects(trusted_certificates(store.read_bytes(), password, name)) == ["CN=authority"]


@pytest.mark.long("keytool is started thirty times: does the Java of today still make what was recorded?")
def test_stores_that_java_makes_today_are_read(tmp_path: Path) -> None:
    make_all(tmp_path)
    for role in ("broker", "ann"):
        own = own_certificate((tmp_path / f"{role}.jks").read_bytes(), PASSWORD, role)
        assert subjects(own.chain) == [f"CN={role}", "CN=authority"]
    for name, password in (("trust.jks", PASSWORD), ("legacy.p12", PASSWORD), ("open.p12", "")):
        assert subjects(trusted_certificates((tmp_path / name).read_bytes(), password, name)) == ["CN=authority"]


@pytest.mark.parametrize("kind", ["JKS", "JCEKS"])
def test_javas_old_formats_are_refused_with_the_command_that_converts_them(tmp_path: Path, kind: str) -> None:
    store = tmp_path / f"old-{kind}"
    shutil.copy(RECORDED / store.name, store)
    with pytest.raises(ConfigurationError) as caught:
        trusted_certificates(store.read_bytes(), PASSWORD, str(store))
    command = str(caught.value).split("`")[1]
    assert command.startswith(f"keytool -importkeystore -srckeystore {store} -srcstoretype {kind} ")
    keytool(*command.split()[1:], "-srcstorepass", PASSWORD, "-noprompt", cwd=tmp_path)
    converted = Path(f"{store}.p12").read_bytes()
    assert subjects(trusted_certificates(converted, PASSWORD, "converted")) == ["CN=authority"]


@pytest.mark.parametrize(
    ("read", "name", "password", "reason"),
    [
        (own_certificate, "server.jks", "not-it", "no PKCS#12 store, or the password is wrong"),
        (own_certificate, "server.jks", "", "no PKCS#12 store, or the password is wrong"),
        (own_certificate, "ca.crt", PASSWORD, "no PKCS#12 store, or the password is wrong"),
        (own_certificate, "trust.jks", PASSWORD, "has no private key"),
        (trusted_certificates, "server.jks", PASSWORD, "has a private key, and a trust store has certificates only"),
    ],
)
def test_a_store_that_is_not_what_it_should_be_is_refused_without_the_password(
    read: Callable[[bytes, str, str], object], name: str, password: str, reason: str
) -> None:
    path = RECORDED / name
    with pytest.raises(ConfigurationError, match=reason) as caught:
        read(path.read_bytes(), password, str(path))
    assert str(path) in str(caught.value)
    assert PASSWORD not in str(caught.value)
    assert "not-it" not in str(caught.value)


def test_a_store_has_a_limited_size(monkeypatch: pytest.MonkeyPatch) -> None:
    data = (RECORDED / "trust.jks").read_bytes()
    monkeypatch.setattr(key_stores, "STORE_BYTES_MAX", len(data))
    assert trusted_certificates(data, PASSWORD, "s")
    monkeypatch.setattr(key_stores, "STORE_BYTES_MAX", len(data) - 1)
    with pytest.raises(ConfigurationError, match="is it a key store"):
        trusted_certificates(data, PASSWORD, "s")


def test_types_of_stores() -> None:
    assert store_type_problem("tlsKeyStoreType", "jks") is store_type_problem("tlsKeyStoreType", "PKCS12") is None
    assert store_type_problem("tlsKeyStoreType", "BCFKS") == "tlsKeyStoreType=BCFKS: expected one of JKS, PKCS12"


# ---------------------------------------------------------------------------------------- contexts


def shaken(server: ssl.SSLContext, client: ssl.SSLContext) -> ssl.SSLObject:
    """The client's side after a handshake in memory."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = [
        client.wrap_bio(to_client, to_server, server_hostname="localhost"),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    waiting = list(sides)
    for _ in range(10):
        for side in list(waiting):
            try:
                side.do_handshake()
                waiting.remove(side)
            except ssl.SSLWantReadError:
                pass
    assert not waiting
    return sides[0]


@pytest.mark.parametrize("in_memory", [True, False])
def test_both_sides_speak_tls_with_stores_and_no_file_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_memory: bool
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    if not in_memory:
        monkeypatch.delattr(os, "memfd_create", raising=False)
    seen: list[tuple[str, bool]] = []
    load = ssl.SSLContext.load_cert_chain

    def watched(context: ssl.SSLContext, path: str, *rest: object, **more: object) -> None:
        text = Path(path).read_text()
        seen.append((path, "BEGIN ENCRYPTED PRIVATE KEY" in text and "BEGIN PRIVATE KEY" not in text))
        load(context, path, *rest, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(ssl.SSLContext, "load_cert_chain", watched)
    before = set(os.listdir("/proc/self/fd"))
    pair = files()
    client = shaken(server_context(pair, client_certificates=True), client_context(pair))
    assert client.getpeercert()
    assert [locked for _, locked in seen] == [True, True]
    assert all(path.startswith("/proc/self/fd/" if in_memory else str(tmp_path)) for path, _ in seen)
    assert list(tmp_path.iterdir()) == []
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_who_is_not_in_the_trust_store_is_refused() -> None:
    stranger = files(key_store=str(STRANGER / "own.p12"), trust_store=str(STRANGER / "trust.p12"))
    with pytest.raises(ssl.SSLCertVerificationError):
        shaken(server_context(files(), client_certificates=False), client_context(stranger))


def test_bytes_for_libraries_that_want_them() -> None:
    assert subjects(certificate_pem(files())) == ["CN=localhost", "CN=authority"]
    assert subjects(trusted_pem(files())) == ["CN=authority"]
    assert key_pem(files()).startswith(b"-----BEGIN PRIVATE KEY-----")
    assert certificate_pem(TlsFiles(origin="")) == trusted_pem(TlsFiles(origin="")) == b""


def test_a_store_that_changes_is_read_anew_and_a_damaged_one_is_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = tmp_path / "first.p12", RECORDED / "ann.jks"
    shutil.copy(RECORDED / "server.jks", first)
    clock = ManualClock()
    pair = files(key_store=str(first))
    with caplog.at_level(logging.INFO):
        held = Certificates(pair, client_context, clock)
        before = held.context
        whole = first.read_bytes()
        first.write_bytes(whole[:100])
        clock.advance(301)
        assert held.context is before
        assert "the former ones stay" in caplog.text
        first.write_bytes(second.read_bytes())
        clock.advance(301)
        assert held.context is not before
    assert PASSWORD not in caplog.text
    assert PASSWORD not in repr(pair)


def test_an_expired_certificate_in_a_store_is_refused_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock()
    monkeypatch.setattr(clock, "wall_ms", lambda: 4_000_000_000_000)
    with pytest.raises(ConfigurationError, match=r"certificate \S+server.jks expired"):
        Certificates(files(), client_context, clock)


def test_a_store_that_is_not_there_is_named() -> None:
    with pytest.raises(ConfigurationError, match="cannot read the key store /nowhere"):
        server_context(files(key_store="/nowhere"), client_certificates=False)
    with pytest.raises(ConfigurationError, match="cannot read the trust store /nowhere"):
        client_context(files(trust_store="/nowhere"))
    assert tls_contexts.certificate_pem(files()), "while the others can"
