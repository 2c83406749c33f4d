"""Protection of the model: each update's length and direction are compared with the other sites' before it is used.

Each reply's models (`Reply.moves`) are compared with the same ones of the round's other sites: the length and
direction of the update. These are heuristics, and an honest site may come to be refused by them: docs/attacks.md has
the rates. So they judge where sites are real, in simulations only if the study asks for it, and no refusal is for ever:
a site is tried again after some exchanges (`Absences`).

What a site declares of itself stretches no guard beyond a bound: directions are judged by lengths as they are, and a
size counts for its share at most (`fair_share`).
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from fedsift.core.codec import digest_of
from fedsift.core.ranges import AtLeastOne, AtLeastZero, Range, RangeChecked
from fedsift.core.text import short
from fedsift.protocol.messages import Reply, RequestEnvelope, Weights
from fedsift.runtime.gate.reply_checks import unchecked

# Turns: a site whose update agreed with the others' and is then reversed is recognised by its last one
# ------------------------------------------------------------------------------

COMMON = 0.5
"""Median cosine of a cohort that has a common direction. Of sites with few classes, at 0.3 to 0.4, honest ones turned
by 0.58 from one exchange to the next."""


def shares(cosines: Mapping[str, float]) -> dict[str, float]:
    """Each site's cosine with the others as a share of the cohort's median; nothing where they have no direction."""
    middle = statistics.median(cosines.values())
    return {site: cosine / middle for site, cosine in cosines.items()} if middle > COMMON else {}


def turn(before: float, now: float) -> float:
    """How far a site has turned round, from 0 up: it went along with the others by so much, and goes back by as much.

    An attacker that sends its honest update with the sign turned comes from 1 to -1, which is 1. An honest site with
    wrong labels goes back as well once the others have learnt, but never went along as they do.
    """
    return max(0.0, min(before, -now))


# Models that a site sends a second time
# ------------------------------------------------------------------------------

KEPT_DIGESTS = 64
"""Accepted models of a site that are known again if they are sent a second time."""
SHORT = 12


class StartDigests:
    """The models that an exchange's answers began at: most are one object, whose fingerprint is taken once."""

    def __init__(self) -> None:
        self.known: dict[int, tuple[Weights, str]] = {}
        """By identity; the model is held, for otherwise another one could get its identity."""

    def mark(self, model: Weights, start: Weights) -> str:
        """Fingerprints of a model and of where it began; "" for one that came back as it was sent, which a site may do
        as often as it is asked."""
        if all(torch.equal(tensor, start[name]) for name, tensor in model.items()):
            return ""
        if id(start) not in self.known:
            self.known[id(start)] = start, digest_of(start)[:SHORT]
        return f"{digest_of(model)[:SHORT]}-{self.known[id(start)][1]}"


def replays(mark: str, seen: Collection[str]) -> bool:
    """Whether the model was sent before and began elsewhere then: trained twice from one place, on few samples, it may
    well end at one place."""
    model, _, begun = mark.partition("-")
    return bool(begun) and any(known != mark and known.startswith(model) for known in seen)


# Length and direction of updates, beside the others': what separates a hostile update from an honest one
# ------------------------------------------------------------------------------

_CHUNK = 1 << 18
"""Coordinates looked at together, so that float64 copies of a large tensor stay small."""
_FEWEST = 4
"""A tensor of fewer numbers may well hold equal ones."""


def relative_length(model: Weights, start: Weights, names: Sequence[str]) -> float:
    """||w_k - w|| / ||w|| over the named tensors; ||w_k|| where w is nothing but zeros."""
    change = length = 0.0
    for name in names:
        before = start[name].double()
        change += float((model[name].double() - before).square().sum())
        length += float(before.square().sum())
    return float((change / length) ** 0.5 if length > 0 else change**0.5)


def remaining(model: Weights, start: Weights, names: Sequence[str]) -> float:
    """||w_k|| / ||w|| over the named tensors; 1 where w is nothing but zeros."""
    after = sum(float(model[name].double().square().sum()) for name in names)
    before = sum(float(start[name].double().square().sum()) for name in names)
    return float((after / before) ** 0.5) if before > 0 else 1.0


