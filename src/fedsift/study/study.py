"""A study: one TOML file that says which data, how spread and spoiled, which model and method, on what engine."""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import tomli_w

from fedsift.contract.errors import ConfigError
from fedsift.contract.method import Method
from fedsift.contract.registry import Registry, nearest
from fedsift.data.build import build as build_spread
from fedsift.data.dataset import Spread
from fedsift.data.noise import Noise, noises
from fedsift.data.partitions import Partition, partitions
from fedsift.data.presets import preset_names, preset_table
from fedsift.data.public import Public
from fedsift.data.sources import Source, sources
from fedsift.engines.federation import Patience
from fedsift.engines.gate import GateLimits
from fedsift.engines.loop import Schedule
from fedsift.local.features import is_features, with_features
from fedsift.local.recipe import Recipe
from fedsift.local.site import Compute
from fedsift.methods import methods
from fedsift.models import check_model, name_of_model
from fedsift.study.tables import apply_overrides, as_table, build, build_named

OBJECTIVE = frozenset({"objective"})


@dataclass(frozen=True)
class ModelTable:
    """`[model]`: the network that the sites train."""

    name: str = "cnn"
    cycle: tuple[str, ...] = ()
    """Networks for the sites in turn, instead of `name`: the first site trains the first, and so on."""
    sites: dict[str, str] = field(default_factory=dict)
    """Another network for a site, by the site's name; it comes before `cycle`."""

    @property
    def networks(self) -> tuple[str, ...]:
        """Every network that the table names."""
        return (self.name, *self.cycle, *self.sites.values())

    def of_sites(self, sites: Sequence[str]) -> dict[str, str]:
        """The network of each site."""
        turn = self.cycle or (self.name,)
        return {site: self.sites.get(site, turn[number % len(turn)]) for number, site in enumerate(sites)}


@dataclass(frozen=True)
class EngineTable:
    """`[engine]`: where requests are answered, and with what hardware. It never changes a result's meaning."""

    name: Literal["inprocess", "flower"] = "inprocess"
    device: str = "cpu"
    trainer: Literal["auto", "cohort", "one"] = "auto"
    """"cohort" stacks the sites of a round, "one" trains them in turn, "auto" measures and chooses."""
    workers: int = 0
    """Worker processes of the in-process engine; 0 trains in this process."""
    threads: int = 0
    """Torch threads; 0 leaves the choice to the engine."""

    def compute(self) -> Compute:
        return Compute(device=self.device, trainer=self.trainer, workers=self.workers)


