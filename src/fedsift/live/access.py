"""Access control of the live page: allowed hosts, token and origin of a request.

On loopback everybody on this machine may look, and who has the token may act. Off loopback nothing is shown without
it. A browser that was lured here by another page (a name that suddenly means 127.0.0.1, a form that posts across) is
turned away: the Host must be ours, and an action must come from our own page.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from fedsift.core.errors import ConfigError
from fedsift.core.loopback import is_loopback

LEAST_TOKEN = 16
HEADER = "x-fedsift"
"""An action carries this header: a page from elsewhere cannot add it without asking, and is refused."""


@dataclass(frozen=True)
class AccessGuard:
    """The rules for one server."""

    host: str
    port: int
    token: str = field(repr=False, default_factory=lambda: secrets.token_urlsafe(24))

    def __post_init__(self) -> None:
        if len(self.token) < LEAST_TOKEN or not self.token.isascii() or not self.token.isprintable():
            raise ConfigError(
                f"--token needs at least {LEAST_TOKEN} printable ASCII characters; without it one is drawn"
            )

    @property
    def local(self) -> bool:
        return is_loopback(self.host)

    @property
    def cookie(self) -> str:
        """Browsers do not part cookies by port, so the name does."""
        return f"fedsift_{self.port}"

    def knows_host(self, host: str) -> bool:
        """Whether the Host header names this server. Off loopback the token protects, under whatever name."""
        if not self.local:
            return bool(host)
        try:
            parts = urlsplit(f"//{host}")
            name, port = parts.hostname or "", parts.port
        except ValueError:
            return False
        return is_loopback(name) and port in (self.port, None if self.port == 80 else self.port)

    def has_token(self, cookies: Mapping[str, str]) -> bool:
        return self.is_token(cookies.get(self.cookie, ""))

    def is_token(self, text: str) -> bool:
        return hmac.compare_digest(text.encode(errors="replace"), self.token.encode())

    def may_look(self, cookies: Mapping[str, str]) -> bool:
        return self.local or self.has_token(cookies)

    def from_our_page(self, headers: Mapping[str, str]) -> bool:
        """An action's request: our own header, and no other page's origin."""
        origin = headers.get("origin", "")
        site = headers.get("sec-fetch-site", "same-origin")
        own = origin == f"http://{headers.get('host', '')}"
        return HEADER in headers and own and site == "same-origin"
