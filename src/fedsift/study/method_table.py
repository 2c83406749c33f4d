"""The `[method]` table: a method by its name, its forms, methods inside it, keys of earlier versions."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from fedsift.contract.errors import ConfigError
from fedsift.contract.facts import FederationFacts
from fedsift.contract.method import Method
from fedsift.contract.registry import nearest
from fedsift.data.dataset import Spread
from fedsift.local.recipe import Recipe
from fedsift.methods import methods
from fedsift.study.tables import as_table, build, build_named

LOCAL = "local"
"""The field that holds a method's recipe: the study's `[train]`, never a key of `[method]`."""


def own_recipe(table: Mapping[str, Any]) -> Recipe:
    """The recipe of the method that a table names: what it trains by in a study without `[train]`."""
    name = table.get("name")
    if isinstance(name, str):
        for field in dataclasses.fields(methods.get(name)):
            if field.name == LOCAL and field.default_factory is not dataclasses.MISSING:
                recipe = field.default_factory()
                assert isinstance(recipe, Recipe)
                return recipe
    return Recipe()


def build_method(table: Mapping[str, Any], local: Recipe, where: str = "method") -> Method:
    """A method from its table; `form = ...` stands for that form's settings, and keys beside it come before them."""
    if LOCAL in table:
        raise ConfigError(f"unknown key '{where}.{LOCAL}': the study's [train] table is the recipe")
    name = table.get("name")
    if not isinstance(name, str):
        made: Method = build_named(methods, table, where)
        return made
    cls = methods.get(name)
    trains = any(field.name == LOCAL for field in dataclasses.fields(cls))
    fixed: dict[str, Any] = {LOCAL: local} if trains else {}
    rest = _with_form(cls, dict(table), where)
    for field, decided in cls.lasting.items():
        if isinstance(rest.get(field), Mapping):
            fixed[field] = _last(rest.pop(field), decided, local, f"{where}.{field}")
    for key in rest:
        if key in cls.renamed:
            raise ConfigError(f"'{where}.{key}' is no longer a key: write {cls.renamed[key]}")
    made = build_named(methods, rest, where, fixed=fixed)
    return made


def _with_form(cls: type[Method], table: dict[str, Any], where: str) -> dict[str, Any]:
    form = table.pop("form", None)
    if form is None:
        return table
    if form not in cls.forms:
        known = nearest(str(form), list(cls.forms)) if cls.forms else " It has only one form."
        raise ConfigError(f"'{where}.form' = {form!r}: unknown form of '{table['name']}'.{known}")
    return {**cls.forms[form], **table}


def _last(table: Mapping[str, Any], decided: tuple[str, ...], local: Recipe, where: str) -> Method:
    """A method inside another one: it has no stages, rounds or fraction of its own, but may have a recipe."""
    for key in decided:
        if key in table:
            raise ConfigError(f"unknown key '{where}.{key}': the method around it decides that")
    rest = {key: value for key, value in table.items() if key != "train"}
    own = table.get("train", {})
    if not isinstance(own, Mapping):
        raise ConfigError(f"'{where}.train' = {own!r}: it must be a table, e.g. {{lr = 0.1}}")
    recipe = build(Recipe, {**as_table(local, leave=frozenset({"objective"})), **own}, f"{where}.train")
    return build_method(rest, recipe if own else own_recipe(rest), where)


def method_table(method: Method) -> dict[str, Any]:
    """The table that builds this method again."""
    inner = {field: part for field in method.lasting if (part := getattr(method, field)) is not None}
    table = {
        "name": methods.name_of(method),
        **as_table(method, leave=frozenset({LOCAL, *inner})),
    }
    for field, part in inner.items():
        table[field] = _last_table(part, method.lasting[field])
    return table


def _last_table(part: Method, decided: tuple[str, ...]) -> dict[str, Any]:
    table = {"name": methods.name_of(part), **as_table(part, leave=frozenset({LOCAL, *decided}))}
    recipe = getattr(part, LOCAL, None)
    if recipe is not None and recipe != own_recipe(table):
        table["train"] = as_table(recipe, leave=frozenset({"objective"}))
    return table


def spread_facts(spread: Spread, networks: tuple[str, ...], *, natural: bool) -> FederationFacts:
    """What is known of a federation once its data are loaded."""
    return FederationFacts(
        sites=len(spread.sites),
        samples=tuple(len(spread.rows[site]) for site in spread.sites),
        classes=spread.dataset.n_classes,
        multilabel=spread.dataset.multilabel,
        natural=natural,
        annotates_all=spread.annotated is None or all(bool(own.all()) for own in spread.annotated.values()),
        public=None if spread.public is None else len(spread.public.rows),
        networks=networks,
    )


def settled(method: Method, facts: FederationFacts) -> tuple[Method, tuple[str, ...]]:
    """The method completed by the facts, and what speaks against it here; a misfit that decides is an error."""
    method = method.completed(facts)
    misfit = method.fits(facts)
    if misfit is None:
        return method, ()
    name = methods.name_of(method)
    if misfit.refuses:
        raise ConfigError(f"method '{name}' does not fit: {misfit.reason}. {_others(facts)}")
    return method, (f"method '{name}': {misfit.reason}",)


def _others(facts: FederationFacts) -> str:
    fitting = []
    for name in methods:
        found = methods.get(name)().completed(facts).fits(facts)
        if found is None or not found.refuses:
            fitting.append(name)
    return f"Methods that do: {', '.join(fitting)}" if fitting else "No method does"