@dataclass(frozen=True)
class Study:
    """A whole study, every part checked."""

    source: Source
    partition: Partition
    noise: Noise
    method: Method
    train: Recipe = field(default_factory=Recipe)
    model: ModelTable = field(default_factory=ModelTable)
    engine: EngineTable = field(default_factory=EngineTable)
    federation: Patience = field(default_factory=Patience)
    gate: GateLimits = field(default_factory=GateLimits)
    evaluate: Schedule = field(default_factory=Schedule)
    name: str = "study"
    seed: int = 1
    public: Public | None = None

    @classmethod
    def from_file(cls, path: Path, overrides: list[str] | None = None) -> Study:
        """A study from a TOML file, or from a scenario preset by its name, with settings over it."""
        name = str(path)
        known = not Path(path).is_file() and name in preset_names()
        table = preset_table(name) if known else read_toml(path)
        return cls.from_table(apply_overrides(table, overrides or []))

    @classmethod
    def from_table(cls, table: Mapping[str, Any]) -> Study:
        """A study from tables; in Python, `data`, `partition`, `noise` and `method` may be objects of one's own, and
        `model.name` a factory."""
        known = ["name", "seed", *_TABLES]
        for key in table:
            if key not in known:
                raise ConfigError(f"unknown key '{key}'.{nearest(key, known)}")
        for key in _TABLES:
            if key in table and not isinstance(table[key], (Mapping, _OBJECTS.get(key, Mapping))):
                raise ConfigError(f"'{key}' = {table[key]!r}: it must be a table, e.g. [{key}]")
        seed = table.get("seed", 1)
        if not isinstance(seed, int) or isinstance(seed, bool):
            raise ConfigError(f"'seed' = {seed!r}: it must be a whole number")
        model = build(ModelTable, _with_named_factory(table.get("model", {})), "model")
        for network in model.networks:
            check_model(network)
        source: Source = _object_or(sources, table.get("data", {"name": "digits"}), "data")
        usual = source.usual()
        partition: Partition = _object_or(
            partitions,
            table.get("partition", usual.get("partition", {"name": "iid", "sites": 10})),
            "partition",
        )
        method, train = _method_and_recipe(table, partition)
        return cls(
            source=source,
            partition=partition,
            noise=_object_or(noises, table.get("noise", usual.get("noise", {"name": "clean"})), "noise"),
            method=method,
            train=train,
            model=model,
            engine=build(EngineTable, table.get("engine", {}), "engine"),
            federation=build(Patience, table.get("federation", {}), "federation"),
            gate=build(GateLimits, table.get("gate", {}), "gate"),
            evaluate=build(Schedule, table.get("evaluate", {}), "evaluate"),
            name=str(table.get("name", "study")),
            seed=seed,
            public=_public(table.get("public"), method),
        )

    def to_table(self) -> dict[str, Any]:
        """The resolved study, every default written out: it builds the same study again."""
        return {
            "name": self.name,
            "seed": self.seed,
            "data": {"name": sources.name_of(self.source), **as_table(self.source)},
            "partition": {"name": partitions.name_of(self.partition), **as_table(self.partition)},
            "noise": {"name": noises.name_of(self.noise), **as_table(self.noise)},
            "model": as_table(self.model),
            "train": as_table(self.train, leave=OBJECTIVE),
            **({} if self.public is None else {"public": _public_table(self.public)}),
            "method": {"name": self.method_name, **as_table(self.method, leave=frozenset({"local"}))},
            "engine": as_table(self.engine),
            "federation": as_table(self.federation),
            "gate": as_table(self.gate),
            "evaluate": as_table(self.evaluate),
        }

    def to_toml(self) -> str:
        try:
            return tomli_w.dumps(self.to_table())
        except TypeError as error:
            raise ConfigError(
                f"the study cannot be written to its run's folder: {error}; fields of own classes are numbers, text, "
                "lists, tables or paths"
            ) from None

    @property
    def method_name(self) -> str:
        return methods.name_of(self.method)

    def _embedded(self, spread: Spread) -> Spread:
        """Features in place of pictures when the model is a head on frozen features; labels are spoiled before."""
        names = [name for name in (self.model.name, *self.model.sites.values()) if is_features(name)]
        if not names:
            return spread
        if len(set(names)) > 1 or spread.public is not None:
            raise ConfigError("frozen features serve one extractor and no public set: use another model")
        return replace(spread, dataset=with_features(spread.dataset, names[0], device=self.engine.device))

    def spread(self) -> Spread:
        """Load, spread and spoil the data; refuses a method that cannot handle this kind of label."""
        dataset, public = self.source.load(), None
        if self.public is not None:
            dataset, public = self.public.take(dataset, self.seed)
        spread = build_spread(
            dataset, self.partition, self.noise, seed=self.seed, held_out=self.evaluate.held_out
        )
        spread = self._embedded(replace(spread, public=public))
        kind = "multilabel" if spread.dataset.multilabel else "multiclass"
        if kind not in self.method.tasks:
            fitting = [name for name in methods if kind in methods.get(name).tasks]
            raise ConfigError(
                f"method '{self.method_name}' is for {' and '.join(self.method.tasks)} labels, "
                f"'{spread.dataset.name}' is {kind}: use one of {', '.join(fitting)}"
            )
        networks = sorted(set(self.model.of_sites(spread.sites).values()))
        if len(networks) > 1 and not self.method.mixed_networks:
            fitting = [name for name in methods if methods.get(name).mixed_networks]
            raise ConfigError(
                f"method '{self.method_name}' needs the same network at every site, the study names "
                f"{', '.join(networks)}: use one, or a method for different networks ({', '.join(fitting)})"
            )
        for site in self.model.sites:
            if site not in spread.sites:
                raise ConfigError(f"unknown site 'model.sites.{site}'.{nearest(site, list(spread.sites))}")
        return spread


_TABLES = (
    "data", "partition", "noise", "public", "model", "train", "method", "engine", "federation", "gate", "evaluate"
)  # fmt: skip

_OBJECTS: dict[str, type] = {"data": Source, "partition": Partition, "noise": Noise, "method": Method}
"""Tables in whose place an object may stand, in Python."""


