import bcrypt
import pytest

from magnetar_core.runtime.types import ConfigurationError
from magnetar_core.security import basic
from magnetar_core.security.basic import CREDENTIALS_BYTES_MAX, PasswordRules, apr1, parse_users
from magnetar_core.security.des_crypt import des_crypt
from magnetar_core.security.identity import NotValid

BCRYPT = bcrypt.hashpw(b"secret", bcrypt.gensalt(4)).decode()
# Made with `openssl passwd -apr1` and with the crypt of the C library.
APR1 = "$apr1$12345678$IFpXpDRudqLvk0aO7K4jN."
DES = "abA5hjwYqm1.I"


@pytest.mark.parametrize(
    ("password", "salt", "hashed"),
    [
        (b"testpass", b"12345678", APR1),
        (b"a much longer password 12345", b"abc", "$apr1$abc$b0Lmqnv/QS9NhYPSDUQU8."),
        (b"", b"x", "$apr1$x$tMwYqBfQwi3FYAr0aJc8M/"),
    ],
)
def test_apr1_is_that_of_openssl(password: bytes, salt: bytes, hashed: str) -> None:
    assert apr1(password, salt) == hashed


@pytest.mark.parametrize(
    ("password", "salt", "hashed"),
    [
        (b"testpass", b"ab", DES),
        (b"secret", b"zz", "zz1T8N4tWvmbE"),
        (b"", b"./", "./Una9Fi.seRo"),
        (b"longer than eight", b"Q9", "Q9De73rt6uHKE"),
    ],
)
def test_crypt_is_that_of_the_c_library(password: bytes, salt: bytes, hashed: str) -> None:
    assert des_crypt(password, salt) == hashed


@pytest.mark.parametrize("salt", [b"", b"a", b"a:", "ä".encode()])
def test_crypt_refuses_a_salt_of_other_characters(salt: bytes) -> None:
    with pytest.raises(ValueError, match="salt"):
        des_crypt(b"x", salt)


def test_each_kind_of_hash_admits_its_user_and_nobody_else() -> None:
    data = f"# users\nann:{APR1}\n\nbob:{DES}\ncarl:{BCRYPT}\n".encode()
    rules = PasswordRules(parse_users(data, "basicAuthConf"))
    for credentials, role in ((b"ann:testpass", "ann"), (b"bob:testpass", "bob"), (b"carl:secret", "carl")):
        assert rules.identity(credentials).role == role
    for wrong in (
        b"ann:secret",
        b"bob:Testpass",
        b"carl:testpass",
        b"ann:",
        b"carl:" + b"x" * 73,
        b"carl:a\0b",
        b":",
        b"x:y",
    ):
        with pytest.raises(NotValid, match="unknown user or wrong password"):
            rules.identity(wrong)


@pytest.mark.parametrize("credentials", [b"", b"ann", b"\xff\xff", b"ann" * 400])
def test_what_is_not_user_and_password_is_refused(credentials: bytes) -> None:
    with pytest.raises(NotValid):
        PasswordRules({"ann": APR1}).identity(credentials)


def test_a_password_may_hold_colons() -> None:
    assert PasswordRules({"ann": apr1(b"a:b:c", b"salt")}).identity(b"ann:a:b:c").role == "ann"


def test_credentials_that_are_too_long_are_not_hashed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(basic, "matches", lambda *_: pytest.fail("it was hashed"))
    with pytest.raises(NotValid, match="at most"):
        PasswordRules({"ann": APR1}).identity(b"ann:" + bytes(CREDENTIALS_BYTES_MAX))


def test_each_refusal_costs_the_same_hashes_whoever_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    dearer = BCRYPT.replace("$04$", "$05$")
    users = {"ann": APR1, "eve": APR1.replace("12345678", "1234567x"), "bob": DES, "carl": BCRYPT, "dora": dearer}
    asked: list[str] = []

    def matches(_: bytes, hashed: str) -> bool:
        asked.append("apr1" if "apr1" in hashed else "crypt" if hashed == DES else hashed[:7])
        return False

    monkeypatch.setattr(basic, "matches", matches)
    for user in (*users, "nobody", "", "\xff"):
        asked.clear()
        with pytest.raises(NotValid):
            PasswordRules(users).identity(f"{user}:secret".encode("latin-1"))
        assert sorted(asked) == ["$2b$04$", "$2b$05$", "apr1", "crypt"], user


def test_an_unknown_user_comes_in_with_nobodys_password() -> None:
    for credentials in (b"nobody:secret", b"nobody:testpass", b":secret"):
        with pytest.raises(NotValid):
            PasswordRules({"ann": APR1, "carl": BCRYPT}).identity(credentials)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("ann", "line 2: it is not user:hash"),
        (":hash", "line 2: it is not user:hash"),
        ("ann:password", "neither apr1, bcrypt nor crypt"),
        ("ann:{SHA}5en6G6MezRroT3XKqkdPOmY/BfQ=", "neither apr1"),
        ("ann:$2y$31$" + "a" * 53, "cost of bcrypt is 31"),
        ("first:" + APR1, "there twice"),
    ],
)
def test_a_line_that_cannot_be_used_is_refused_with_its_number(line: str, reason: str) -> None:
    with pytest.raises(ConfigurationError, match=reason) as caught:
        parse_users(f"first:{APR1}\n{line}\n".encode(), "basicAuthConf")
    assert "password" not in str(caught.value).replace("wrong password", "")


@pytest.mark.parametrize("data", [b"", b"# nobody\n", b"\xff\xfe"])
def test_a_file_without_users_is_refused(data: bytes) -> None:
    with pytest.raises(ConfigurationError, match="basicAuthConf"):
        parse_users(data, "basicAuthConf")
