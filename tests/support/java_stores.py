"""Key stores for tests, made by Java's own `keytool`: an authority, a server's store and what else people have."""

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

PASSWORD: Final = "store-7-secret"

# Java 8 and the first versions of 11 encrypt certificates with RC2.
LEGACY: Final = ("-J-Dkeystore.pkcs12.legacy",)
WITHOUT_PASSWORD: Final = (
    "-J-Dkeystore.pkcs12.certProtectionAlgorithm=NONE",
    "-J-Dkeystore.pkcs12.macAlgorithm=NONE",
)


def keytool(*arguments: str, cwd: Path, password: str = PASSWORD) -> None:
    done = subprocess.run(
        ["keytool", *arguments, "-storepass", password], cwd=cwd, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


class JavaStores:
    """A folder with `ca.crt` and stores, in which the command puts what is asked for."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self._keytool("-genkeypair", "-alias", "ca", "-dname", "CN=authority", "-ext", "bc:c", "-keyalg", "EC",
                      "-keystore", "ca.p12")  # fmt: skip
        self._keytool("-exportcert", "-alias", "ca", "-keystore", "ca.p12", "-rfc", "-file", "ca.crt")

    def _keytool(self, *arguments: str) -> None:
        keytool(*arguments, cwd=self.directory)

    @property
    def certificate(self) -> Path:
        return self.directory / "ca.crt"

    def key_store(self, name: str, *, role: str = "localhost", more: Sequence[str] = ()) -> Path:
        """A store with a key whose certificate the authority signed, the chain behind it, and the authority again as a
        trusted certificate of its own."""
        store = ("-keystore", name)
        self._keytool("-genkeypair", "-alias", "own", "-dname", f"CN={role}", "-keyalg", "RSA", *store, *more)
        self._keytool("-certreq", "-alias", "own", *store, "-file", "request")
        self._keytool("-gencert", "-alias", "ca", "-keystore", "ca.p12", "-infile", "request", "-outfile", "signed",
                      "-ext", "san=dns:localhost,ip:127.0.0.1")  # fmt: skip
        self._keytool("-importcert", "-noprompt", "-alias", "ca", *store, "-file", "ca.crt")
        self._keytool("-importcert", "-noprompt", "-alias", "own", *store, "-file", "signed")
        return self.directory / name

    def trust_store(self, name: str, *more: str) -> Path:
        """A store with the authority's certificate alone."""
        self._keytool("-importcert", "-noprompt", "-alias", "ca", "-file", "ca.crt", "-keystore", name, *more)
        return self.directory / name