def agreements(models: Sequence[Weights], starts: Sequence[Weights], names: Sequence[str]) -> list[float]:
    """cos(u_k, sum of u_j / ||u_j|| over all j but k) for every update u_k = w_k - w, in -1 to 1.

    Every other site counts alike, however long its update is. 0 for an update that goes nowhere, or where the others'
    cancel out. Two passes and sums over pieces: linear in the number of sites.
    """
    squares = torch.zeros(len(models), dtype=torch.float64)
    for rows in _updates(models, starts, names):
        squares += rows.square().sum(1)
    moved = squares > 0
    scale = torch.where(moved, squares, 1.0).rsqrt()
    with_all, whole = torch.zeros_like(squares), 0.0
    for rows in _updates(models, starts, names):
        units = rows * scale[:, None]
        total = units.sum(0)
        with_all += units @ total
        whole += float(total @ total)
    own = moved.double()
    others = (whole - 2 * with_all + own).clamp(min=0).sqrt()
    cosines = torch.where(others > 1e-9, (with_all - own) / others.clamp(min=1e-9), 0.0)
    return [float(value) for value in cosines.clamp(-1, 1)]


def _updates(models: Sequence[Weights], starts: Sequence[Weights], names: Sequence[str]) -> Iterator[Tensor]:
    """Pieces `[C, p]` of all updates, float64, in a fixed order."""
    for name in names:
        after = [model[name].reshape(-1) for model in models]
        before = [start[name].reshape(-1) for start in starts]
        for first in range(0, after[0].numel(), _CHUNK):
            part = slice(first, first + _CHUNK)
            yield torch.stack([w[part] for w in after]).double() - torch.stack([w[part] for w in before])


def flattened(model: Weights, start: Weights) -> list[str]:
    """Floating tensors that hold one number throughout (zeros, say) where those that were sent did not.

    Training moves every number in its own way: no site comes to this by learning.
    """
    return [
        name
        for name, tensor in model.items()
        if tensor.is_floating_point()
        and tensor.numel() >= _FEWEST
        and bool((tensor == tensor.reshape(-1)[0]).all())
        and not bool((start[name] == start[name].reshape(-1)[0]).all())
    ]


FEWEST_CLASSES = 5
"""Of so many classes no wrong labels pull a model that has learnt nothing back by more than a share 1 / (K - 1) of what
right ones pull it on. Two classes that are swapped pull it back as far: that site and an attacker are the same."""
FEWEST_FINDINGS = 4
"""Of so many findings a sample, each with a direction of its own, an honest site does not turn round as a whole."""
TRIED = 3
"""Exchanges in a row through which a site that is measured anew counts for half of a fair share at most."""
TRIAL_SHARE = 0.5
FEW = 5
"""Among fewer replies the median may be that of sites that have nothing left to learn, so what is known of a site from
the run's other stages counts as well."""
LEAST_SIZE = 0.1
"""Of the length of the parameters that were sent, what training leaves at least: forgetting everything is not
training."""


LARGEST_SHARE, FAIR_SHARES = 0.5, 3.0
"""No site counts for more than all others together, nor for more than three times its share if all were alike."""


def fair_share(sites: int) -> float:
    """The most that one of so many sites may count for, whatever size it declares: min(1/2, 3/n)."""
    return min(LARGEST_SHARE, FAIR_SHARES / max(1, sites))


def fair_sizes(declared: Mapping[str, int], share: float) -> dict[str, int]:
    """Declared sizes as far as they stretch a guard, where one site may count for so much; nothing where for all."""
    return shares_within(declared, dict.fromkeys(declared, share)) if len(declared) > 1 and share < 1 else {}


