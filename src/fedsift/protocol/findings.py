"""`Findings`: what a method found out about the sites, recorded with its round."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

FINDINGS = "findings"
"""The key of a round's line."""


@dataclass(frozen=True)
class Findings:
    """Which sites look noisy, and how sure that is."""

    noisy: tuple[str, ...]
    """Sites called noisy; () says that none looks so."""
    unmeasured: tuple[str, ...] = ()
    """Sites about which nothing can be said: they gave no measurement."""
    probability: dict[str, float] = field(default_factory=dict)
    """That a site is noisy, by site, from methods that say it."""
    p_value: float | None = None
    """Chance of such a split if all sites were alike, from methods that test this."""
    threshold: float | None = None
    """p-values up to this one name sites."""
    steadiness: float | None = None
    """Share of slightly shaken measurements with the same verdict, from methods that try it."""
    borderline: bool = False
    """Whether rounding, or another seed, might well have turned the verdict."""
    level: dict[str, float] = field(default_factory=dict)
    """Estimated share of wrong labels, by site."""
    no_clean_reference: bool = False
    """Whether even the best sites have many wrong labels: then no site stands out, `noisy` is empty
    and says nothing."""

    def line(self) -> dict[str, Any]:
        """As the round's line holds it: what is not known is left out."""
        line: dict[str, Any] = {"noisy": list(self.noisy)}
        if self.unmeasured:
            line["unmeasured"] = list(self.unmeasured)
        if self.p_value is not None:
            line |= {"p_value": self.p_value, "threshold": self.threshold, "borderline": self.borderline}
        if self.steadiness is not None:
            line["steadiness"] = self.steadiness
        if self.probability:
            line["probability"] = dict(self.probability)
        if self.level:
            line["level"] = dict(self.level)
        if self.no_clean_reference:
            line["no_clean_reference"] = True
        return line

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Findings | None:
        """The findings of a round's line, None where it has none."""
        line = row.get(FINDINGS)
        if not isinstance(line, Mapping):
            return None
        return cls(
            noisy=tuple(line.get("noisy", ())),
            unmeasured=tuple(line.get("unmeasured", ())),
            probability=dict(line.get("probability", {})),
            p_value=line.get("p_value"),
            threshold=line.get("threshold"),
            steadiness=line.get("steadiness"),
            borderline=bool(line.get("borderline", False)),
            level=dict(line.get("level", {})),
            no_clean_reference=bool(line.get("no_clean_reference", False)),
        )

    @classmethod
    def last(cls, rows: Iterable[Mapping[str, Any]]) -> Findings | None:
        """The findings that stand at the end of these rounds."""
        return next((found for row in reversed(list(rows)) if (found := cls.of(row))), None)

    def by_site(self, sites: Iterable[str]) -> dict[str, dict[str, Any]]:
        """Columns of the site table: `noisy`, `noisy_probability`, `noise_level`.

        Without a clean reference no site is judged, whatever an earlier round said.
        """
        judged = [site for site in sites if site not in self.unmeasured and not self.no_clean_reference]
        columns: dict[str, dict[str, Any]] = {"noisy": {site: site in self.noisy for site in judged}}
        if self.probability or self.no_clean_reference:
            columns["noisy_probability"] = dict(self.probability)
        if self.level:
            columns["noise_level"] = dict(self.level)
        return columns
