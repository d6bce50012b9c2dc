"""Credentials and certificates of commands: options, and files of Apache's form."""

from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from magnetar.cli.common.access import access_options
from magnetar.cli.common.options import admin_option, service_option
from magnetar.inspect.access import CURRENT, Access, AccessError, profile_of, read_profile
from magnetar_core.runtime.types import ConfigurationError

PLUGIN = "org.apache.pulsar.client.impl.auth.Authentication"


def test_a_file_of_apaches_form_is_read(tmp_path: Path) -> None:
    path = tmp_path / "client.conf"
    path.write_text(
        "webServiceUrl=https://h:8443\nbrokerServiceUrl=pulsar+ssl://h:6651\ntlsTrustCertsFilePath=ca.crt\n"
        f"authPlugin={PLUGIN}Token\nauthParams=token:abc\ntlsAllowInsecureConnection=false\nuseKeyStoreTls=false\n"
        "tlsTrustStoreType=JKS\ntlsEnableHostnameVerification=false\n"
    )
    found = read_profile(path)
    assert (found.admin_url, found.service_url) == ("https://h:8443", "pulsar+ssl://h:6651")
    assert found.access == Access(token="token:abc", trusted="ca.crt", verify_hostname=False)
    assert found.access.headers() == {"Authorization": "Bearer abc"}


@pytest.mark.parametrize(
    ("plugin", "parameters", "access"),
    [
        ("Basic", '{"userId":"ann","password":"p:w"}', Access(user="ann:p:w")),
        ("Tls", "tlsCertFile:/a.crt,tlsKeyFile:/a.key", Access(certificate="/a.crt", key="/a.key")),
    ],
)
def test_other_ways_to_show_who_one_is_are_read(plugin: str, parameters: str, access: Access) -> None:
    assert profile_of({"authPlugin": PLUGIN + plugin, "authParams": parameters}, "f").access == access


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"authPlugin": "org.x.Sasl"}, "authPlugin=org.x.Sasl: expected"),
        ({"authPlugin": PLUGIN + "Basic", "authParams": "ann"}, "authParams of AuthenticationBasic"),
        ({"tlsAllowInsecureConnection": "true"}, "tlsAllowInsecureConnection has no meaning here"),
        ({"surprise": "1"}, "surprise has no meaning here"),
    ],
)
def test_a_file_that_says_something_else_is_refused(values: dict[str, str], reason: str) -> None:
    with pytest.raises(ConfigurationError, match=reason):
        profile_of(values, "f")


def test_a_token_comes_from_a_file_and_is_checked(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("abc.def.ghi\n")
    for text in (f"file:{path}", f"file://{path}", "abc.def.ghi", "token:abc.def.ghi"):
        assert Access(token=text).headers() == {"Authorization": "Bearer abc.def.ghi"}
    with pytest.raises(AccessError, match="cannot read the token"):
        Access(token=f"file:{tmp_path / 'nowhere'}").headers()
    with pytest.raises(AccessError, match="characters that no token has"):
        Access(token="two words").headers()


def test_certificates_that_cannot_be_used_are_told_by_name(tmp_path: Path) -> None:
    with pytest.raises(AccessError, match=r"nowhere\.crt"):
        Access(trusted=str(tmp_path / "nowhere.crt")).context()
    assert Access().context() is None


def test_options_before_a_command_win_over_the_profile_and_hold_for_this_run_only(tmp_path: Path) -> None:
    path = tmp_path / "client.conf"
    path.write_text(f"webServiceUrl=https://h:8443\nauthPlugin={PLUGIN}Token\nauthParams=token:one\n")
    seen: list[Any] = []

    @click.group()
    @access_options
    def main() -> None: ...

    @main.group()
    def nouns() -> None: ...

    @nouns.command()
    @admin_option
    @service_option
    def verb(admin_url: str, service_url: str) -> None:
        seen.append((admin_url, service_url, CURRENT.get()))

    default = "pulsar://127.0.0.1:6650"
    run = CliRunner(catch_exceptions=False).invoke
    assert run(main, ["--profile", str(path), "nouns", "verb"]).exit_code == 0
    assert run(main, ["--profile", str(path), "--token", "two", "nouns", "verb", "--admin-url", "x"]).exit_code == 0
    assert run(main, ["nouns", "verb"], env={"MAGNETAR_TOKEN": "three"}).exit_code == 0
    assert run(main, ["--user", "ann:pw", "--tls-any-host", "nouns", "verb"]).exit_code == 0
    assert run(main, ["nouns", "verb"]).exit_code == 0
    assert seen == [
        ("https://h:8443", default, Access(token="token:one")),
        ("x", default, Access(token="two")),
        ("http://127.0.0.1:8080", default, Access(token="three")),
        ("http://127.0.0.1:8080", default, Access(user="ann:pw", verify_hostname=False)),
        ("http://127.0.0.1:8080", default, Access()),
    ]
