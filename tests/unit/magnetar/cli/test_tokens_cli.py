"""`magnetar tokens`: tokens that the broker takes, and the ones that it cannot be asked for."""

import json
import time
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from magnetar.cli import main as cli
from magnetar_core.security.identity import NotValid
from magnetar_core.security.tokens import TokenRules, public_key, secret_key


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli.main, ["tokens", *arguments])


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    assert run("create-secret-key", str(tmp_path / "token.key")).exit_code == 0
    return tmp_path / "token.key"


def test_a_token_of_a_made_secret_is_valid_for_its_role_and_its_time(secret: Path) -> None:
    rules = TokenRules(secret_key(secret.read_bytes(), "the secret"))
    forever = run("create", "shop", "--secret-key", str(secret)).output.strip()
    assert rules.identity(forever.encode(), time.time() + 10**9).role == "shop"
    told = json.loads(run("create", "ann", "--secret-key", f"file://{secret}", "--expires", "2h", "--json").output)
    assert rules.identity(told["token"].encode(), time.time() + 7_000).role == "ann"
    with pytest.raises(NotValid):
        rules.identity(told["token"].encode(), time.time() + 7_300)


def test_the_audience_is_in_the_token(secret: Path) -> None:
    rules = TokenRules(secret_key(secret.read_bytes(), "the secret"), audience_claim="aud", audiences=("us",))
    for audience, is_valid in (("us", True), ("them", False)):
        made = run("create", "shop", "--secret-key", str(secret), "--audience", audience).output.strip()
        if is_valid:
            assert rules.identity(made.encode(), time.time()).role == "shop"
        else:
            with pytest.raises(NotValid):
                rules.identity(made.encode(), time.time())


@pytest.mark.parametrize("algorithm", ["RS256", "ES256"])
def test_private_keys_sign_tokens(tmp_path: Path, algorithm: str) -> None:
    key = rsa.generate_private_key(65537, 2048) if algorithm == "RS256" else ec.generate_private_key(ec.SECP256R1())
    file = tmp_path / "private.pem"
    pem = serialization.Encoding.PEM
    file.write_bytes(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()))
    made = run("create", "shop", "--private-key", str(file), "--algorithm", algorithm).output.strip()
    public = key.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo)
    rules = TokenRules(public_key(public, algorithm, "the key"))
    assert rules.identity(made.encode(), time.time()).role == "shop"


def test_a_secret_is_private_and_is_never_written_over(secret: Path) -> None:
    assert secret.stat().st_mode & 0o777 == 0o600
    before = secret.read_bytes()
    found = run("create-secret-key", str(secret))
    assert (found.exit_code, secret.read_bytes()) == (1, before)
    assert "is there already" in found.output
    assert "cannot be made" in run("create-secret-key", str(secret.parent / "missing" / "key")).output


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("create shop", "give one of --secret-key and --private-key"),
        ("create shop --secret-key KEY --private-key KEY", "give one of"),
        ("create shop --secret-key KEY --algorithm RS256", "RS256 is signed with a private key"),
        ("create shop --private-key KEY --algorithm HS256", "HS256 is signed with a secret"),
        ("create shop --private-key KEY", "no private key"),
        ("create shop --secret-key KEY --algorithm none", "is signed with a private key"),
        ("create shop --secret-key KEY --expires soon", "write a number and a unit"),
        ("create shop --secret-key KEY --expires 0d", "write a number and a unit"),
        ("create shop --secret-key /nowhere/at/all!", "there is no such file"),
    ],
)
def test_what_cannot_be_signed_is_told(secret: Path, words: str, text: str) -> None:
    found = run(*(str(secret) if word == "KEY" else word for word in words.split()))
    assert found.exit_code != 0
    assert text in found.output


def test_a_role_needs_a_name(secret: Path) -> None:
    assert "a role has a name" in run("create", " ", "--secret-key", str(secret)).output
