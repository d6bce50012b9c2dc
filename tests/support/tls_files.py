"""Certificates for tests, made with the `openssl` command as the operator's page says: an authority and folders."""

import subprocess
from pathlib import Path

DAYS = "2"
NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-noenc")


def openssl(*arguments: str, cwd: Path) -> None:
    done = subprocess.run(["openssl", *arguments], cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def _lasting(days: str) -> tuple[str, ...]:
    """The options for a certificate from now on for *days*; less than 0: for one that has expired, which OpenSSL 3.6
    does not make of a number of days any more, and older ones cannot make by dates."""
    if not days.startswith("-"):
        return "-days", days
    known = subprocess.run(["openssl", "x509", "-help"], capture_output=True, text=True, check=False).stderr
    if "-not_after" not in known:
        return "-days", days
    return "-not_before", "20260101000000Z", "-not_after", "20260102000000Z"


class Authority:
    """A folder with `ca.crt` and `ca.key`, and what they sign."""

    def __init__(self, directory: Path, name: str = "authority") -> None:
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        openssl(
            "req", "-x509", *NEW_KEY, "-days", DAYS, "-subj", f"/CN={name}", "-keyout", "ca.key", "-out", "ca.crt",
            cwd=directory,
        )  # fmt: skip

    @property
    def certificate(self) -> Path:
        return self.directory / "ca.crt"

    def folder(self, name: str, *, unit: str = "", host: str = "", password: str = "", days: str = DAYS) -> Path:
        """A folder with `tls.crt`, `tls.key` and `ca.crt` for one server; *unit* is the OU of its subject."""
        made = self.directory / name
        made.mkdir()
        subject = (f"/OU={unit}" if unit else "") + f"/CN={name}"
        openssl("req", "-new", *NEW_KEY, "-subj", subject, "-keyout", "tls.key", "-out", "request", cwd=made)
        extensions = made / "extensions"
        extensions.write_text(f"subjectAltName={host}\n" if host else "basicConstraints=CA:FALSE\n")
        openssl(
            "x509", "-req", "-in", "request", "-CA", "../ca.crt", "-CAkey", "../ca.key", "-CAcreateserial",
            *_lasting(days), "-extfile", "extensions", "-out", "tls.crt", cwd=made,
        )  # fmt: skip
        if password:
            openssl("pkcs8", "-topk8", "-in", "tls.key", "-out", "locked", "-passout", f"pass:{password}", cwd=made)
            (made / "locked").replace(made / "tls.key")
            (made / "password").write_text(password + "\n")
        (made / "ca.crt").write_bytes(self.certificate.read_bytes())
        return made