@dataclass(frozen=True)
class GateLimits(RangeChecked):
    """The study's `[gate]` table."""

    heuristics: Literal["deployed", "always", "never"] = "deployed"
    """Where updates are judged by length, direction, turns, flatness and replays: among real sites ("deployed"), in
    simulations too ("always"), or "never". Type, shape, finite numbers and plausible counts are checked everywhere."""
    norm_factor: AtLeastZero = 6.0
    """Refuse an update longer than so many times the usual one: the median of the round's, for as many steps; 0 is
    off."""
    norm_cohort: AtLeastOne = 3
    """Sites that make a cohort; an update among fewer is measured by the stage's accepted ones, if these are of as many
    sites."""
    statistics_factor: AtLeastZero = 20.0
    """The same for running statistics (batch norm), which differ more between honest sites; 0 is off."""
    against: AtLeastZero = 4.5
    """Refuse an update that goes so many usual lengths straight against the cohort's common direction; 0 is off."""
    opposed: Annotated[float, Range(0, 1)] = 0.6
    """Leave out a site, until it is tried again, whose first update of a run goes against the cohort's direction by
    more than this share of the way that the others go along it; 0 is off."""
    turned: Annotated[float, Range(0, 1)] = 0.7
    """Leave out a site, until it is tried again, that went along with the others by at least this share of their
    agreement and in the next exchange goes against them by as much; 0 is off."""
    flat: bool = True
    """Refuse tensors of zeros, or of any one number, where others were sent, and models that have nearly vanished."""
    replays: bool = True
    """Refuse a model that the same site has sent before, beginning at another one."""
    readmit_after: AtLeastOne = 20
    """A site that was asked so many times in a row, and whose models were refused or did not come, is measured anew: it
    may go as far as sites went when they began, and counts for half of a fair share in its first three exchanges. So is
    one whose first model comes late. One that was refused must go along with the others; if it does not, it is tried
    again after twice as many."""
    largest_share: Annotated[float, Range(0, 1, above=True)] | None = None
    """The most that one site's declared size may count for among a round's replies; 1: no bound. Without it min(1/2,
    3/n) of n replies where heuristics judge, and else no bound."""
    cross_check: bool = False
    """Where the coordinator has labelled samples: whenever a method says which sites look noisy, compare what they
    claimed with what their models do on these, and say where the two disagree."""

    def judge(self, *, simulated: bool) -> bool:
        """Whether heuristics judge in such a federation."""
        return self.heuristics == "always" or (self.heuristics == "deployed" and not simulated)

    def share(self, replies: int, *, simulated: bool) -> float:
        """The most that one of so many replies may count for."""
        if self.largest_share is not None:
            return self.largest_share
        return fair_share(replies) if self.judge(simulated=simulated) else 1.0


@dataclass(frozen=True)
class ModelUpdate:
    """One model of one reply: where it began, where it ended."""

    model: Weights
    start: Weights
    parameters: tuple[str, ...]
    statistics: tuple[str, ...]
    norm_tolerance: float
    """Of the request: how much more than usual honest answers to it differ."""
    late: bool
    """Of the request: whether a site's first model may go as far as the others' first ones went."""
    reach: float
    """How far training on the site's samples can carry a model, as far as its size counts."""

    @property
    def alone(self) -> float:
        """The length that is usual where nothing else can say so: that of the model that was sent. 0, and so no
        measure at all, for one that starts from zeros."""
        return float(any(bool(self.start[name].any()) for name in self.parameters))

    @property
    def origin(self) -> str:
        """Part of the key by which lengths are remembered: from zeros they are absolute, and not comparable
        with relative ones."""
        return "" if self.alone else " from zeros"

    @property
    def kind(self) -> tuple[Any, ...]:
        """Moves of one kind have a common direction; others are of another network."""
        return tuple((name, tuple(self.model[name].shape)) for name in self.parameters)


@dataclass
class Absences:
    """Sites whose models were not used of late: how long, and when they are measured anew."""

    after: int
    """`GateLimits.readmit_after`."""
    missed: dict[str, int] = field(default_factory=dict)
    """Exchanges in a row in which a site was asked for a model and none of its was used."""
    waits: dict[str, int] = field(default_factory=dict)
    """Of sites that were refused: after how many of these they are tried."""
    trial: dict[str, int] = field(default_factory=dict)
    """Of sites that came back: exchanges that are left of their trial."""
    used: set[str] = field(default_factory=set)
    """Sites of which a model was ever used."""
    comparable: bool = True
    """Whether enough sites answer together now for a refused one to be tried."""

    def anew(self, site: str) -> bool:
        """Whether a model of this site is measured as that of one who begins."""
        if self.was_refused(site):
            return self.comparable and self.missed.get(site, 0) >= self.waits[site]
        return self.missed.get(site, 0) >= (self.after if site in self.used else 1)

    def was_refused(self, site: str) -> bool:
        return site in self.waits

    def note(self, asked: Collection[str], used: Collection[str], refused: Collection[str]) -> None:
        """An exchange of models: whose were used, and whose were refused; others did not come."""
        for site in refused:
            if self.was_refused(site) and self.anew(site):  # what it was tried with was refused as well
                self.waits[site] *= 2
                self.missed[site] = 0
            self.waits.setdefault(site, self.after)
        for site in asked:
            if site not in used:
                self.missed[site] = self.missed.get(site, 0) + 1
                continue
            left = TRIED if self.anew(site) else self.trial.get(site, 0) - 1
            self.used.add(site)
            self.missed.pop(site, None)
            self.trial.pop(site, None)
            if left > 0:
                self.trial[site] = left

    def share(self, site: str, among: int) -> float:
        """The most that a site counts for while it is on trial; 1 for the others."""
        return TRIAL_SHARE / max(1, among) if site in self.trial else 1.0

    def memory(self) -> dict[str, Any]:
        """As plain values."""
        counts = {"missed": dict(self.missed), "waits": dict(self.waits), "trial": dict(self.trial)}
        return {**counts, "used": sorted(self.used)}

    def recall(self, memory: Mapping[str, Any]) -> None:
        """The reverse."""
        self.missed, self.waits, self.trial = (dict(memory.get(name, {})) for name in ("missed", "waits", "trial"))
        self.used = set(memory.get("used", ()))


