import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from bookie.config import BookieConfig
from broker.security.doors import open_doors
from broker.settings.config import load_broker_config
from magnetar.inspect.access import read_profile
from magnetar.processes.secure_folder import SecureFolder
from magnetar_core.runtime.clock import LoopClock
from magnetar_core.runtime.config import load
from magnetar_core.runtime.types import ConfigurationError
from magnetar_core.security.tls.contexts import Certificates, server_context

DAY_MS = 86_400_000


def folder(path: Path, days: int = 0) -> SecureFolder:
    return SecureFolder(path, LoopClock().wall_ms() + days * DAY_MS)


def contents(path: Path) -> dict[str, bytes]:
    return {str(one.relative_to(path)): one.read_bytes() for one in path.rglob("*") if one.is_file()}


BOOKIES = {"bookies/ca.crt", "bookies/tls.crt", "bookies/tls.key"}


def test_what_is_made_once_is_used_again(tmp_path: Path) -> None:
    folder(tmp_path / "keys").prepare(["pulsar.example.org"])
    made = contents(tmp_path / "keys")
    assert set(made) == {"ca.crt", "ca.key", "tls.crt", "tls.key", "token.key", "admin.token", *BOOKIES}
    folder(tmp_path / "keys").prepare(["pulsar.example.org"])
    assert contents(tmp_path / "keys") == made


@pytest.mark.parametrize(("host", "days"), [("other.example.org", 0), ("localhost", 380)])
def test_a_certificate_that_lacks_a_name_or_ends_soon_is_made_anew(tmp_path: Path, host: str, days: int) -> None:
    folder(tmp_path).prepare(["localhost"])
    before = contents(tmp_path)
    folder(tmp_path, days).prepare([host])
    after = contents(tmp_path)
    changed = {name for name in after if after[name] != before[name]}
    assert changed == {"tls.crt", "tls.key"}
    names = x509.load_pem_x509_certificate(after["tls.crt"]).extensions.get_extension_for_class(
        x509.SubjectAlternativeName
    )
    assert {"localhost", host} <= set(names.value.get_values_for_type(x509.DNSName))


def test_secrets_are_their_owners_alone(tmp_path: Path) -> None:
    folder(tmp_path / "keys").prepare([])
    (tmp_path / "keys/token.key").chmod(0o644)
    for name in ("keys", "keys/bookies"):
        (tmp_path / name).chmod(0o755)
    made = folder(tmp_path / "keys")
    made.prepare([])
    made.write_profile("pulsar+ssl://localhost:6651", "https://localhost:8443")
    for place in (tmp_path / "keys", tmp_path / "keys/bookies"):
        modes = {one.name: stat.S_IMODE(one.stat().st_mode) for one in place.iterdir() if one.is_file()}
        assert {name for name, mode in modes.items() if mode != 0o600} == {"ca.crt", "tls.crt"}
        assert stat.S_IMODE(place.stat().st_mode) == 0o700


def test_what_bookies_ask_for_is_of_an_authority_that_signs_nothing_else(tmp_path: Path) -> None:
    folder(tmp_path).prepare([])
    ours, of_bookies, certificate = (
        x509.load_pem_x509_certificate((tmp_path / name).read_bytes())
        for name in ("ca.crt", "bookies/ca.crt", "bookies/tls.crt")
    )
    certificate.verify_directly_issued_by(of_bookies)
    authority = ours.public_key()
    assert isinstance(authority, ec.EllipticCurvePublicKey)
    with pytest.raises(InvalidSignature):
        authority.verify(certificate.signature, certificate.tbs_certificate_bytes, ec.ECDSA(hashes.SHA256()))
    own = load_pem_private_key((tmp_path / "bookies/tls.key").read_bytes(), None).public_key()
    assert own == certificate.public_key() != of_bookies.public_key(), "nobody has the authority's key"
    assert certificate.not_valid_after_utc > datetime.now(UTC) + timedelta(days=3_600), "a process runs for long"


@pytest.mark.parametrize("lost", sorted(BOOKIES))
def test_a_part_of_what_bookies_ask_for_is_made_anew_as_a_whole(tmp_path: Path, lost: str) -> None:
    folder(tmp_path).prepare([])
    before = contents(tmp_path)
    (tmp_path / lost).unlink()
    folder(tmp_path).prepare([])
    after = contents(tmp_path)
    assert {name for name in after if after[name] != before[name]} == BOOKIES


async def test_a_broker_takes_what_is_made(tmp_path: Path) -> None:
    made = folder(tmp_path)
    made.prepare(["localhost"])
    config = load_broker_config({**made.settings(), "brokerServicePortTls": "0"})
    doors = open_doors(config, LoopClock())
    assert doors is not None
    shown = f"Bearer {(tmp_path / 'admin.token').read_text()}"
    assert (await doors.admit_request(shown, None, None, "a test")).caller.role == "admin"
    assert config.port_tls is not None
    assert (config.authorization_enabled, config.super_users) == (True, ("admin",))
    assert Certificates(config.port_tls, lambda files: server_context(files, client_certificates=False), LoopClock())
    profile = read_profile(made.write_profile("pulsar+ssl://localhost:1", "https://localhost:2"))
    assert (profile.service_url, profile.admin_url) == ("pulsar+ssl://localhost:1", "https://localhost:2")
    assert profile.access.headers() == {"Authorization": shown}
    bookie = load(BookieConfig, {**made.bookie_settings(), "journalDirectories": "j", "ledgerDirectories": "l"})
    assert bookie.tls is not None
    assert config.bookie_tls is not None
    assert bookie.tls.certificate == config.bookie_tls.certificate == f"{profile.tls_directory}/tls.crt"
    assert bookie.access_rules.demand_tls


@pytest.mark.parametrize("name", ["tls.crt", "token.key"])
def test_a_file_that_cannot_be_used_is_told_with_the_way_out(tmp_path: Path, name: str) -> None:
    folder(tmp_path).prepare([])
    (tmp_path / name).write_bytes(b"nonsense")
    (tmp_path / "admin.token").unlink()
    with pytest.raises(ConfigurationError):
        folder(tmp_path).prepare([])


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match="--secure"):
        folder(tmp_path / "file/keys").prepare([])
