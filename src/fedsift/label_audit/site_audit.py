"""`SiteAudit`: what an audit found at one site, from which every file, page and command of the label audit is made.

A federated audit and `fedsift.audit_labels` (on any model's probabilities) both fill a `SiteAudit`;
nothing here knows where the probabilities came from.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable, Container, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsift.core.errors import ConfigError, DataError
from fedsift.detection.label_rates import NEGLIGIBLE
from fedsift.formulas.intervals import ALLOWED, CLEARED

Thumbnails = Callable[[int], bytes | None]
"""The picture of sample i as PNG, JPEG, GIF or WebP bytes, or None where there is none to show."""

TRAIN, TEST = "train", "test"
WRONG, UNCLEAR, NOTHING = "wrong labels", "cannot be told", "no evidence"
"""The three answers to "are there wrong labels here?"."""
CONVICTED, WITHDRAWN, OPEN = "convicted by review", "withdrawn by review", "open"
"""What people's verdicts on a random sample say to that (`formulas.intervals`); the first two overrule the audit."""
MIN_COUNT = 10
"""Counts below this leave a site in a lump only, unless the site sets another minimum."""


@dataclass(frozen=True)
class WrongShare:
    """A share with its interval."""

    estimate: float
    low: float
    high: float
    level: float = 0.95
    """Coverage that the interval claims."""

    def at_stated_rate(self, wrong_labels: bool, labels: int) -> WrongShare:
        """With an interval that begins at 0 exactly where there is no evidence of wrong labels.

        Evidence says that one of the labels is wrong, so that this much is no secret where a minimum count withholds
        the end.
        """
        one = 1 / max(labels, 1)
        low, high = (max(self.low, one), max(self.high, one)) if wrong_labels else (0.0, self.high)
        return replace(self, low=low, high=high)


@dataclass(frozen=True)
class AuditFinding:
    """The answer to "are there wrong labels here?"."""

    wrong_labels: bool
    """False: no evidence of wrong labels."""
    false_alarm_rate: float
    """How often a site without wrong labels is reported to have some."""
    review: str = ""
    """`CONVICTED` or `WITHDRAWN`, where people have settled it."""

    def settled(self, review: str) -> AuditFinding:
        """As people settled it."""
        return replace(self, wrong_labels=review == CONVICTED, review=review)

    @property
    def stated(self) -> bool:
        """Whether a rate of false alarms, and with it an interval, is claimed: a method's own list claims neither."""
        return self.false_alarm_rate < 1

    @property
    def bound(self) -> str:
        """What the review has shown of the site's share of wrong labels."""
        more = self.review == CONVICTED
        return f"more than {100 * ALLOWED:g}\u00a0%" if more else f"fewer than {100 * CLEARED:g}\u00a0%"

    @property
    def rate_words(self) -> str:
        """The stated rate and where it holds: docs/audit-results.md lists the conditions, and those in which it does
        not."""
        return f"at most {100 * self.false_alarm_rate:g}\u00a0% under nearly all measured conditions"

    def answer(self, share: WrongShare) -> str:
        """`WRONG`, `UNCLEAR` or `NOTHING`; share: of the site's labels that are probably wrong."""
        if self.wrong_labels or self.review:
            return WRONG if self.wrong_labels else NOTHING
        return UNCLEAR if share.estimate > NEGLIGIBLE else NOTHING

    def words(self, share: WrongShare) -> str:
        if self.review:
            sure = "error at most 5\u00a0%, if readers are mistaken on their own"
            return f"{self.review}: {self.bound} of the labels are wrong ({sure})"
        if not self.stated:
            return f"{'labels' if self.wrong_labels else 'no labels'} on a list, at no stated rate of false alarms"
        rate = f"false alarms: {self.rate_words}"
        return {
            WRONG: f"evidence of wrong labels ({rate})",
            UNCLEAR: "wrong labels cannot be told from pictures that are hard for the model: review a random sample",
            NOTHING: f"no evidence of wrong labels ({rate})",
        }[self.answer(share)]


@dataclass(frozen=True)
class SampleEvidence:
    """What said so."""

    method: str
    """How the probabilities were made, in a few words."""
    round: int | None = None
    """After which round of the federation."""
    model: str = ""
    """Digest of the model's (or models') weights."""


