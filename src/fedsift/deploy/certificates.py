"""TLS certificates: temporary ones for loopback, contexts for server and client, and clear errors about those of
others."""

from __future__ import annotations

import ipaddress
import socket
import ssl
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from fedsift.core.errors import ConfigError
from fedsift.core.files import private_folder, write_private

OWN_LIFE = timedelta(days=3650)
"""Of a throw-away certificate: it is made anew at every start, and must outlive the longest run between two."""


@dataclass(frozen=True)
class CertificatePair:
    """A certificate and its private key, both PEM files."""

    certificate: Path
    key: Path


def temporary_certificate(folder: Path, now: datetime | None = None) -> CertificatePair:
    """A certificate for localhost that signs itself, in a folder that only this user can enter."""
    now = now or datetime.now(UTC)
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    names = [x509.DNSName("localhost")]
    addresses = [x509.IPAddress(ipaddress.ip_address(address)) for address in ("127.0.0.1", "::1")]
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + OWN_LIFE)
        .add_extension(x509.SubjectAlternativeName([*names, *addresses]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    private_folder(folder)
    pair = CertificatePair(folder / "own.crt", folder / "own.key")
    write_private(
        pair.key,
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ),
    )
    write_private(pair.certificate, certificate.public_bytes(serialization.Encoding.PEM))
    return pair


def server_context(pair: CertificatePair, now: datetime | None = None) -> ssl.SSLContext:
    """What a gateway needs to speak TLS; an expired certificate or another one's key is refused here, by name."""
    for path in (pair.certificate, pair.key):
        if not path.is_file():
            raise ConfigError(f"'{path}' does not exist: the gateway needs its certificate and the key of it (PEM)")
    try:
        certificate = x509.load_pem_x509_certificate(pair.certificate.read_bytes())
    except ValueError as error:
        raise ConfigError(f"'{pair.certificate}' is no certificate (PEM): {error}") from None
    now = now or datetime.now(UTC)
    if now > certificate.not_valid_after_utc:
        raise ConfigError(
            f"the certificate '{pair.certificate}' expired on {certificate.not_valid_after_utc:%Y-%m-%d}: make a new "
            "one, signed with the federation's ca.key"
        )
    if now < certificate.not_valid_before_utc:
        raise ConfigError(
            f"the certificate '{pair.certificate}' counts from {certificate.not_valid_before_utc:%Y-%m-%d} on: is the "
            "clock of this machine right?"
        )
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(pair.certificate, pair.key)
    except ssl.SSLError:
        raise ConfigError(f"'{pair.key}' is not the private key of the certificate '{pair.certificate}'") from None
    return context


def client_context(ca: Path) -> ssl.SSLContext:
    """Trusts certificates that this authority signed, and no other."""
    if not ca.is_file():
        raise ConfigError(f"the CA certificate '{ca}' does not exist: the coordinator gives it to every site")
    try:
        return ssl.create_default_context(cafile=str(ca))
    except ssl.SSLError as error:
        raise ConfigError(f"'{ca}' is no certificate (PEM): {error.reason or error}") from None


def words_of(error: BaseException, address: str, ca: Path) -> str:
    """Why no safe line to a coordinator came about, for the person at the site."""
    found: BaseException | None = error
    while found is not None and not isinstance(found, ssl.SSLError):
        found = found.__cause__ or found.__context__
    text = str(error) if found is None else str(found)
    if "certificate has expired" in text:
        return f"the certificate of {address} has expired: tell the coordinator (or is the clock here wrong?)"
    if "not yet valid" in text:
        return f"the certificate of {address} is not valid yet: is the clock of this machine right?"
    if "Hostname mismatch" in text or "IP address mismatch" in text or "doesn't match" in text:
        return f"the certificate of {address} is for another name: use the name that the coordinator gave you"
    if "CERTIFICATE_VERIFY_FAILED" in text:
        return (
            f"the certificate of {address} was not signed by {ca.name}: this is another coordinator, or someone "
            "between you and yours. Do not go on; ask the coordinator for the right ca.crt by another way"
        )
    if "WRONG_VERSION_NUMBER" in text or "record layer failure" in text:
        return f"{address} does not speak TLS: this is no fedsift gateway, or a trial that was started with --insecure"
    if isinstance(found, ssl.SSLError):
        return f"no encrypted line to {address}: {found.reason or found}"
    return f"nobody answers at {address} ({error}): is the coordinator's superlink running, and the port open?"


def greet(address: str, ca: Path, seconds: float = 10.0) -> str | None:
    """Try a safe line to a coordinator. None if it stands, words if nobody answers (that may change by itself).

    Raises ConfigError if the certificate of what answers is not trusted: waiting does not help then.
    """
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    context = client_context(ca)
    try:
        with (
            socket.create_connection((host, int(port)), timeout=seconds) as line,
            context.wrap_socket(line, server_hostname=host),
        ):
            return None
    except ssl.SSLError as error:
        raise ConfigError(words_of(error, address, ca)) from None
    except OSError as error:
        return words_of(error, address, ca)