def _object_or(registry: Registry[Any], table: Any, where: str) -> Any:
    """An object that the caller made itself, or the one that a table describes."""
    return build_named(registry, table, where) if isinstance(table, Mapping) else table


def _with_named_factory(table: Mapping[str, Any]) -> Mapping[str, Any]:
    """A network factory that was passed as an object gets a name."""
    name = table.get("name")
    return table if name is None or isinstance(name, str) else {**table, "name": name_of_model(name)}


def _method_and_recipe(table: Mapping[str, Any], partition: Partition) -> tuple[Method, Recipe]:
    """The method, and the recipe by which its sites train: `[train]`, or a method object's own where there is none."""
    chosen = table.get("method", {"name": "fedavg"})
    recipe = _without(table.get("train", {}), "objective", "train")
    if isinstance(chosen, Method):
        own = getattr(chosen, "local", None)
        if not isinstance(own, Recipe):
            return chosen, build(Recipe, recipe, "train")
        if "train" not in table:
            return chosen, own
        train = build(Recipe, {**as_table(own, leave=OBJECTIVE), **recipe}, "train")
        return replace(chosen, local=train), train  # type: ignore[call-arg]
    train = build(Recipe, recipe, "train")
    method_table = _detection_for_own_labels(
        _without(chosen, "local", "method"), own_labels="noise" not in table
    )
    method_table = _one_site_a_visit(method_table, getattr(partition, "sites", None))
    cls = methods.get(method_table["name"]) if isinstance(method_table.get("name"), str) else Method
    trains = any(f.name == "local" for f in dataclasses.fields(cls))
    fixed = {"local": train} if trains else {}
    method: Method = build_named(methods, method_table, "method", fixed=fixed)
    return method, train


PUBLIC_SHARE = 0.1
"""Of the training pool, set aside for a method that needs public samples when the study names none."""


def _detection_for_own_labels(table: Mapping[str, Any], *, own_labels: bool) -> Mapping[str, Any]:
    """Labels that nobody spoiled on purpose may well be clean, and the papers' mixtures find noise in any
    federation: for a person's own labels a method that can test for noise first does so unless told otherwise."""
    name = table.get("name")
    if not own_labels or not isinstance(name, str) or name not in methods or "detection" in table:
        return table
    can_test = any(f.name == "detection" for f in dataclasses.fields(methods.get(name)))
    return {**table, "detection": "tested"} if can_test else table


def _one_site_a_visit(table: Mapping[str, Any], sites: object) -> Mapping[str, Any]:
    """A method that visits a share of the sites in turn visits one at a time, 1/N, where the partition says how
    many there are and nobody says otherwise."""
    name = table.get("name")
    if not isinstance(sites, int) or sites < 1 or not isinstance(name, str) or name not in methods:
        return table
    visits = any(f.name == "visit_fraction" for f in dataclasses.fields(methods.get(name)))
    return {**table, "visit_fraction": 1 / sites} if visits and "visit_fraction" not in table else table


def read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(Path(path).read_text("utf-8"))
    except FileNotFoundError:
        hint = nearest(str(path), preset_names()) if Path(path).suffix != ".toml" else ""
        raise ConfigError(
            f"study file '{path}' does not exist.{hint if 'mean' in hint else ''}".rstrip(".")
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from None


def _without(table: Mapping[str, Any], key: str, where: str) -> Mapping[str, Any]:
    """A field that the program fills is no key of the table."""
    if key in table:
        raise ConfigError(f"unknown key '{where}.{key}': the method sets it")
    return table


def _public(table: Mapping[str, Any] | None, method: Method) -> Public | None:
    """The `[public]` table; `name` chooses a dataset, whose own keys stand beside it."""
    if table is None:
        return Public(from_train=PUBLIC_SHARE) if "public" in method.needs else None
    if "name" not in table:
        return build(Public, _without(table, "source", "public"), "public")
    rest = {key: value for key, value in table.items() if key != "samples"}
    source = build_named(sources, rest, "public")
    samples = {"samples": table["samples"]} if "samples" in table else {}
    return build(Public, samples, "public", fixed={"source": source})


def _public_table(public: Public) -> dict[str, Any]:
    if public.source is None:
        return as_table(public)
    return {"name": sources.name_of(public.source), "samples": public.samples, **as_table(public.source)}