@dataclass
class Protection:
    """What a run's gate remembers, and how it judges."""

    limits: GateLimits = field(default_factory=GateLimits)
    heuristics: bool = True
    """Whether updates are judged beside each other at all (`GateLimits.judge`)."""
    sizes: Mapping[str, int] = field(default_factory=dict)
    """What a site's size counts for at most in its reach (`fair_sizes`); without an entry, what its reply says."""
    lengths: dict[str, UpdateNorms] = field(default_factory=dict)
    """By stage and model; kept with the run's checkpoints."""
    seen: dict[str, list[str]] = field(default_factory=dict)
    """Fingerprints of each site's accepted models and of where they began, the latest; kept with them."""
    judges_turns: bool = False
    """Whether a turn from one exchange to the next is judged: no honest site turns as far (`turning_is_attack`)."""
    opening: bool = False
    """Whether the next models come from one that has learnt nothing, on labels of which no wrong ones look like an
    attack (`reversal_is_attack`); kept with them."""
    left_out: dict[str, str] = field(default_factory=dict)
    """Sites whose models are refused until they are tried again, and why; kept with them."""
    last_cosines: dict[str, dict[str, float]] = field(default_factory=dict)
    """By stage and model: cosine of each site's update of the last exchange with the others' (`shares`);
    kept with them."""
    absences: Absences = field(init=False)
    """Kept with them."""

    def __post_init__(self) -> None:
        self.absences = Absences(self.limits.readmit_after)

    def memory(self) -> dict[str, Any]:
        """What a resumed run must know to judge as one that never stopped: plain values."""
        known = {key: at.memory() for key, at in self.lengths.items()}
        seen = {site: list(marks) for site, marks in self.seen.items()}
        last_cosines = {key: dict(ways) for key, ways in self.last_cosines.items()}
        other = {"opening": self.opening, "left_out": dict(self.left_out), "last_cosines": last_cosines}
        other["absences"] = self.absences.memory()
        return {"lengths": known, "seen": seen, **other}

    def recall(self, memory: Mapping[str, Any]) -> None:
        """The reverse."""
        self.lengths = {key: UpdateNorms.recalled(known) for key, known in memory.get("lengths", {}).items()}
        self.seen = {site: list(marks) for site, marks in memory.get("seen", {}).items()}
        self.opening = memory.get("opening", self.opening)
        self.left_out = dict(memory.get("left_out", {}))
        self.last_cosines = {key: dict(ways) for key, ways in memory.get("last_cosines", {}).items()}
        self.absences.recall(memory.get("absences", {}))

    def refusals(
        self,
        stage: str,
        replies: Mapping[str, Reply],
        envelopes: Mapping[str, RequestEnvelope],
        buffers: Callable[[str], Collection[str]],
    ) -> dict[str, str]:
        """Why updates of these replies are set aside, by site. buffers: a site's running statistics, by name."""
        refused: dict[str, str] = {}
        judged: set[str] = set()
        moves: dict[str, dict[str, ModelUpdate]] = {}
        marks: dict[str, list[str]] = {}
        starts = StartDigests()
        self.absences.comparable = len(replies) >= self.limits.norm_cohort
        for site, reply in replies.items():
            try:
                found = _moves(reply, envelopes[site], buffers(site), self.sizes.get(site))
                if not self.heuristics:
                    continue
                marks[site] = [starts.mark(move.model, move.start) for move in found] if self.limits.replays else []
                flat = _flat(found) if self.limits.flat else None
            except Exception as error:  # a reply may hold anything at all
                refused[site] = short(unchecked(error))
                continue
            again = any(replays(mark, self.seen.get(site, ())) for mark in marks[site])
            known = self.left_out.get(site) if found and not self.absences.anew(site) else None
            if found:
                judged.add(site)
            if flat is not None or again or known:
                refused[site] = short(flat or known or "the model is one that the site has sent before: a replay")
                continue
            for number, move in enumerate(found):
                moves.setdefault(f"{number}{move.origin}", {})[site] = move
        for model, cohort in moves.items():
            refused |= self._judged(f"{stage}/{model}", {s: m for s, m in cohort.items() if s not in refused})
        self.opening = self.opening and not moves
        if judged:
            self._note_use(envelopes, {site for site in judged if site not in refused}, judged.intersection(refused))
        for site, new in marks.items():
            if site not in refused and any(new):
                self.seen[site] = [*self.seen.get(site, []), *filter(None, new)][-KEPT_DIGESTS:]
        return refused

    def _note_use(self, asked: Collection[str], used: Collection[str], refused: Collection[str]) -> None:
        for site in used:
            self.left_out.pop(site, None)
        self.absences.note(asked, used, refused)

    def _judged(self, key: str, cohort: Mapping[str, ModelUpdate]) -> dict[str, str]:
        """Check one model of all replies: update length, then direction."""
        limits = self.limits
        lengths = {site: relative_length(m.model, m.start, m.parameters) for site, m in cohort.items()}
        ratios = self._ratios(key, lengths, cohort)
        refused = _too_long(lengths, ratios, limits.norm_factor, "the update")
        states = {
            site: relative_length(m.model, m.start, m.statistics)
            for site, m in cohort.items()
            if m.statistics and site not in refused
        }
        found = self._ratios(f"{key} statistics", states, cohort)
        refused |= _too_long(states, found, limits.statistics_factor, "the change of running statistics")
        # what a site declares may let it go further, never the other way
        alike = self._measured(key, lengths, {site: replace(move, reach=1.0) for site, move in cohort.items()})
        refused |= self._opposed(key, alike, {site: m for site, m in cohort.items() if site not in refused})
        for name, measured in ((key, lengths), (f"{key} statistics", states)):
            ways = {site: (length, cohort[site].reach) for site, length in measured.items()}
            accepted = {site: way for site, way in ways.items() if site not in refused}
            if 0 < len(ways) < limits.norm_cohort:
                self.lengths.setdefault(name, UpdateNorms()).note_tried(ways)
            if accepted:
                self.lengths.setdefault(name, UpdateNorms()).note(accepted, limits.norm_cohort)
        return refused

    def _ratios(self, key: str, lengths: Mapping[str, float], cohort: Mapping[str, ModelUpdate]) -> dict[str, float]:
        """Each length beside the usual one for training of its reach."""
        return self._measured(key, lengths, cohort)

    def _measured(self, key: str, lengths: Mapping[str, float], cohort: Mapping[str, ModelUpdate]) -> dict[str, float]:
        """Each length beside the usual one; 0 where nothing can say what is usual."""
        known, others = self.lengths.get(key, UpdateNorms()), self._elsewhere(key)
        elsewhere = others if len(lengths) < FEW else []
        now = {site: (length, cohort[site].reach) for site, length in lengths.items()}
        ways = list(now.values()) if len(now) >= self.limits.norm_cohort else self._before(key, known)
        found = {}
        for site, way in now.items():
            usual = usual_norm_for(way[1], ways) if ways else cohort[site].alone
            for past in [known] if site in known.own else elsewhere:
                usual = past.usual(site, way, usual)
            if len(now) < self.limits.norm_cohort:
                usual = max(usual, known.recent_norms(site, self.limits.norm_cohort))
                if self.limits.norm_cohort <= len(known.first) and site not in known.own:
                    usual = max(usual, known.first_norms(way[1]))
            begins = cohort[site].late and not any(site in past.own for past in [known, *others])
            if begins or self.absences.anew(site):
                usual = max(usual, *(past.first_norms(way[1]) for past in [known, *others]))
            found[site] = way[0] / (usual * cohort[site].norm_tolerance) if usual > 0 else 0.0
        return found

    def _before(self, key: str, known: UpdateNorms) -> list[Way]:
        """How far updates went in this stage until now; in its beginning twice as far as in the run's other stages."""
        if len(known.own) >= self.limits.norm_cohort:  # one site that came three times is no cohort
            return known.recent
        others = [(2 * length, reach) for past in self._elsewhere(key) for length, reach in past.recent]
        return others if len(others) >= self.limits.norm_cohort else []

    def _elsewhere(self, key: str) -> list[UpdateNorms]:
        """What is known of the same model in the run's other stages."""
        model = key.rpartition("/")[2]
        return [at for name, at in self.lengths.items() if name != key and name.rpartition("/")[2] == model]

    def _opposed(self, key: str, ratios: Mapping[str, float], cohort: Mapping[str, ModelUpdate]) -> dict[str, str]:
        """Updates that go against what the others have in common."""
        refused: dict[str, str] = {}
        last_cosines: dict[str, float] = {}
        tried = {site for site in cohort if self.absences.was_refused(site) and self.absences.anew(site)}
        along: dict[str, float] = {}
        for kind in dict.fromkeys(move.kind for move in cohort.values()):
            sites = [site for site, move in cohort.items() if move.kind == kind]
            if len(sites) < self.limits.norm_cohort or not kind:
                continue
            group = [cohort[site] for site in sites]
            found = agreements([m.model for m in group], [m.start for m in group], group[0].parameters)
            ways = {site: cosine * ratios[site] for site, cosine in zip(sites, found)}
            along |= ways
            refused |= self._against(ways)
            alike = all(move.norm_tolerance <= 1 for move in group)
            if self.opening and alike and statistics.median(found) > COMMON:
                refused |= self._left_out(ways)
            agreed = shares(dict(zip(sites, found))) if self.judges_turns and alike else {}
            refused |= self._turned(self.last_cosines.get(key, {}), agreed)
            last_cosines |= {site: round(way, 6) for site, way in agreed.items()}
        refused |= {site: self._still_out(site) for site in tried if along.get(site, -1.0) < 0 and site not in refused}
        # of this exchange alone: in many rounds honest sites turn as well, by and by
        self.last_cosines[key] = {site: way for site, way in last_cosines.items() if site not in refused}
        return refused

    def _still_out(self, site: str) -> str:
        why = self.left_out.get(site, "its updates were refused")
        return f"the site was tried again, and does not go along with the others: {why}"

    def _turned(self, before: Mapping[str, float], now: Mapping[str, float]) -> dict[str, str]:
        """Sites that went along with the others in the last exchange and now go back."""
        found = {
            site: f"the site is left out: it went along with the others ({before[site]:.2f} of their agreement), then "
            f"turned round ({way:.2f})"
            for site, way in now.items()
            if site in before and turn(before[site], way) > self.limits.turned > 0
        }
        self.left_out |= found
        return found

    def _against(self, along: Mapping[str, float]) -> dict[str, str]:
        """along: how far each update goes in the cohort's direction, in usual lengths."""
        return {
            site: f"the update goes {-way:.1f} usual lengths against the cohort's direction"
            for site, way in along.items()
            if 0 < self.limits.against < -way
        }

    def _left_out(self, along: Mapping[str, float]) -> dict[str, str]:
        """The run's first updates, of a cohort that agrees: a site that moves backwards while the others go on does not
        learn."""
        usual, least = statistics.median(along.values()), self.limits.opposed
        found = {
            site: f"the site is left out: its first update went {-way / usual:.2f} times as far against the "
            "cohort's direction as the others went along it"
            for site, way in along.items()
            if -way > least * usual > 0
        }
        self.left_out |= found
        return found


