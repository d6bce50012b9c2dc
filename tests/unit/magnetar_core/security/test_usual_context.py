"""The client's side of TLS with the ssl library's own choices, which differ from Python to Python."""

import ssl
from pathlib import Path

import pytest

from magnetar_core.security.tls.contexts import usual_context
from tests.support.tls_files import Authority


def shakes_hands(client: ssl.SSLContext, server: ssl.SSLContext) -> bool:
    """Raises ssl.SSLError where the client does not trust the server."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = [
        client.wrap_bio(to_client, to_server, server_hostname="localhost"),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    done = set[int]()
    for _ in range(10):
        for number, side in enumerate(sides):
            try:
                side.do_handshake()
                done.add(number)
            except ssl.SSLWantReadError:
                pass
    return len(done) == len(sides)


def test_an_authority_that_does_not_say_what_its_key_is_for_is_taken_by_every_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority(tmp_path / "authority")
    folder = authority.folder("broker", host="DNS:localhost")
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(folder / "tls.crt", folder / "tls.key")
    former = ssl.create_default_context

    def strict(cafile: str | None = None) -> ssl.SSLContext:
        """As Python 3.13 makes it."""
        made = former(cafile=cafile)
        made.verify_flags |= ssl.VERIFY_X509_STRICT
        return made

    monkeypatch.setattr(ssl, "create_default_context", strict)
    trusted = str(authority.certificate)
    with pytest.raises(ssl.SSLCertVerificationError, match=r"key usage|[Mm]issing"):
        shakes_hands(strict(trusted), server)
    assert shakes_hands(usual_context(trusted), server)
    other = Authority(tmp_path / "other")
    with pytest.raises(ssl.SSLCertVerificationError):
        shakes_hands(usual_context(str(other.certificate)), server)
