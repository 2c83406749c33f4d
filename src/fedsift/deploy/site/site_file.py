"""A site's configuration, `site.toml`: its keys, read and checked.

name = "north"                       # how the federation knows this site
classes = ["benign", "malignant"]    # the same names in the same order at every site
mean = [0.5]                         # how pixels are normalised, the same at every site
std = [0.5]
held_out = 0.2                       # share kept for evaluation here, when the data have no test part
notebook = "notebook"                # where this site keeps its own notes; never leaves
notebook_history = 10                # rounds by which the coordinator may be restored older than it was
apps = ["sha256:5b0e..."]            # the only apps that may run here: `fedsift flower pin`
privacy_budget = 4.0                 # epsilon that all releases of a label may spend together, ever; inf: no limit
audit_min_count = 10                 # the smallest count that leaves this site in a label audit
networks = ["our_nets.small:Small"]  # networks by address that a study may name here; registered ones always may

[data]                               # any dataset of `fedsift datasets`; paths are relative to this file
name = "npz"
path = "data.npz"
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedsift.core.errors import ConfigError
from fedsift.core.files import safe_name
from fedsift.core.ranges import AtLeastOne, Count
from fedsift.deploy.site.policy import Policy
from fedsift.deploy.site.site_file_head import APP_PIN, EGRESS_FILE, LARGEST_ANSWER
from fedsift.study.study import read_toml
from fedsift.study.toml_tables import build

SITE_FILE = "site.toml"
LABEL_BUDGET = 4.0
"""The default `privacy_budget`: one release that spends all of it keeps a label of ten with chance 0.86."""


@dataclass(frozen=True)
class SiteFile:
    """The keys of a site.toml."""

    name: str
    classes: tuple[str, ...]
    data: dict[str, Any]
    """A dataset's table: its `name` and parameters."""
    mean: tuple[float, ...] = (0.5,)
    std: tuple[float, ...] = (0.5,)
    multilabel: bool = False
    held_out: float = 0.2
    """Share kept for evaluation when the data have no test part; 0 keeps none."""
    notebook: Path = Path("notebook")
    notebook_history: Count = 10
    """Older rounds whose notes are kept, so that a coordinator restored from a copy can go on."""
    model: str = ""
    """Another network than the study's."""
    networks: tuple[str, ...] = ()
    """Networks by their address, `package.module:Name`, that a study may name here; registered ones need no line."""
    annotated: tuple[str, ...] | None = None
    """Classes that the site annotates at all; without this key, every class."""
    public: dict[str, Any] = field(default_factory=dict)
    """A dataset's table for unlabelled samples that every site has, the same in the same order."""
    public_mean: tuple[float, ...] = ()
    """How the public samples are normalised; `mean` and `std` by default."""
    public_std: tuple[float, ...] = ()
    privacy_budget: float = LABEL_BUDGET
    """Epsilon that may ever be spent on each label, whatever run and whatever epsilon it is asked at; `inf`: no
    limit."""
    audit_min_count: AtLeastOne = 10
    """The smallest count that leaves this site in a label audit; smaller ones leave in a lump."""
    apps: tuple[str, ...] = ()
    """Fingerprints `sha256:...` of the apps that may run here; across a network no other does."""
    largest_answer: AtLeastOne = LARGEST_ANSWER
    """MB of one answer of the coordinator's that this site's gateway takes."""
    policy: Policy | None = None
    """What may be asked and what may leave; without this table, all that the installed fedsift knows."""
    plugins: tuple[str, ...] = ()
    """Modules that the site's own process imports first, e.g. one with a method's own requests."""
    device: str = "cpu"


def read_site_file(path: Path) -> SiteFile:
    """A site.toml with every key checked."""
    table = _toml(path)
    file = build(SiteFile, table, "")
    if not file.name.strip():
        raise ConfigError(f"{path}: 'name' is empty; the federation knows a site by its name")
    if len(set(file.classes)) != len(file.classes) or not file.classes:
        raise ConfigError(f"{path}: 'classes' must name every class of the federation once")
    if not file.privacy_budget >= 0:
        raise ConfigError(f"{path}: privacy_budget = {file.privacy_budget}: it must be 0 or more, or inf for no limit")
    for name in file.annotated or ():
        if name not in file.classes:
            raise ConfigError(f"{path}: 'annotated' names '{name}', which is not one of 'classes'")
    for pin in file.apps:
        if not APP_PIN.fullmatch(pin):
            raise ConfigError(f"{path}: 'apps' has '{pin}'; a pin is sha256: and 64 hexadecimal digits")
    return file


def notebook_of(path: Path, file: SiteFile) -> Path:
    """Where this site's notes are: a folder by its name, so that two site files beside each other share nothing."""
    return path.parent / file.notebook / safe_name(file.name)


def egress_of(path: Path, file: SiteFile) -> Path:
    """The list of all that left this site, beside its notes."""
    return notebook_of(path, file) / EGRESS_FILE


def _toml(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise ConfigError(f"site file '{path}' does not exist")
    return read_toml(path)
