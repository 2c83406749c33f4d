"""Whose key signed a request, by the three headers that Flower's nodes send with every one."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from fedsift.contract.errors import ConfigError
from fedsift.deploy.limits import SIGNATURE_LIFE, Refused
from fedsift.deploy.roster import fingerprint

KEY = "flwr-public-key"


@dataclass(frozen=True)
class Signed:
    """A key that signed a moment."""

    public: bytes
    mark: str
    """The key's fingerprint."""
    stamp: str


def signed_by(headers: Mapping[str, str]) -> Signed:
    """The key whose signature a request bears, made lately; refused in words otherwise."""
    try:
        public = b64decode(headers[KEY], validate=True)
        signature = b64decode(headers["flwr-signature"], validate=True)
        stamp = headers["flwr-timestamp"]
        age = (datetime.now(UTC) - datetime.fromisoformat(stamp)).total_seconds()
        key = serialization.load_pem_public_key(public)
        if not isinstance(key, ec.EllipticCurvePublicKey):
            raise ValueError("no key of an elliptic curve")
        key.verify(signature, stamp.encode("ascii"), ec.ECDSA(hashes.SHA256()))
        mark = fingerprint(public)
    except (KeyError, ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm, ConfigError):
        raise Refused(401, "this request is not signed with a site's key") from None
    if abs(age) > SIGNATURE_LIFE:
        raise Refused(401, f"this request was signed {age:.0f} s ago: set the clocks of both machines right")
    return Signed(public, mark, stamp)