@dataclass(frozen=True)
class LabelOrigin:
    """Where the labels came from, for a corrected table in the same format; fields are named as the sources' are."""

    kind: str
    """"folder" (also one site of "sites"), "table" or "npz"."""
    path: str
    """The folder, the zip, the CSV or the .npz file."""
    table: str = ""
    """The CSV; empty for a folder whose layout names the classes."""
    id_column: str = "id"
    path_column: str = "path"
    label_column: str = "label"
    label_columns: tuple[str, ...] = ()
    separator: str = ""
    nothing: tuple[str, ...] = ("No Finding",)
    delimiter: str = ","
    encoding: str = "utf-8"
    labels: str = "labels"
    given: str = "given"
    ids: str = "ids"


@dataclass(frozen=True)
class SiteAudit:
    """One site's labels, judged. n samples, K classes; the order of the samples means nothing.

    One class a sample: `given`, `predicted`, `proposed` are class numbers `[n]`, and `probability[i, c]` is the
    posterior that c is the true class of sample i. Multi-label: they are 0/1 rows `[n, K]`, and `probability[i, c]`
    is the probability that entry c of sample i is wrong, NaN where the site does not annotate c and nothing was judged.
    """

    site: str
    classes: tuple[str, ...]
    multilabel: bool
    ids: tuple[str, ...]
    """`[n]`, each once: what decisions are keyed by."""
    given: NDArray[np.int64]
    """`[n]` or `[n, K]`."""
    probability: NDArray[np.float64]
    """`[n, K]`, see above."""
    probability_wrong: NDArray[np.float64]
    """`[n]`: that anything about the sample's label is wrong."""
    predicted: NDArray[np.int64]
    """`[n]` or `[n, K]`: what the model says, whatever was given."""
    proposed: NDArray[np.int64]
    """`[n]` or `[n, K]`: what the label should be; equal to `given` where nothing is proposed."""
    flagged: NDArray[np.bool_]
    """`[n]`: on the list of suspects."""
    rate: WrongShare
    """Share of wrong labels among the training samples."""
    finding: AuditFinding
    agreement: NDArray[np.int64]
    """`[K, K]` whole counts of training samples, row: given, column: probably true.

    Multi-label: `[K, 4]`, entries that are a right 0, a wrong 0 (missing), a wrong 1 (too many), a right 1.
    """
    evidence: SampleEvidence
    paths: tuple[str, ...] = ()
    """`[n]`, or empty when samples have no files."""
    reason: tuple[str, ...] = ()
    """`[n]` short words such as "model disagrees"; empty strings where there is nothing to say."""
    split: tuple[str, ...] = ()
    """`[n]` "train" or "test"; empty means all train."""
    min_count: int = MIN_COUNT
    """Counts below it do not leave the site."""
    origin: LabelOrigin | None = None
    """Where the labels came from, if they came from files."""
    seed: int = 0
    """Seed of everything random about reviewing."""
    notes: tuple[str, ...] = ()
    """What else the site should know, a sentence each, e.g. that two class codes seem to be swapped."""
    before: SiteAudit | None = None
    """The audit before people's verdicts moved its probabilities; None where they have not."""

    def __post_init__(self) -> None:
        n = len(self.ids)
        if not self.classes:
            raise DataError(f"site '{self.site}': an audit needs at least one class")
        defaults = {"paths": "", "reason": "", "split": TRAIN}
        for name, value in (*defaults.items(), ("ids", ""), ("classes", ""), ("notes", "")):
            found = tuple(str(entry) for entry in getattr(self, name))
            object.__setattr__(self, name, found or ((value,) * n if name in defaults else found))
        labels = (n, len(self.classes)) if self.multilabel else (n,)
        shapes: dict[str, tuple[tuple[int, ...], type]] = {
            "given": (labels, np.int64),
            "predicted": (labels, np.int64),
            "proposed": (labels, np.int64),
            "probability": ((n, len(self.classes)), np.float64),
            "probability_wrong": ((n,), np.float64),
            "flagged": ((n,), np.bool_),
            "agreement": ((len(self.classes), 4 if self.multilabel else len(self.classes)), np.int64),
        }
        for name, (shape, kind) in shapes.items():
            values: NDArray[Any] = np.asarray(getattr(self, name), kind)
            if values.shape != shape:
                raise DataError(f"site '{self.site}': {name} has shape {values.shape}, not {shape}")
            object.__setattr__(self, name, values)
        self._check(n)

    def _check(self, n: int) -> None:
        where = f"site '{self.site}'"
        for name in ("paths", "reason", "split"):
            if len(getattr(self, name)) != n:
                raise DataError(f"{where}: {name} has {len(getattr(self, name))} entries for {n} samples")
        if len(set(self.ids)) != n:
            seen: set[str] = set()
            twice = next(name for name in self.ids if name in seen or seen.add(name))  # type: ignore[func-returns-value]
            raise DataError(f"{where}: two samples are called '{twice}'; give every sample a name of its own")
        for side in set(self.split) - {TRAIN, TEST}:
            raise DataError(f"{where}: split '{side}' is neither '{TRAIN}' nor '{TEST}'")
        for name in ("probability", "probability_wrong"):
            values = getattr(self, name)
            if self.multilabel and name == "probability":
                values = np.nan_to_num(values)
            if not np.all((values >= 0) & (values <= 1 + 1e-9)):  # NaN fails, too
                raise DataError(f"{where}: {name} must lie between 0 and 1")
        most = 1 if self.multilabel else len(self.classes) - 1
        for name in ("given", "predicted", "proposed"):
            values = getattr(self, name)
            if n and not (values.min() >= 0 and values.max() <= most):
                raise DataError(f"{where}: {name} must lie between 0 and {most}")

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def as_made(self) -> SiteAudit:
        """What the models alone said: review plans are drawn from it, and every recalibration starts from it."""
        return self if self.before is None else self.before

    @property
    def label_score(self) -> NDArray[np.float64]:
        """cleanlab's reading, `[n]`: the probability that the given label is right; low is bad."""
        return np.clip(1.0 - self.probability_wrong, 0.0, 1.0)

    @cached_property
    def asked(self) -> int:
        """Labels that a sample has: 1, or the classes that the site annotates at all."""
        return int((~np.isnan(self.probability).all(axis=0)).sum()) if self.multilabel and len(self) else 1

    @cached_property
    def is_test(self) -> NDArray[np.bool_]:
        return np.array([side == TEST for side in self.split], np.bool_)

    def worst_first(self) -> NDArray[np.int64]:
        """Row numbers by falling probability; ties by id, so that the order says nothing of the data's."""
        ids = np.argsort(np.array(self.ids, object), kind="stable")
        return ids[np.argsort(-self.probability_wrong[ids], kind="stable")].astype(np.int64)

    def names(self, labels: NDArray[np.int64], index: int) -> tuple[str, ...]:
        """The class names of a sample's entry in `given`, `predicted` or `proposed`."""
        if self.multilabel:
            return tuple(self.classes[c] for c in np.flatnonzero(labels[index]))
        return (self.classes[int(labels[index])],)

    @cached_property
    def row_of(self) -> dict[str, int]:
        return {name: row for row, name in enumerate(self.ids)}

    def without(self, gone: Container[str]) -> SiteAudit:
        """The audit without some samples, also in the table of counts; shares stay as they were estimated."""
        keep = np.array([name not in gone for name in self.ids], np.bool_)
        words = ("ids", "paths", "reason", "split")
        arrays = ("given", "probability", "probability_wrong", "predicted", "proposed", "flagged")
        kept: dict[str, Any] = {name: tuple(np.array(getattr(self, name), object)[keep]) for name in words}
        kept.update({name: getattr(self, name)[keep] for name in arrays})
        kept["agreement"] = self._agreement_without(np.flatnonzero(~keep & ~self.is_test))
        kept["before"] = None if self.before is None else self.before.without(gone)
        return replace(self, **kept)

    def _agreement_without(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """The table with one count less for each of these training samples, in the likeliest cell that has one."""
        table = self.agreement.copy()
        for k in rows:
            for line, cells in self._cells_of(int(k)):
                cell = next((c for c in cells if table[line, c] > 0), None)
                if cell is not None:
                    table[line, cell] -= 1
        return table

    def _cells_of(self, k: int) -> list[tuple[int, list[int]]]:
        """The lines of the table that count sample k, each with the cells that it may be in, likeliest first."""
        if not self.multilabel:
            return [(int(self.given[k]), [int(c) for c in np.argsort(-self.probability[k], kind="stable")])]
        pairs = np.where(self.given[k][:, None] == 0, (0, 1), (3, 2))  # right, wrong
        judged = np.flatnonzero(~np.isnan(self.probability[k]))
        return [(int(c), [int(p) for p in pairs[c][:: -1 if self.probability[k, c] > 0.5 else 1]]) for c in judged]

    @property
    def issues(self) -> Issues:
        """The training samples on the list, worst first."""
        return issues(self)

    def labels_digest(self) -> str:
        """Changes with the training samples and their given labels alone, in any order."""
        rows = [k for k in np.argsort(np.array(self.ids, object), kind="stable") if not self.is_test[k]]
        named = [(self.ids[k], self.names(self.given, int(k))) for k in rows]
        return hashlib.sha256(json.dumps([self.site, named]).encode()).hexdigest()[:16]

    def fingerprint(self) -> str:
        """Tells audits apart: a digest of ids, given and proposed labels."""
        hasher = hashlib.sha256(json.dumps([self.site, self.classes, self.ids]).encode())
        hasher.update(self.given.tobytes() + self.proposed.tobytes() + self.flagged.tobytes())
        return hasher.hexdigest()[:16]


_ARRAYS = ("given", "predicted", "proposed", "probability", "probability_wrong", "flagged", "agreement")
_PARTS = {"rate": WrongShare, "finding": AuditFinding, "evidence": SampleEvidence, "origin": LabelOrigin}
_BEFORE = "before"


def to_bytes(audit: SiteAudit) -> bytes:
    """An .npz: the arrays, and everything else as JSON text in the array `about`."""
    about: dict[str, Any] = {
        f.name: getattr(audit, f.name) for f in fields(audit) if f.name not in (*_ARRAYS, *_PARTS, _BEFORE)
    }
    for name in _PARTS:
        part = getattr(audit, name)
        about[name] = None if part is None else asdict(part)
    text = np.frombuffer(json.dumps(about).encode("ascii"), np.uint8)
    arrays = {name: getattr(audit, name) for name in _ARRAYS}
    if audit.before is not None:  # in the same file, so that no crash parts the two
        arrays[_BEFORE] = np.frombuffer(to_bytes(audit.before), np.uint8)
    file = io.BytesIO()
    np.savez_compressed(file, about=text, **arrays)
    return file.getvalue()


def load(path: Path) -> SiteAudit:
    """The audit that `to_bytes` stored."""
    try:
        return _loaded(path)
    except FileNotFoundError:
        raise DataError(f"{path} is missing: is {path.parent} a site's folder of an audit (OUT/sites/SITE)?") from None
    except DataError:
        raise
    except Exception as error:
        raise DataError(f"{path} cannot be read as an audit: {error}") from error


def _loaded(file: Path | io.BytesIO) -> SiteAudit:
    with np.load(file, allow_pickle=False) as archive:
        arrays = {name: archive[name] for name in archive.files}
    about = json.loads(arrays.pop("about").tobytes().decode("ascii"))
    parts = {name: about.pop(name) for name in _PARTS}
    made: dict[str, Any] = {
        name: None if parts[name] is None else _part(kind, parts[name]) for name, kind in _PARTS.items()
    }
    if _BEFORE in arrays:
        made[_BEFORE] = _loaded(io.BytesIO(arrays.pop(_BEFORE).tobytes()))
    return SiteAudit(**about, **arrays, **made)


def _part(kind: Any, values: dict[str, Any]) -> Any:
    return kind(**{key: tuple(value) if isinstance(value, list) else value for key, value in values.items()})


@dataclass(frozen=True)
class Issue:
    """One suspect, as records for programs and notebooks; names as in cleanlab's tables."""

    id: str
    path: str
    given_label: str
    predicted_label: str
    label_score: float
    is_label_issue: bool
    probability_wrong: float
    proposed_label: str
    reason: str
    split: str = field(default=TRAIN)


class Issues(list[Issue]):
    """Suspects, worst first: records, or a table for notebooks."""

    def records(self) -> list[dict[str, Any]]:
        return [asdict(issue) for issue in self]

    def frame(self) -> Any:
        """A pandas DataFrame, where pandas is installed."""
        try:
            import pandas
        except ImportError:
            raise ConfigError("a frame needs pandas: `pip install pandas`, or use `records()`") from None
        return pandas.DataFrame(self.records(), columns=[f.name for f in fields(Issue)])


def issues(audit: SiteAudit, *, split: str | None = TRAIN, only_flagged: bool = True) -> Issues:
    """The suspects, worst first; `split=None` for all samples, train and test."""
    score = audit.label_score
    return Issues(
        Issue(
            id=audit.ids[k],
            path=audit.paths[k],
            given_label=joined(audit.names(audit.given, k)),
            predicted_label=joined(audit.names(audit.predicted, k)),
            label_score=float(score[k]),
            is_label_issue=bool(audit.flagged[k]),
            probability_wrong=float(audit.probability_wrong[k]),
            proposed_label=joined(audit.names(audit.proposed, k)),
            reason=audit.reason[k],
            split=audit.split[k],
        )
        for k in audit.worst_first()
        if (audit.flagged[k] or not only_flagged) and split in (None, audit.split[k])
    )


def joined(names: Sequence[str]) -> str:
    """Class names as one word for people; several are joined with "|"."""
    return "|".join(names)
