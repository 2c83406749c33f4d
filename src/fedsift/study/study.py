"""`Study`: one TOML file with data, partition, noise, model, method and engine, read, checked and completed."""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import tomli_w

from fedsift.core.errors import ConfigError
from fedsift.core.ranges import Count, Range, RangeChecked
from fedsift.core.registry import Registry, nearest
from fedsift.data.build import PublicSettings
from fedsift.data.build import build as build_data
from fedsift.data.dataset import FederatedDataset
from fedsift.data.doctor import kind_at
from fedsift.data.download import data_roots
from fedsift.data.noise.base import Noise, noises
from fedsift.data.partitions.base import Partition, partitions
from fedsift.data.partitions.natural import Natural, OwnSites
from fedsift.data.sources.base import Source, sources
from fedsift.methods._base import methods
from fedsift.models.factory import check_model, name_of_model
from fedsift.models.weights import IMAGENET, Origin, find_weights
from fedsift.protocol.federation import FederationFacts
from fedsift.protocol.method import Method
from fedsift.protocol.site import ComputeSettings
from fedsift.runtime.federation import QuorumPolicy
from fedsift.runtime.gate.protection import GateLimits
from fedsift.runtime.loop import EvaluationSchedule
from fedsift.study.scenarios import preset_names, preset_table
from fedsift.study.toml_tables import (
    BasePaths,
    apply_overrides,
    as_table,
    build,
    build_named,
    leave_other_keys,
    read_overrides,
)
from fedsift.study.tracking import read_track
from fedsift.study.transport import transports
from fedsift.tracking.base import Tracker
from fedsift.training.features import is_features, with_features
from fedsift.training.recipe import Recipe

# The `[model]` table: which network every site trains, and what it starts from
# ------------------------------------------------------------------------------


@dataclass(frozen=True)
class ModelTable:
    """`[model]`: the network that the sites train."""

    name: str = "cnn"
    cycle: tuple[str, ...] = ()
    """Networks for the sites in turn, instead of `name`: the first site trains the first, and so on."""
    sites: dict[str, str] = field(default_factory=dict)
    """Another network for a site, by the site's name; it comes before `cycle`."""
    weights: str = ""
    """Initial weights: a .safetensors or torch state file, `package.module:name`, or "imagenet" for the network's file
    in a folder `weights` of the data folders. Sites with models of their own draw theirs."""

    def __post_init__(self) -> None:
        if self.weights and (self.cycle or self.sites):
            raise ConfigError("model.weights serve one network: leave model.cycle and model.sites out")

    @property
    def origin(self) -> Origin | None:
        """Where the initial weights come from; None draws them."""
        return find_weights(self.weights, self.name, data_roots()) if self.weights else None

    @property
    def notes(self) -> tuple[str, ...]:
        """What a person must know of the initial weights."""
        if self.weights != IMAGENET or self.origin is not None:
            return ()
        return (
            f"architecture only: {self.name} is to start from ImageNet weights, which are not at hand and are drawn "
            f"instead; set model.weights, or put {self.name}.safetensors or .pth into a folder weights of FEDSIFT_DATA",
        )

    @property
    def networks(self) -> tuple[str, ...]:
        """Every network that the table names."""
        return (self.name, *self.cycle, *self.sites.values())

    def of_sites(self, sites: Sequence[str]) -> dict[str, str]:
        """The network of each site."""
        turn = self.cycle or (self.name,)
        return {site: self.sites.get(site, turn[number % len(turn)]) for number, site in enumerate(sites)}


# The `[method]` table: a method by its name, its forms, methods inside it, keys of earlier versions
# ------------------------------------------------------------------------------

LOCAL = "local"
"""The entry that holds a method's recipe: the study's `[train]`, never a key of `[method]`."""


