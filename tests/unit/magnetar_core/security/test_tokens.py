import base64
import hmac
import json
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from magnetar_core.runtime.types import ConfigurationError
from magnetar_core.security.identity import Identity, NotValid
from magnetar_core.security.tokens import TOKEN_BYTES_MAX, TokenRules, public_key, secret_key, sign

SECRET = bytes(range(64))
NOW_S = 1_800_000_000.0
RSA_KEY = rsa.generate_private_key(65537, 2048)
CURVE_KEYS = {"ES256": ec.SECP256R1(), "ES384": ec.SECP384R1(), "ES512": ec.SECP521R1()}


def private(key: Any) -> bytes:
    return bytes(key.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption()))


def public(key: Any, encoding: Encoding = Encoding.DER) -> bytes:
    return bytes(key.public_key().public_bytes(encoding, PublicFormat.SubjectPublicKeyInfo))


def rules(**settings: Any) -> TokenRules:
    return TokenRules(secret_key(SECRET, "tokenSecretKey"), **settings)


def token(algorithm: str = "HS256", **claims: Any) -> bytes:
    return sign({"sub": "ann", **claims}, SECRET, algorithm).encode()


def forged(header: object, claims: object, signature: bytes = b"") -> bytes:
    parts = [json.dumps(header).encode(), json.dumps(claims).encode(), signature]
    return b".".join(base64.urlsafe_b64encode(part).rstrip(b"=") for part in parts)


@pytest.mark.parametrize("algorithm", ["HS256", "HS384", "HS512"])
def test_a_token_signed_with_the_secret_names_its_role(algorithm: str) -> None:
    assert rules().identity(token(algorithm), NOW_S) == Identity("ann", None)


@pytest.mark.parametrize("encoding", [Encoding.DER, Encoding.PEM])
@pytest.mark.parametrize("algorithm", ["RS256", "RS512", "PS256"])
def test_a_token_signed_with_an_rsa_key_names_its_role(algorithm: str, encoding: Encoding) -> None:
    key = public_key(public(RSA_KEY, encoding), "RS256", "tokenPublicKey")
    made = sign({"sub": "ann"}, private(RSA_KEY), algorithm)
    assert TokenRules(key).identity(made.encode(), NOW_S).role == "ann"


@pytest.mark.parametrize("algorithm", CURVE_KEYS)
def test_a_token_signed_with_a_key_on_a_curve_names_its_role(algorithm: str) -> None:
    pair = ec.generate_private_key(CURVE_KEYS[algorithm])
    key = public_key(public(pair), algorithm, "tokenPublicKey")
    assert TokenRules(key).identity(sign({"sub": "ann"}, private(pair), algorithm).encode(), NOW_S).role == "ann"


def test_a_token_without_a_signature_is_refused() -> None:
    for name in ("none", "None", "NONE", ""):
        with pytest.raises(NotValid):
            rules().identity(forged({"alg": name, "typ": "JWT"}, {"sub": "ann"}), NOW_S)


def test_a_public_key_cannot_be_taken_for_a_secret() -> None:
    pem = public(RSA_KEY, Encoding.PEM)
    key = public_key(pem, "RS256", "tokenPublicKey")
    for secret in (pem, public(RSA_KEY)):
        unsigned = forged({"alg": "HS256", "typ": "JWT"}, {"sub": "ann"}).rpartition(b".")[0]
        signature = base64.urlsafe_b64encode(hmac.digest(secret, unsigned, "sha256")).rstrip(b"=")
        with pytest.raises(NotValid, match="not signed with RS256"):
            TokenRules(key).identity(unsigned + b"." + signature, NOW_S)


def test_a_token_of_another_kind_of_key_is_refused() -> None:
    made = sign({"sub": "ann"}, private(RSA_KEY), "RS256")
    with pytest.raises(NotValid, match="not signed with HS256"):
        rules().identity(made.encode(), NOW_S)


def test_a_token_of_another_key_or_with_other_claims_is_refused() -> None:
    other = jwt.encode({"sub": "ann"}, bytes(64), "HS256")
    with pytest.raises(NotValid, match="signature"):
        rules().identity(other.encode(), NOW_S)
    head, _, signature = token().split(b".")
    body = base64.urlsafe_b64encode(b'{"sub":"admin"}').rstrip(b"=")
    with pytest.raises(NotValid, match="signature"):
        rules().identity(b".".join([head, body, signature]), NOW_S)


def test_a_token_is_valid_until_it_expires() -> None:
    made = token(exp=NOW_S + 60)
    assert rules().identity(made, NOW_S) == Identity("ann", NOW_S + 60)
    with pytest.raises(NotValid, match="expired"):
        rules().identity(made, NOW_S + 60)
    assert rules(leeway_s=5).identity(made, NOW_S + 64).role == "ann"


def test_a_token_is_not_valid_before_it_begins() -> None:
    made = token(nbf=NOW_S)
    assert rules().identity(made, NOW_S).role == "ann"
    with pytest.raises(NotValid, match="nbf"):
        rules().identity(made, NOW_S - 1)


def test_a_token_has_one_form() -> None:
    made = token()
    assert rules().identity(made, NOW_S).role == "ann"
    head, body, signature = made.split(b".")
    for other in (
        made + b"=", made + b"==", made + b"\n", made + b"!", b" " + made, head + b"=." + body + b"." + signature,
        head + b".!" + body + b"." + signature, made.replace(b".", b"..", 1), made + b".x",
        b".".join([head, body]), b"",
    ):  # fmt: skip
        with pytest.raises(NotValid):
            rules().identity(other, NOW_S)


