"""TLS at the gRPC port, which gRPC does itself: the files are read anew for each connection that finds them changed.

gRPC can demand a client's certificate or not look at it; it cannot take one from those who have one. So certificates
are demanded where nothing else authenticates clients, and where `tlsRequireTrustedClientCertOnConnect` says so.
"""

import logging
from typing import Any, Final

import grpc

from broker.security.doors import port_context
from broker.settings.config import BrokerConfig
from broker.settings.groups.authentication import PROVIDERS
from magnetar_core.runtime.clock import Clock
from magnetar_core.runtime.types import ConfigurationError
from magnetar_core.security.authentication import TLS
from magnetar_core.security.tls.contexts import Certificates, certificate_pem, key_pem, trusted_pem

log = logging.getLogger(__name__)

_METHODS: Final = PROVIDERS


def demands_certificates(config: BrokerConfig) -> bool:
    """Whether a client without a trusted certificate is refused at the gRPC port."""
    methods = {_METHODS[name] for name in config.authentication_providers} if config.authentication_enabled else set()
    return config.tls_client_required or methods == {TLS}


def server_credentials(config: BrokerConfig, clock: Clock) -> Any:
    """The credentials of the port. Raises ConfigurationError."""
    files = config.port_tls
    assert files is not None, "a port with TLS needs certificates"
    certificates = Certificates(files, port_context(config), clock)  # it also checks what it reads
    demands = demands_certificates(config)
    used_context = certificates.context

    def read() -> Any:
        pair = (key_pem(files), certificate_pem(files))
        trusted = trusted_pem(files) if demands else None
        return grpc.ssl_server_certificate_configuration([pair], root_certificates=trusted)

    def changed() -> Any:
        """Called by gRPC for each connection; None: nothing has changed."""
        nonlocal used_context
        context = certificates.context
        if context is used_context:
            return None
        used_context = context
        try:
            return read()
        except (OSError, ConfigurationError) as error:
            log.error("the changed TLS files are not used for gRPC, the former ones stay: %s", error)
            return None

    try:
        return grpc.dynamic_ssl_server_credentials(read(), changed, require_client_authentication=demands)
    except OSError as error:
        raise ConfigurationError(f"{files.origin}: {error}") from None