def reversal_is_attack(classes: int, multilabel: bool, given: bool) -> bool:
    """Whether a first update that goes against the cohort's can only be an attack: not where a model was given that
    has learnt already, nor where a site that took yes for no, or one class for another, would send the same."""
    return classes >= FEWEST_CLASSES and not multilabel and not given


def turning_is_attack(classes: int, multilabel: bool) -> bool:
    """Whether a site that turns round can only be an attacker: of two classes a linear model has one direction, and an
    honest site with some wrong labels goes along it first and back when the right ones are learnt."""
    return classes >= (FEWEST_FINDINGS if multilabel else FEWEST_CLASSES)


def _too_long(lengths: Mapping[str, float], ratios: Mapping[str, float], factor: float, what: str) -> dict[str, str]:
    return {
        site: f"{what}'s length {lengths[site]:.3g} is {ratio:.1f} times the usual {lengths[site] / ratio:.3g}"
        for site, ratio in ratios.items()
        if factor > 0 and ratio > factor
    }


def _moves(
    reply: Reply, envelope: RequestEnvelope, buffers: Collection[str], most: int | None = None
) -> list[ModelUpdate]:
    """most: samples that stretch the reach at most."""
    found: list[ModelUpdate] = []
    for model, start in reply.moves(envelope.request):
        floats = [name for name, tensor in model.items() if tensor.is_floating_point()]
        for name in floats:
            if name.endswith("running_var") and name in buffers and bool((model[name] < 0).any()):
                raise ValueError(f"'{name}' holds a negative variance")
        found.append(
            ModelUpdate(
                model,
                start,
                tuple(name for name in floats if name not in buffers),
                tuple(name for name in floats if name in buffers),
                envelope.request.norm_tolerance,
                envelope.request.late,
                envelope.request.reach(_trained_on(reply, len(found), most)),
            )
        )
    return found


