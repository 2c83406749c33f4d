"""The disclosure table: all that can leave a site, in words, derived from the reply classes themselves."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import itertools
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fedsift.contract.disclosure import declared_replies
from fedsift.contract.errors import FedsiftError
from fedsift.contract.messages import Reply, SiteFacts
from fedsift.local.requests import Evaluate
from fedsift.runs import RunData
from fedsift.study import Study

JOINING = "on joining"


@dataclass(frozen=True)
class Item:
    """One field that leaves a site."""

    name: str
    kind: str
    what: str


@dataclass(frozen=True)
class Disclosure:
    """A kind of message from a site: when it is sent, and every field that it carries."""

    name: str
    summary: str
    when: tuple[str, ...]
    items: tuple[Item, ...]

    @property
    def joining(self) -> bool:
        return self.when == (JOINING,)


def disclosures(by_stage: Mapping[str, Sequence[str]] | None) -> list[Disclosure]:
    """What sites declare on joining, then each reply class with the stages that may send it.

    by_stage: as the method declares it; without, every reply class that this version knows is listed.
    """
    known = {cls.__name__: cls for cls in reply_classes()}
    if by_stage is None:
        return [_facts(), *(_described(cls, ()) for cls in known.values())]
    names = dict.fromkeys(name for sent in by_stage.values() for name in sent)
    when = {name: tuple(stage for stage, sent in by_stage.items() if name in sent) for name in names}
    return [
        _facts(),
        *(
            _described(known[name], when[name]) if name in known else _unknown(name, when[name])
            for name in names
        ),
    ]


def declared_by_stage(run: RunData) -> dict[str, list[str]] | None:
    """Reply classes that the run's study declares, by stage; None when its method is not known here."""
    try:
        study = Study.from_table(run.study)
    except FedsiftError:
        return None
    at_sites = any(row.get("evaluated_at") == "sites" for row in run.rounds)
    by_stage = declared_replies(study.method, (Evaluate,) if at_sites or not run.rounds else ())
    return {stage: [cls.__name__ for cls in replies] for stage, replies in by_stage.items()}


def reply_classes() -> list[type[Reply]]:
    """Every reply class of the program, by name."""
    found: dict[str, type[Reply]] = {}
    waiting: list[type[Reply]] = [Reply]
    while waiting:
        for cls in waiting.pop().__subclasses__():
            found.setdefault(cls.__name__, cls)
            waiting.append(cls)
    return [found[name] for name in sorted(found)]


def _described(cls: type[Reply], when: tuple[str, ...]) -> Disclosure:
    items = [
        Item(field.name, _kind(field.type), str(field.metadata.get("what", "not described")))
        for field in dataclasses.fields(cls)
    ]
    summary = (inspect.getdoc(cls) or "").split("\n\n")[0].replace("\n", " ")
    return Disclosure(cls.__name__, summary, when, tuple(items))


def _unknown(name: str, when: tuple[str, ...]) -> Disclosure:
    return Disclosure(name, "A reply class that is not installed here: its fields are unknown.", when, ())


def _facts() -> Disclosure:
    """The words are those beside the fields in the source, so that the table never lags behind them."""
    words = field_words(SiteFacts)
    items = [
        Item(
            field.name, _kind(field.type), words.get(field.name, f"the site's {field.name.replace('_', ' ')}")
        )
        for field in dataclasses.fields(SiteFacts)
    ]
    return Disclosure("SiteFacts", "What a site declares of itself.", (JOINING,), tuple(items))


def field_words(cls: type) -> dict[str, str]:
    """The string under each field of a dataclass, by its name; none where the source is not at hand."""
    try:
        [definition] = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    except (OSError, SyntaxError, ValueError):
        return {}
    body = getattr(definition, "body", [])
    return {
        field.target.id: " ".join(text.value.value.split())
        for field, text in itertools.pairwise(body)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
        and isinstance(text.value.value, str)
    }


def _kind(annotation: object) -> str:
    return annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))
