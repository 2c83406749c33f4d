"""Loopback addresses: recognise this machine's own addresses, and refuse to serve Flower on others."""

from __future__ import annotations

import ipaddress

from fedsift.core.errors import ConfigError


def is_loopback(host: str) -> bool:
    """By name or number; an IPv6 address may stand in brackets."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


# Addresses of Flower's own programs
# ------------------------------------------------------------------------------


LOOPBACK_ONLY = (
    "Flower answers its control calls on the port that sites reach, so a holder of ca.crt could run code on the "
    "coordinator and at every site"
)
"""Shown in a test: with nothing but the CA certificate a client registered keys and started an app of its own."""


def refuse_the_network(host: str) -> None:
    """Encryption alone does not help: the certificate that opens the line is the one that every site has."""
    if not is_loopback(host):
        raise ConfigError(
            f"'{host}' is not this machine: {LOOPBACK_ONLY}; without a gateway (--certificate, --key and --roster) "
            "only 127.0.0.1 is served (docs/deployment.md)"
        )


def host_of(address: str) -> str:
    host, sign, port = address.rpartition(":")
    if not sign or not port.isdigit():
        raise ConfigError(f"'{address}' is no address: write host:port, e.g. 127.0.0.1:8000")
    return host
