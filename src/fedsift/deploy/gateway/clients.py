"""Who comes to a door without a key of the roster, by address: a few times, then no further than this."""

from __future__ import annotations

import ipaddress
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from fedsift.deploy.gateway.limits import KeyLimits, TokenBucket

MOST_CALLERS = 4096
"""Addresses told apart; those beyond share one place, so that none of them costs memory."""
ELSEWHERE = "other addresses"
LET_IN = "let in"
"""In a request's scope: that a listed key signed it. Until one of its requests has that, a line is a stranger's,
however many were answered with a refusal."""
WRITTEN_EVERY = 60.0
"""Seconds for which the requests of a caller who is turned away are only counted."""


def client_of(address: str) -> str:
    """The one behind an address: for IPv6 its network of 64 bits, within which addresses cost nothing."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv4Address):
        return str(found)
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.ip_network((found, 64), strict=False))


@dataclass
class RefusalCount:
    """Requests of one caller that were not looked at."""

    since: float
    count: int = 0


class UnknownClients:
    """Counts refusals of those who named no listed key. A listed one behind the same address is let in all the same."""

    def __init__(self, limits: KeyLimits, clock: Callable[[], float] = time.monotonic) -> None:
        self._limits, self._clock = limits, clock
        self._allowances: dict[str, TokenBucket] = {}
        self._turned_away: dict[str, RefusalCount] = {}
        self._looked_through = clock()

    def spent(self, caller: str) -> bool:
        """Whether this caller was refused so often that the next request is not looked at."""
        return self._of(caller).left(self._clock()) < 1

    def refused(self, caller: str) -> None:
        self._of(caller).spend(1)

    def first_of_many(self, caller: str) -> bool:
        """Note a request that was not looked at; whether it is the one that is written down."""
        if caller not in self._turned_away and len(self._turned_away) >= MOST_CALLERS:
            caller = ELSEWHERE
        if caller in self._turned_away:
            self._turned_away[caller].count += 1
            return False
        self._turned_away[caller] = RefusalCount(self._clock())
        return True

    def counted(self) -> Iterator[tuple[str, int]]:
        """Callers whose time of being counted is over, the longest ago first, with how many more came in it."""
        while self._turned_away:
            caller, kept = next(iter(self._turned_away.items()))
            if self._clock() - kept.since < WRITTEN_EVERY:
                return
            del self._turned_away[caller]
            if kept.count:
                self._turned_away[caller] = RefusalCount(self._clock())  # goes on being counted, at the end of the row
                yield caller, kept.count

    def _of(self, caller: str) -> TokenBucket:
        if caller not in self._allowances and len(self._allowances) >= MOST_CALLERS:
            self._drop_recovered()
            if len(self._allowances) >= MOST_CALLERS:
                caller = ELSEWHERE
        if caller not in self._allowances:
            most, rate = self._limits.refusals, self._limits.refusals_a_second
            self._allowances[caller] = TokenBucket(most, rate, self._clock())
        return self._allowances[caller]

    def _drop_recovered(self) -> None:
        """Forget those who have earned all back, no more than once a second: that looks at everyone."""
        now = self._clock()
        if now - self._looked_through >= 1.0:
            self._looked_through = now
            self._allowances = {name: each for name, each in self._allowances.items() if each.left(now) < each.most}
