"""Key stores as Java's own `keytool` makes them: an authority, stores with keys, and what else people have.

Each call of keytool is a start of Java, so tests use the stores in `tests/vectors/key-stores`, which

    python -m tests.support.java_stores

makes anew. They are valid for 50 years; the keys in them are for nothing else.
"""

import shutil
import subprocess
from pathlib import Path
from typing import Final

PASSWORD: Final = "store-7-secret"
RECORDED: Final = Path(__file__).parents[1] / "vectors" / "key-stores"
STRANGER: Final = RECORDED / "stranger"
"""Of another authority: `own.p12`, `trust.p12`."""

# Days; less than the time at which a test looks at expired certificates.
_VALID: Final = ("-validity", "18000")

# Java 8 and the first versions of 11 encrypt certificates with RC2.
_LEGACY: Final = ("-J-Dkeystore.pkcs12.legacy",)
_WITHOUT_PASSWORD: Final = (
    "-J-Dkeystore.pkcs12.certProtectionAlgorithm=NONE",
    "-J-Dkeystore.pkcs12.macAlgorithm=NONE",
)


def keytool(*arguments: str, cwd: Path, password: str = PASSWORD) -> None:
    done = subprocess.run(
        ["keytool", *arguments, "-storepass", password], cwd=cwd, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


class JavaStores:
    """A folder in which keytool puts what is asked for; `ca.crt` from the beginning."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self._keytool("-genkeypair", "-alias", "ca", "-dname", "CN=authority", "-ext", "bc:c", "-keyalg", "EC",
                      "-keystore", "ca.p12", *_VALID)  # fmt: skip
        self._keytool("-exportcert", "-alias", "ca", "-keystore", "ca.p12", "-rfc", "-file", "ca.crt")

    def _keytool(self, *arguments: str) -> None:
        keytool(*arguments, cwd=self.directory)

    def key_store(self, name: str, *, role: str = "localhost") -> Path:
        """A store with a key whose certificate the authority signed, the chain behind it, and the authority again as a
        trusted certificate of its own."""
        store = ("-keystore", name)
        self._keytool("-genkeypair", "-alias", "own", "-dname", f"CN={role}", "-keyalg", "RSA", *_VALID, *store)
        self._keytool("-certreq", "-alias", "own", *store, "-file", "request")
        self._keytool("-gencert", "-alias", "ca", "-keystore", "ca.p12", "-infile", "request", "-outfile", "signed",
                      "-ext", "san=dns:localhost,ip:127.0.0.1", *_VALID)  # fmt: skip
        self._keytool("-importcert", "-noprompt", "-alias", "ca", *store, "-file", "ca.crt")
        self._keytool("-importcert", "-noprompt", "-alias", "own", *store, "-file", "signed")
        return self.directory / name

    def trust_store(self, name: str, *more: str) -> Path:
        """A store with the authority's certificate alone."""
        self._keytool("-importcert", "-noprompt", "-alias", "ca", "-file", "ca.crt", "-keystore", name, *more)
        return self.directory / name

    def clean(self) -> None:
        """Remove what only keytool needs."""
        for name in ("ca.p12", "request", "signed"):
            (self.directory / name).unlink()


def make_all(directory: Path) -> None:
    """What is in `tests/vectors/key-stores`."""
    stores = JavaStores(directory)
    stores.key_store("server.jks")
    for role in ("broker", "ann"):
        stores.key_store(f"{role}.jks", role=role)
    stores.trust_store("trust.jks")
    stores.trust_store("legacy.p12", *_LEGACY)
    stores.trust_store("open.p12", *_WITHOUT_PASSWORD)
    for kind in ("JKS", "JCEKS"):
        stores.trust_store(f"old-{kind}", "-storetype", kind)
    stores.clean()
    others = JavaStores(directory / STRANGER.name)
    others.key_store("own.p12")
    others.trust_store("trust.p12")
    others.clean()


def main() -> None:
    shutil.rmtree(RECORDED, ignore_errors=True)
    make_all(RECORDED)


if __name__ == "__main__":
    main()