def _trained_on(reply: Reply, number: int, most: int | None) -> int:
    """How many samples this model of a reply was trained on, as far as it says so and as its size counts."""
    samples = _size(reply)
    if isinstance(samples, tuple) and number < len(samples):
        samples = samples[number]
    if not isinstance(samples, int):
        return 1
    return samples if most is None else min(samples, most)


def _flat(moves: list[ModelUpdate]) -> str | None:
    for move in moves:
        names = flattened(move.model, move.start)
        if names:
            value = float(move.model[names[0]].reshape(-1)[0])
            return f"'{names[0]}' holds {value:.3g} throughout, the model that was sent did not"
        size = remaining(move.model, move.start, move.parameters)
        if move.norm_tolerance <= 1 and size < LEAST_SIZE:
            return f"the model has shrunk to {size:.2g} of the one that was sent"
    return None


def bounded_shares(replies: Mapping[str, Any], most: Callable[[str], float]) -> dict[str, Any]:
    """The replies with declared sizes (`samples`) lowered until no site counts for more than its bound.

    Where no other site can make up for it (two sites, each at most 0.3), all bounded ones count alike.
    """
    sizes = {site: reply.samples for site, reply in replies.items() if isinstance(_size(reply), int)}
    bounds = {site: most(site) for site in sizes}
    if all(bound >= 1 for bound in bounds.values()) or len(sizes) < 2:
        return dict(replies)
    kept = shares_within(sizes, bounds)
    return {
        site: replace(reply, samples=kept[site]) if site in kept and kept[site] != sizes[site] else reply
        for site, reply in replies.items()
    }


