"""Loads initial weights, such as ImageNet's, from a file or an installed package, without running anything in them.

`imagenet` stands for a file of that network in a folder `weights` of the data folders. A state of torchvision's ResNets
is read by its own names. The head is drawn anew where its classes are not those of the study.
"""

from __future__ import annotations

import hashlib
import pickle
import re
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from fedsift.core.errors import ConfigError

IMAGENET = "imagenet"
SUFFIXES = (".safetensors", ".pth", ".pt")
ADDRESS = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
HEAD = "head."
COUNTERS = "num_batches_tracked"
"""Older states lack batch norm's counters, which no result depends on."""
RESNET = (
    (re.compile(r"conv1\."), "entry.0."),
    (re.compile(r"bn1\."), "entry.1."),
    (re.compile(r"fc\."), HEAD),
)
Origin = Path | str
"""A file, or the address of what gives a state."""


def find_weights(weights: str, model: str, roots: Sequence[Path]) -> Origin | None:
    """What `weights` means: a file, an address `package.module:name`, or for "imagenet" the network's file in a folder
    `weights` of the data folders, None where there is none."""
    if weights == IMAGENET:
        files = [root / "weights" / f"{model}{suffix}" for root in roots for suffix in SUFFIXES]
        return next((file for file in files if file.is_file()), None)
    path = Path(weights).expanduser()
    if path.is_file():
        return path
    if ADDRESS.fullmatch(weights):
        return weights
    raise ConfigError(
        f"model.weights = '{weights}': there is no such file; give a .safetensors or torch state file, "
        f"package.module:name, or '{IMAGENET}'"
    )


def digest_of(origin: Origin | None) -> str:
    """A short digest of the weights."""
    if origin is None:
        return "none"
    return hashlib.sha256(origin.read_bytes()).hexdigest()[:16] if isinstance(origin, Path) else origin


def read_state(origin: Origin) -> dict[str, Tensor]:
    """The tensors of a file or of an installed package; a file that holds anything else is refused."""
    found = _from_package(origin) if isinstance(origin, str) else _from_file(origin)
    for wrapper in ("state_dict", "model"):
        if isinstance(found, Mapping) and isinstance(found.get(wrapper), Mapping):
            found = found[wrapper]
    if not isinstance(found, Mapping) or not all(isinstance(value, Tensor) for value in found.values()):
        raise ConfigError(f"{origin} holds no state of a network: names with tensors are needed")
    return {str(name).removeprefix("module."): value for name, value in found.items()}


def _from_file(path: Path) -> Any:
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        return torch.load(path, map_location="cpu", weights_only=True)
    except (SafetensorError, pickle.UnpicklingError, RuntimeError, EOFError, OSError) as error:
        raise ConfigError(f"{path} cannot be read as weights: {str(error).splitlines()[0]}") from None


def _from_package(address: str) -> Any:
    """What stands at the address: a state, a path to one, or a callable that gives either."""
    module, _, name = address.partition(":")
    try:
        found: Any = import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"model.weights = '{address}': {error}") from None
    found = found() if callable(found) else found
    return _from_file(Path(found)) if isinstance(found, str | Path) else found


def started_from(fresh: Mapping[str, Tensor], given: Mapping[str, Tensor], origin: object) -> dict[str, Tensor]:
    """`fresh` with the given tensors in its places. Only a head of another size stays as it was drawn."""
    known = given if set(given) & set(fresh) else {_ours(name): value for name, value in given.items()}
    state = dict(fresh)
    for name, value in fresh.items():
        found = known.get(name)
        if found is not None and found.shape == value.shape:
            state[name] = found.to(value.dtype).clone()
        elif name.startswith(HEAD) or (found is None and name.endswith(COUNTERS)):
            continue
        elif found is None:
            raise ConfigError(f"{origin} has no '{name}': these are weights of another network")
        else:
            raise ConfigError(_shape_error(name, tuple(found.shape), tuple(value.shape), origin))
    return state


def _shape_error(name: str, found: tuple[int, ...], wanted: tuple[int, ...], origin: object) -> str:
    message = f"{origin}: '{name}' is {found}, this network needs {wanted}"
    if len(wanted) == 4 and (wanted[1], found[1]) == (1, 3):
        return f"{message}: the pictures have one channel, these weights are for three: set data.channels = 3"
    return message


def _ours(name: str) -> str:
    """A name of torchvision's ResNets as ours."""
    block = re.fullmatch(r"layer(\d)\.(\d+)\.(.+)", name)
    if block is not None:
        rest = re.sub(r"^bn(\d)\.", r"norm\1.", block[3])
        return f"groups.{int(block[1]) - 1}.{block[2]}.{rest.replace('downsample.', 'shortcut.')}"
    for pattern, place in RESNET:
        if pattern.match(name):
            return pattern.sub(place, name)
    return name