@pytest.mark.parametrize("value", ["tomorrow", True, [1], {"at": 1}])
def test_a_time_that_is_no_number_is_refused(value: Any) -> None:
    secret = secret_key(SECRET, "s")
    made = forged_and_signed({"sub": "ann", "exp": value})
    with pytest.raises(NotValid):
        TokenRules(secret).identity(made, NOW_S)


def forged_and_signed(claims: dict[str, Any]) -> bytes:
    return jwt.api_jws.encode(json.dumps(claims).encode(), SECRET, "HS256").encode()


def test_numbers_beyond_all_bounds_are_refused() -> None:
    whole = "9" * 400
    for text in (
        '{"sub":"ann","exp":1e999}', '{"sub":"ann","exp":NaN}', '{"sub":"ann","nbf":-Infinity}',
        f'{{"sub":"ann","exp":{whole}}}', f'{{"sub":"ann","nbf":-{whole}}}', f'{{"sub":"ann","exp":{whole * 20}}}',
    ):  # fmt: skip
        made = jwt.api_jws.encode(text.encode(), SECRET, "HS256").encode()
        with pytest.raises(NotValid):
            rules().identity(made, NOW_S)


@pytest.mark.parametrize(
    "claims", [{}, {"sub": ""}, {"sub": "  "}, {"sub": 7}, {"sub": []}, {"sub": [7]}, {"sub": None}]
)
def test_a_token_that_names_no_role_is_refused(claims: dict[str, Any]) -> None:
    with pytest.raises(NotValid, match="claim sub"):
        rules().identity(forged_and_signed(claims), NOW_S)


def test_the_role_may_stand_in_another_claim_or_be_the_first_of_a_list() -> None:
    assert rules(claim="user").identity(token(user="bob"), NOW_S).role == "bob"
    assert rules().identity(forged_and_signed({"sub": ["first", "second"]}), NOW_S).role == "first"


def test_the_audience_must_be_the_one_that_is_configured() -> None:
    strict = rules(audience_claim="aud", audiences=("cluster-1",))
    assert strict.identity(token(aud="cluster-1"), NOW_S).role == "ann"
    assert strict.identity(token(aud=["cluster-2", "cluster-1"]), NOW_S).role == "ann"
    for other in ("cluster-2", ["cluster-2"], 1, [], {"cluster-1": 1}, None):
        with pytest.raises(NotValid, match="audience"):
            strict.identity(forged_and_signed({"sub": "ann", "aud": other}), NOW_S)
    assert rules().identity(token(aud="whatever"), NOW_S).role == "ann"


@pytest.mark.parametrize(
    "garbage",
    [b"", b".", b"..", b"...", b"a.b.c", b"\xff\xfe\x00", "ü.ü.ü".encode(), b"{}", b"e30.e30.", b"." * 10_000,
     forged([], []), forged({"alg": ["HS256"]}, {}), forged({"alg": {}}, {}), forged({}, {}),
     forged({"alg": "HS256", "crit": ["x"]}, {"sub": "ann"}), forged({"alg": "HS256", "b64": False}, "text")],
)  # fmt: skip
def test_garbage_is_refused(garbage: bytes) -> None:
    with pytest.raises(NotValid):
        rules().identity(garbage, NOW_S)


def test_every_cut_and_every_changed_character_of_a_token_is_refused() -> None:
    made = token()
    for end in range(len(made)):
        with pytest.raises(NotValid):
            rules().identity(made[:end], NOW_S)
    for at in range(len(made) - 1):  # the last character has bits that mean nothing
        changed = made[:at] + (b"A" if made[at : at + 1] != b"A" else b"B") + made[at + 1 :]
        with pytest.raises(NotValid):
            rules().identity(changed, NOW_S)


def test_a_token_that_is_too_long_is_not_read() -> None:
    made = token(more="x" * TOKEN_BYTES_MAX)
    with pytest.raises(NotValid, match="at most"):
        rules().identity(made, NOW_S)


def test_the_text_of_a_refusal_holds_no_part_of_the_token() -> None:
    for made in (
        token(exp=1),
        b"secretpart.secretpart.secretpart",
        forged({"alg": "secretpart"}, {"sub": "secretpart"}),
    ):
        with pytest.raises(NotValid) as caught:
            rules().identity(made, NOW_S)
        assert "secretpart" not in str(caught.value)
        assert made.split(b".")[1].decode() not in str(caught.value)


def test_keys_that_cannot_be_used_are_refused_by_the_name_of_their_setting() -> None:
    with pytest.raises(ConfigurationError, match=r"tokenSecretKey: the secret has 31 bytes.*openssl rand"):
        secret_key(bytes(31), "tokenSecretKey")
    with pytest.raises(ConfigurationError, match="tokenPublicKey: it is no public key"):
        public_key(b"nonsense", "RS256", "tokenPublicKey")
    with pytest.raises(ConfigurationError, match="not of the kind that tokenPublicAlg=ES256 needs"):
        public_key(public(RSA_KEY), "ES256", "tokenPublicKey")
    with pytest.raises(ConfigurationError, match="tokenPublicAlg=HS256: expected one of RS256"):
        public_key(public(RSA_KEY), "HS256", "tokenPublicKey")
    with pytest.raises(ConfigurationError, match="1024 bits"):
        public_key(public(rsa.generate_private_key(65537, 1024)), "RS256", "tokenPublicKey")


def test_a_short_secret_is_not_used_for_the_longer_hashes() -> None:
    short = TokenRules(secret_key(SECRET[:32], "s"))
    assert short.identity(jwt.encode({"sub": "ann"}, SECRET[:32], "HS256").encode(), NOW_S).role == "ann"
    with pytest.raises(ConfigurationError, match="HS512 needs a secret of 64 bytes"):
        sign({"sub": "ann"}, SECRET[:32], "HS512")