def _size(reply: Any) -> Any:
    return getattr(reply, "samples", None)


def shares_within(sizes: Mapping[str, int], bounds: Mapping[str, float]) -> dict[str, int]:
    """Sizes, lowered so that size_k <= bound_k * sum of sizes, as far as that can be; never below 1.

    The sites above their bound are found one after another, most exceeding first: with F the sum of the free ones and B
    the sum of the bounded ones' bounds, the whole is F / (1 - B), of which each bounded one gets its bound.
    """
    bounded: list[str] = []
    whole = float(sum(sizes.values()))
    while len(bounded) < len(sizes):
        free = [site for site in sizes if site not in bounded]
        excess = {site: sizes[site] / whole / bounds[site] for site in free}
        worst = max(free, key=lambda site: excess[site])
        if excess[worst] <= 1 + 1e-12:
            break
        taken = sum(bounds[site] for site in bounded) + bounds[worst]
        rest = sum(sizes[site] for site in free if site != worst)
        if taken >= 1 or rest == 0:  # no whole of which these are such shares
            smallest = min(sizes[site] for site in [*bounded, worst])
            return {site: min(size, max(1, smallest)) for site, size in sizes.items()}
        bounded.append(worst)
        whole = rest / (1 - taken)
    return {site: max(1, int(bounds[site] * whole + 1e-9)) if site in bounded else size for site, size in sizes.items()}


# Usual norms of updates
# ------------------------------------------------------------------------------