def own_recipe(table: Mapping[str, Any]) -> Recipe:
    """The recipe of the method that a table names: what it trains by in a study without `[train]`."""
    name = table.get("name")
    if isinstance(name, str):
        for entry in dataclasses.fields(methods.get(name)):
            if entry.name == LOCAL and entry.default_factory is not dataclasses.MISSING:
                recipe = entry.default_factory()
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
    trains = any(entry.name == LOCAL for entry in dataclasses.fields(cls))
    fixed: dict[str, Any] = {LOCAL: local} if trains else {}
    rest = _with_form(cls, dict(table), where)
    for entry, decided in cls.lasting.items():
        if isinstance(rest.get(entry), Mapping):
            fixed[entry] = _last(rest.pop(entry), decided, local, f"{where}.{entry}")
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
    inner = {entry: part for entry in method.lasting if (part := getattr(method, entry)) is not None}
    table = {
        "name": methods.name_of(method),
        **as_table(method, leave=frozenset({LOCAL, *inner})),
    }
    for entry, part in inner.items():
        table[entry] = _last_table(part, method.lasting[entry])
    return table


def _last_table(part: Method, decided: tuple[str, ...]) -> dict[str, Any]:
    table = {"name": methods.name_of(part), **as_table(part, leave=frozenset({LOCAL, *decided}))}
    recipe = getattr(part, LOCAL, None)
    if recipe is not None and recipe != own_recipe(table):
        table["train"] = as_table(recipe, leave=frozenset({"objective"}))
    return table


def federation_facts_of(federated: FederatedDataset, networks: tuple[str, ...], *, natural: bool) -> FederationFacts:
    """What is known of a federation once its data are loaded."""
    return FederationFacts(
        sites=len(federated.sites),
        samples=tuple(len(federated.rows[site]) for site in federated.sites),
        classes=federated.dataset.n_classes,
        multilabel=federated.dataset.multilabel,
        natural=natural,
        annotates_all=federated.annotated is None or all(bool(own.all()) for own in federated.annotated.values()),
        public=None if federated.public is None else len(federated.public.rows),
        networks=networks,
    )


def settled(method: Method, facts: FederationFacts) -> tuple[Method, tuple[str, ...]]:
    """The method completed by the facts, and what speaks against it here; a decisive incompatibility is an error."""
    method = method.completed(facts)
    incompatibility = method.fits(facts)
    if incompatibility is None:
        return method, ()
    name = methods.name_of(method)
    if incompatibility.refuses:
        raise ConfigError(f"method '{name}' does not fit: {incompatibility.reason}. {_others(facts)}")
    return method, (f"method '{name}': {incompatibility.reason}",)


def _others(facts: FederationFacts) -> str:
    fitting = []
    for name in methods:
        found = methods.get(name)().completed(facts).fits(facts)
        if found is None or not found.refuses:
            fitting.append(name)
    return f"Methods that do: {', '.join(fitting)}" if fitting else "No method does"


OBJECTIVE = frozenset({"objective"})


