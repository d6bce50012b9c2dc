"""What a client shows of itself to brokers, from options."""

from collections.abc import Callable
from pathlib import Path

import pulsar
import pytest

from connectors.spark.client_access import client_arguments, explain
from magnetar_core.runtime.types import ConfigurationError
from magnetar_core.topics.client_log import client_log

CLASSES = "org.apache.pulsar.client.impl.auth.Authentication"
PLUGIN = "pulsar.client.authpluginclassname"
PARAMETERS = "pulsar.client.authparams"


def kind_of(plugin: str, parameters: str) -> type:
    return type(client_arguments({PLUGIN: f"{CLASSES}{plugin}", PARAMETERS: parameters})["authentication"])


def test_without_options_nothing_is_shown() -> None:
    assert client_arguments({}) == {}
    assert client_arguments({"service.url": "x", "pulsar.producer.x": "y"}) == {}


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A folder of what options name."""
    for name in ("a.crt", "a.key", "ca.crt", "token"):
        (tmp_path / name).write_text("x\n")
    return tmp_path


@pytest.mark.parametrize("parameters", ["token:abc", "abc", "file://FILES/token", "file:FILES/token"])
def test_a_token_is_given_itself_or_by_its_file(files: Path, parameters: str) -> None:
    assert kind_of("Token", parameters.replace("FILES", str(files))) is pulsar.AuthenticationToken


def test_a_token_in_a_file_is_read_when_it_is_needed(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Callable[[], str]] = []
    monkeypatch.setattr(pulsar, "AuthenticationToken", given.append)
    path = files / "token"
    client_arguments({PLUGIN: f"{CLASSES}Token", PARAMETERS: f"file://{path}"})
    for text in ("first", "second"):
        path.write_text(f"{text}\n")
        assert given[0]() == text


@pytest.mark.parametrize(
    "parameters",
    ['{"tlsCertFile": "FILES/a.crt", "tlsKeyFile": "FILES/a.key"}', "tlsCertFile:FILES/a.crt,tlsKeyFile:FILES/a.key"],
)
def test_a_certificate_is_named_in_both_forms_that_java_takes(files: Path, parameters: str) -> None:
    assert kind_of("Tls", parameters.replace("FILES", str(files))) is pulsar.AuthenticationTLS


@pytest.mark.parametrize(
    ("options", "name", "missing"),
    [
        ({PLUGIN: f"{CLASSES}Token", PARAMETERS: "file://FILES/none"}, "authParams", "none"),
        ({PLUGIN: f"{CLASSES}Tls", PARAMETERS: "tlsCertFile:FILES/no.crt,tlsKeyFile:FILES/a.key"}, "authParams",
         "no.crt"),
        ({PLUGIN: f"{CLASSES}Tls", PARAMETERS: "tlsCertFile:FILES/a.crt,tlsKeyFile:FILES/no.key"}, "authParams",
         "no.key"),
        ({"pulsar.client.tlstrustcertsfilepath": "FILES/no.crt"}, "tlsTrustCertsFilePath", "no.crt"),
    ],
)  # fmt: skip
def test_a_file_that_is_not_there_is_named(files: Path, options: dict[str, str], name: str, missing: str) -> None:
    """The client would say no more than AuthenticationError, or ConnectError."""
    given = {option: value.replace("FILES", str(files)) for option, value in options.items()}
    why = f"pulsar.client.{name}: expected a file that can be read on this machine: {files / missing}: No such file"
    with pytest.raises(ConfigurationError, match=why):
        client_arguments(given)


def test_a_password_may_have_colons() -> None:
    assert kind_of("Basic", '{"userId": "u", "password": "a:b,c"}') is pulsar.AuthenticationBasic
    assert kind_of("Basic", "userId:u,password:a:b") is pulsar.AuthenticationBasic


def test_options_of_the_connection_have_their_types(files: Path) -> None:
    assert client_arguments(
        {
            "pulsar.client.tlstrustcertsfilepath": f"{files}/ca.crt",
            "pulsar.client.tlshostnameverificationenable": "TRUE",
            "pulsar.client.tlsallowinsecureconnection": "false",
            "pulsar.client.operationtimeoutms": "2500",
        }
    ) == {
        "tls_trust_certs_file_path": f"{files}/ca.crt",
        "tls_validate_hostname": True,
        "tls_allow_insecure_connection": False,
        "operation_timeout_seconds": 2,
    }


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({PLUGIN: "x.Other", PARAMETERS: "secret"}, "authPluginClassName=x.Other: expected .*AuthenticationToken"),
        ({PLUGIN: f"{CLASSES}Token"}, "authParams is empty: expected token:"),
        ({PLUGIN: f"{CLASSES}Tls", PARAMETERS: "secret"}, "expected tlsCertFile and tlsKeyFile"),
        ({PLUGIN: f"{CLASSES}Basic", PARAMETERS: "{secret"}, "expected userId and password"),
        ({"pulsar.client.tlsallowinsecureconnection": "secret"}, "expected true or false"),
        ({"pulsar.client.operationtimeoutms": "secret"}, "expected a number of milliseconds"),
    ],
)
def test_what_cannot_be_is_refused_and_no_secret_is_told(options: dict[str, str], why: str) -> None:
    with pytest.raises(ConfigurationError, match=why) as caught:
        client_arguments(options)
    assert "secret" not in str(caught.value)


def test_failures_that_the_client_does_not_explain_say_where_to_look() -> None:
    client_log().forget()  # of clients of other tests
    assert "authParams" in explain(pulsar.Timeout("TimeOut"))
    assert "tlsTrustCertsFilePath" in explain(pulsar.ConnectError("ConnectError"))
    assert explain(pulsar.TopicNotFound("TopicNotFound")) == "TopicNotFound"