KEPT_LENGTHS = 32
"""Lengths of accepted updates that a stage remembers, for rounds of few sites."""
KEPT_OWN = 8
"""Lengths of a site's own accepted updates that a stage remembers."""
OWN = 0.5
"""A site's own length counts for half of the cohort's: it may go on as it went, and three times as far."""

WAYS = ("recent", "peak", "first")
"""Of `UpdateNorms`: the lists of ways."""

Way = tuple[float, float]
"""How far an update went, and the reach of its training (`Request.reach`)."""


def usual_norm_for(reach: float, ways: Iterable[Way]) -> float:
    """The length that is usual for training of this reach, beside updates of others: the median of l_j max(1, r / r_j).

    A site that trains on ten times the samples takes ten times the steps and may move ten times as far; one that trains
    on fewer may still come as far as the others, where these have arrived.
    """
    return statistics.median(length * max(1.0, reach / other) for length, other in ways)


@dataclass
class UpdateNorms:
    """How far accepted updates of one model went in a stage so far."""

    recent: list[Way] = field(default_factory=list)
    peak: list[Way] = field(default_factory=list)
    """Those of the round that went furthest for its reach, at least a cohort; where fewer answer at a time, of the
    rounds that are remembered."""
    own: dict[str, list[float]] = field(default_factory=dict)
    """Each site's own, the latest."""
    first: list[Way] = field(default_factory=list)
    """The first one of each site."""
    tried: dict[str, Way] = field(default_factory=dict)
    """The last one of each site that came alone, whether it was accepted or not; the latest is the last."""

    def usual(self, site: str, way: Way, median: float) -> float:
        """The length that a site is measured by: the round's median, or what is usual for this very site.

        Where most sites have nothing left to learn their updates shrink, and those of an honest site with wrong labels
        do not. So a site may go on as far as it went when others went as far: max(median, min(peak, own / 2)).
        """
        known = self.own.get(site)
        if not known or not self.peak:
            return median
        return max(median, min(usual_norm_for(way[1], self.peak), OWN * max(known)))

    def first_norms(self, reach: float) -> float:
        """How far sites went when they began here, alone or together; 0 where nobody has. Those that came before may be
        held back by now: FedCorr's proximal term ties noisy sites, and these can be most of them."""
        return max([usual_norm_for(reach, ways) for ways in (self.peak, self.first) if ways], default=0.0)

    def recent_norms(self, site: str, cohort: int) -> float:
        """How far the last few other sites went that came alone, accepted or not; 0 where they are too few.

        Where a model was corrupted every honest site makes a large update to repair it: what one site after another
        does is usual.
        """
        ways = [way for other, way in self.tried.items() if other != site][-cohort:]
        return statistics.median(length for length, _ in ways) if len(ways) == cohort else 0.0

    def note_tried(self, ways: Mapping[str, Way]) -> None:
        for site, way in ways.items():
            self.tried.pop(site, None)
            self.tried[site] = way

    def memory(self) -> dict[str, Any]:
        """As plain values."""
        ways = {name: [list(way) for way in getattr(self, name)] for name in WAYS}
        tried = [[site, *way] for site, way in self.tried.items()]
        return {**ways, "tried": tried, "own": {site: list(lengths) for site, lengths in self.own.items()}}

    @staticmethod
    def recalled(memory: Mapping[str, Any]) -> UpdateNorms:
        """The reverse."""
        ways = {name: [(length, reach) for length, reach in memory.get(name, ())] for name in WAYS}
        tried = {site: (length, reach) for site, length, reach in memory.get("tried", ())}
        return UpdateNorms(**ways, own={site: list(own) for site, own in memory["own"].items()}, tried=tried)

    def note(self, accepted: Mapping[str, Way], cohort: int) -> None:
        self.recent = [*self.recent, *accepted.values()][-KEPT_LENGTHS:]
        new = [way for site, way in accepted.items() if site not in self.own]
        self.first = [*self.first, *new][:KEPT_LENGTHS]
        for site, (length, _) in accepted.items():
            self.own[site] = [*self.own.get(site, []), length][-KEPT_OWN:]
        together = list(accepted.values()) if len(accepted) >= cohort else list(self.recent)
        if len(self.own) >= cohort:
            self.peak = max(self.peak, together, key=_typical)


def _typical(ways: list[Way]) -> float:
    return statistics.median(length / reach for length, reach in ways) if ways else 0.0