@dataclass(frozen=True)
class EngineTable(RangeChecked):
    """`[engine]`: where requests are answered, and with what hardware. It never changes a result's meaning."""

    name: str = "inprocess"
    """The transport: "inprocess", "flower", one of another package, or `package.module:Name`."""
    device: str = "cpu"
    trainer: Literal["auto", "measure", "cohort", "one"] = "auto"
    """"cohort" stacks the sites of a round, "one" trains them in turn, "auto" chooses by network, images and batch,
    "measure" by timing a few steps."""
    workers: Annotated[int, Range(0, 64)] = 0
    """Worker processes of the in-process engine; 0 trains in this process. They change no bit of a result."""
    threads: Annotated[int, Range(0, 256)] = 0
    """Torch threads of every process; 0 is one."""
    parts: Count = 0
    """Parts that a round's sites are cut into, whatever the number of workers; 0 is an even number with at most ten
    sites each."""
    cohorts: dict[str, int] = field(default_factory=dict)
    """How many sites train together, by kind of training, as a run's summary says under "trainers"; 0 is one site with
    its channels first in memory. What is named here is neither chosen nor measured."""

    def __post_init__(self) -> None:
        if ":" not in self.name and self.name not in transports:
            known = sorted({*transports, "inprocess"})
            raise ConfigError(f"unknown transport engine.name = '{self.name}'.{nearest(self.name, known)}")
        for kind, size in self.cohorts.items():
            if size < 0:
                raise ConfigError(f"engine.cohorts.'{kind}' = {size}: it must be at least 0")

    def compute(self) -> ComputeSettings:
        """The settings of one run, which writes what it settles into a copy of `cohorts`; a device that this machine
        does not have is refused."""
        need_device(self.device)
        return ComputeSettings(
            device=self.device,
            trainer=self.trainer,
            workers=self.workers,
            threads=self.threads or 1,
            parts=self.parts,
            cohorts=dict(self.cohorts),
        )


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
    federation: QuorumPolicy = field(default_factory=QuorumPolicy)
    gate: GateLimits = field(default_factory=GateLimits)
    evaluate: EvaluationSchedule = field(default_factory=EvaluationSchedule)
    name: str = "study"
    seed: int = 1
    public: PublicSettings | None = None
    track: Mapping[str, Tracker] = field(default_factory=dict, compare=False)
    """The trackers of the run. No part of what computes its result, so it is neither in `to_table` nor compared."""
    notes: tuple[str, ...] = field(default=(), compare=False)
    """What settings over the file left out, in words for the user."""

    @classmethod
    def from_file(cls, path: Path, overrides: list[str] | None = None) -> Study:
        """A study from a TOML file, or from a scenario preset by its name, with settings over it.

        Paths in the file are relative to the file, paths in the settings to the working directory.
        """
        name = str(path)
        known = not Path(path).is_file() and name in preset_names()
        table = preset_table(name) if known else read_toml(path)
        settings = read_overrides(overrides or [])
        table, notes = _renamed(table, settings)
        base = Path.cwd() if known else Path(path).absolute().parent
        study = cls.from_table(apply_overrides(table, overrides or []), BasePaths(base, frozenset(settings)))
        return replace(study, notes=notes)

    @classmethod
    def from_table(cls, table: Mapping[str, Any], bases: BasePaths | None = None) -> Study:
        """A study from tables as TOML gives them; in Python, `data`, `partition`, `noise` and `method` may be objects
        of one's own, and `model.name` a factory. Its paths become absolute, so that the study in a run's folder means
        the same files wherever it is read; without `bases` they start at the working directory."""
        bases = bases or BasePaths(Path.cwd())
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
        source: Source = _object_or(sources, table.get("data", {"name": "digits"}), "data", bases)
        model = build(ModelTable, _with_named_factory(table.get("model", {})), "model")
        for network in model.networks:
            check_model(network)
        usual = source.usual()
        usual_partition = {"name": "own-sites"} if source.own else {"name": "iid", "sites": 10}
        partition: Partition = _object_or(partitions, table.get("partition", usual_partition), "partition", bases)
        sites = getattr(partition, "sites", None)
        method, train = _method_and_recipe(table)
        method = method.completed(
            FederationFacts(
                sites=sites if isinstance(sites, int) and sites > 0 else None,
                own_labels="noise" not in table,
                natural=isinstance(partition, Natural),
            )
        )
        noise = table.get("noise", usual.get("noise", {"name": "clean"}))
        return cls(
            source=source,
            partition=partition,
            noise=_object_or(noises, noise, "noise", bases),
            method=method,
            train=train,
            model=model,
            engine=build(EngineTable, table.get("engine", {}), "engine"),
            federation=build(QuorumPolicy, table.get("federation", {}), "federation"),
            gate=build(GateLimits, table.get("gate", {}), "gate"),
            evaluate=build(EvaluationSchedule, table.get("evaluate", {}), "evaluate"),
            name=str(table.get("name", "study")),
            seed=seed,
            public=_public(table.get("public"), method, bases),
            track=read_track(table.get("track", {}), bases),
        )

    def to_table(self) -> dict[str, Any]:
        """The resolved study, every default written out: it builds the same study again, without its trackers."""
        return {
            "name": self.name,
            "seed": self.seed,
            "data": {"name": sources.name_of(self.source), **as_table(self.source)},
            "partition": {"name": partitions.name_of(self.partition), **as_table(self.partition)},
            "noise": {"name": noises.name_of(self.noise), **as_table(self.noise)},
            "model": as_table(self.model),
            "train": as_table(self.train, leave=OBJECTIVE),
            **({} if self.public is None else {"public": _public_table(self.public)}),
            "method": method_table(self.method),
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

    def _embedded(self, federated: FederatedDataset) -> FederatedDataset:
        """Features in place of pictures when the model is a head on frozen features; labels are corrupted before."""
        names = [name for name in (self.model.name, *self.model.sites.values()) if is_features(name)]
        if not names:
            return federated
        if len(set(names)) > 1 or federated.public is not None:
            raise ConfigError("frozen features serve one extractor and no public set: use another model")
        return replace(federated, dataset=with_features(federated.dataset, names[0], device=self.engine.device))

    def load_samples(self) -> FederatedDataset:
        """Load, partition and corrupt the data, whatever network and method look at them."""
        dataset, public = self.source.load(), None
        if self.public is not None:
            dataset, public = self.public.take(dataset, self.seed)
        federated = build_data(
            dataset,
            self.partition,
            self.noise,
            seed=self.seed,
            held_out=self.evaluate.held_out if self.method.holds_out else self.evaluate.held_out or None,
        )
        return replace(federated, public=public)

    def load_data(self, samples: FederatedDataset | None = None) -> FederatedDataset:
        """The federated data as the networks see them; refuses a method that does not fit them.

        samples: what `load_samples` gave, of this study or of one that differs in network alone; loaded here if absent.
        """
        federated = self.load_samples() if samples is None else samples
        federated = self._embedded(replace(federated, notes=(*self.notes, *self.model.notes, *federated.notes)))
        for site in self.model.sites:
            if site not in federated.sites:
                raise ConfigError(f"unknown site 'model.sites.{site}'.{nearest(site, list(federated.sites))}")
        _, notes = settled(self.method, self.facts(federated))
        return replace(federated, notes=(*federated.notes, *notes))

    def facts(self, federated: FederatedDataset) -> FederationFacts:
        """What is known of this study's federation once its data are loaded."""
        networks = tuple(sorted(set(self.model.of_sites(federated.sites).values())))
        natural = isinstance(self.partition, Natural | OwnSites) and federated.dataset.sites is not None
        return federation_facts_of(federated, networks, natural=natural)

    def completed(self, facts: FederationFacts) -> Study:
        """The study with everything that follows from its federation; refuses a method that does not fit it."""
        return replace(self, method=settled(self.method, facts)[0])


_TABLES = (
    "data", "partition", "noise", "public", "model", "train", "method", "engine", "federation", "gate", "evaluate",
    "track",
)  # fmt: skip

_OBJECTS: dict[str, type] = {"data": Source, "partition": Partition, "noise": Noise, "method": Method}
"""Tables in whose place an object may stand, in Python."""


def _object_or(registry: Registry[Any], table: Any, where: str, bases: BasePaths) -> Any:
    """An object that the caller made itself, or the one that a table describes."""
    return build_named(registry, table, where, bases=bases) if isinstance(table, Mapping) else table


def _with_named_factory(table: Mapping[str, Any]) -> Mapping[str, Any]:
    """A network factory that was passed as an object gets a name."""
    name = table.get("name")
    return table if name is None or isinstance(name, str) else {**table, "name": name_of_model(name)}


def _method_and_recipe(table: Mapping[str, Any]) -> tuple[Method, Recipe]:
    """The method, and the recipe by which its sites train: `[train]` is the whole recipe, without one it is the
    method's own; over a method object's, `[train]` changes what it names."""
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
    train = build(Recipe, recipe, "train") if "train" in table else own_recipe(chosen)
    return build_method(chosen, train), train


PUBLIC_SHARE = 0.1
"""Of the training pool, set aside for a method that needs public samples when the study names none."""


def _renamed(table: Mapping[str, Any], settings: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The file's tables without the keys of what a setting such as `method.name=fedavg` replaces, and notes."""
    result, notes = dict(table), []
    named: dict[str, Registry[Any]] = {
        "data": sources,
        "partition": partitions,
        "noise": noises,
        "method": methods,
    }
    for where, registry in named.items():
        name, own = settings.get(f"{where}.name"), table.get(where)
        if isinstance(name, str) and isinstance(own, Mapping):
            result[where], note = leave_other_keys(own, where, name, registry)
            notes += [note] if note else []
    return result, tuple(notes)


def need_device(device: str) -> None:
    """Refuse a device that torch does not know or this machine does not have."""
    import torch

    try:
        kind = torch.device(device).type
    except RuntimeError:
        raise ConfigError(f"engine.device = '{device}': it must be cpu, cuda, cuda:0 and so on, or mps") from None
    there = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if not there.get(kind, True):
        raise ConfigError(f"engine.device = '{device}': this machine has no {kind} device that torch can use: use cpu")
    count = torch.cuda.device_count() if kind == "cuda" else 1
    if (torch.device(device).index or 0) >= count:
        raise ConfigError(f"engine.device = '{device}': this machine has {count}, counted from cuda:0")


def read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(Path(path).read_text("utf-8"))
    except FileNotFoundError:
        hint = nearest(str(path), preset_names()) if Path(path).suffix != ".toml" else ""
        raise ConfigError(f"study file '{path}' does not exist.{hint if 'mean' in hint else ''}".rstrip(".")) from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: {error}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is no study: it must be TOML in UTF-8 (byte {error.start} is not)") from None
    except IsADirectoryError:
        raise ConfigError(f"'{path}' is a folder: name the study's TOML file") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"study file '{path}' cannot be read: {error}") from None


def _without(table: Mapping[str, Any], key: str, where: str) -> Mapping[str, Any]:
    """A field that the program fills is no key of the table."""
    if key in table:
        raise ConfigError(f"unknown key '{where}.{key}': the method sets it")
    return table


def _public(table: Mapping[str, Any] | None, method: Method, bases: BasePaths) -> PublicSettings | None:
    """The `[public]` table; `name` chooses a dataset, whose own keys stand beside it."""
    if table is None:
        return PublicSettings(from_train=PUBLIC_SHARE) if "public" in method.needs else None
    if "name" not in table:
        return build(PublicSettings, _without(table, "source", "public"), "public", bases=bases)
    rest = {key: value for key, value in table.items() if key != "samples"}
    source = build_named(sources, rest, "public", bases=bases)
    samples = {"samples": table["samples"]} if "samples" in table else {}
    return build(PublicSettings, samples, "public", fixed={"source": source})


def _public_table(public: PublicSettings) -> dict[str, Any]:
    if public.source is None:
        return as_table(public)
    return {"name": sources.name_of(public.source), "samples": public.samples, **as_table(public.source)}


# A study of data as they lie there
# ------------------------------------------------------------------------------


def names_data(path: Path | str) -> bool:
    """Whether a path leads to data, and neither to a study's file or a scenario nor to a run's folder."""
    there = Path(path)
    if there.as_posix() in preset_names() and not there.is_file():
        return False
    return there.exists() and there.suffix.lower() != ".toml" and not (there / "study.toml").is_file()


def study_of_data(path: Path | str, settings: list[str] | None = None) -> Study:
    """The study that has these data and nothing else; `size=32` among the settings means `data.size=32`."""
    kind = kind_at(Path(path))
    [name] = [name for name in sources.names() if sources.get(name) is kind]
    own = {field.name for field in fields(kind)}
    dotted = [f"data.{each}" if each.partition("=")[0].strip() in own else each for each in settings or []]
    table = apply_overrides({"data": {"name": name, "path": str(path)}}, dotted)
    return Study.from_table(table, BasePaths(Path.cwd()))
