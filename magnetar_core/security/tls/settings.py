"""The settings of TLS for one side of connections: one block in several configurations, under other names. No IO.

    certificate, key, trusted      PEM files; or a folder with all three (`directory`)
    key_store, trust_store         Java's key stores instead of them, with `with_key_store`

A configuration has a field, with a prefix, for each of them that its program has; `TlsSettings.of` collects these.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

from magnetar_core.security.tls.files import (
    REFRESH_S,
    TlsFiles,
    directory_files,
    openssl_ciphers,
    protocol_problems,
    store_problem,
    store_type_problem,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsSettings:
    """The block with its rules. *names*: field → name of the setting, for those that the configuration has."""

    names: Mapping[str, str]
    directory: str = ""
    certificate: str = ""
    key: str = ""
    key_type: str = "PEM"
    key_password_file: str = ""
    trusted: str = ""
    trust_type: str = "PEM"
    with_key_store: bool = False
    key_store_type: str = ""
    key_store: str = ""
    key_store_password: str = field(default="", repr=False)
    trust_store_type: str = ""
    trust_store: str = ""
    trust_store_password: str = field(default="", repr=False)
    insecure: bool = False
    """The other side's certificate is not asked for."""
    protocols: tuple[str, ...] = ()
    ciphers: tuple[str, ...] = ()
    verify_hostname: bool = False
    refresh_s: int = REFRESH_S

    @classmethod
    def of(cls, config: Any, prefix: str) -> Self:
        """The block in *config*, a dataclass whose fields have the names of these with *prefix*."""
        own = {prefix + field.name for field in dataclasses.fields(cls)}
        settings = {field.name.removeprefix(prefix): field for field in dataclasses.fields(config) if field.name in own}
        names = {name: setting.metadata["name"] for name, setting in settings.items()}
        return cls(names=names, **{name: getattr(config, setting.name) for name, setting in settings.items()})

    @property
    def trust(self) -> tuple[str, str]:
        """The setting with the trusted certificates, and its value."""
        name = "trust_store" if self.with_key_store else "trusted"
        return self.names[name], getattr(self, name)

    @property
    def files(self) -> TlsFiles:
        """The files, and how they are used."""
        if self.directory:
            files = directory_files(self.directory, self.names["directory"])
        elif self.with_key_store:
            files = TlsFiles(
                origin=self._named("key_store", "trust_store"),
                key_store=self.key_store,
                key_store_password=self.key_store_password,
                trust_store="" if self.insecure else self.trust_store,
                trust_store_password=self.trust_store_password,
            )
        else:
            files = TlsFiles(
                origin=self._named("certificate", "key", "trusted"),
                certificate=self.certificate,
                key=self.key,
                key_password_file=self.key_password_file,
                trusted="" if self.insecure else self.trusted,
            )
        return replace(
            files,
            protocols=self.protocols,
            ciphers=openssl_ciphers(self.names.get("ciphers", ""), self.ciphers),
            verify_hostname=self.verify_hostname,
            refresh_s=self.refresh_s,
        )

    def _named(self, *fields: str) -> str:
        return ", ".join(self.names[name] for name in fields)

    def missing(self, why: str, *fields: str) -> Iterator[str]:
        """Problems of those *fields* that are empty; *why* says who needs them."""
        for name in fields:
            if not getattr(self, name):
                yield f"{self.names[name]} is not set, which {why}"

    def java_problems(self, *fields: str) -> Iterator[str]:
        """Problems of those *fields* that name key stores where PEM files are read."""
        for name in fields:
            kind = "trust" if name == "trusted" else "key"
            type_setting = self.names.get(f"{kind}_type") or self.names[f"{kind}_store_type"]
            problem = store_problem(type_setting, getattr(self, f"{kind}_type"), self.names[name], getattr(self, name))
            if problem is not None:
                yield problem

    def store_type_problems(self) -> Iterator[str]:
        """Types of key stores that cannot be read."""
        for name in ("key_store_type", "trust_store_type") if self.with_key_store else ():
            if (problem := store_type_problem(self.names[name], getattr(self, name))) is not None:
                yield problem

    def suite_problems(self) -> Iterator[str]:
        """Protocols and suites that are not offered."""
        yield from protocol_problems(self.names["protocols"], self.protocols)
        try:
            openssl_ciphers(self.names["ciphers"], self.ciphers)
        except ValueError as error:
            yield str(error)
