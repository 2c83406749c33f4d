"""A trained model as a file for other tools: safetensors, TorchScript, ONNX."""

from __future__ import annotations

import importlib.util
import json
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from fedsift.api.folder import StoredModelCard
from fedsift.api.predictions import normalisation
from fedsift.core.errors import ConfigError, RunError
from fedsift.data.sources.table import flat_scale

if TYPE_CHECKING:
    from fedsift.protocol.messages import Weights

FORMATS = {".safetensors": "weights", ".pt": "TorchScript", ".onnx": "ONNX"}
TOLERANCE = 1e-4


class ExportedNetwork(nn.Module):
    """Normalisation, then the network: pictures in 0..1 `[n, C, H, W]`, or rows `[n, F]` (of a table in its own units),
    to logits `[n, K]`."""

    mean: Tensor
    std: Tensor

    def __init__(self, network: nn.Module, card: StoredModelCard) -> None:
        super().__init__()
        self.network = network
        view = (1, -1, 1, 1) if len(card.shape) == 3 else (1, -1)
        mean, std = normalisation(card) if len(card.shape) == 3 else ((0.0,), (1.0,))
        if card.scale is not None:
            mean, std = flat_scale(card.scale)
        self.register_buffer("mean", torch.tensor(mean).view(view))
        self.register_buffer("std", torch.tensor(std).view(view))

    def forward(self, samples: Tensor) -> Tensor:
        logits: Tensor = self.network((samples - self.mean) / self.std)
        return logits


def export(path: Path, weights: Weights, network: nn.Module, card: StoredModelCard) -> Path:
    """Write the model; the file's ending chooses the format."""
    kind = FORMATS.get(path.suffix.lower())
    if kind is None:
        raise ConfigError(f"'{path}' ends in none of {', '.join(FORMATS)}: the ending chooses the format")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if kind == "weights":
            _safetensors(path, weights, card)
        elif kind == "TorchScript":
            _torchscript(path, ExportedNetwork(network, card).eval().requires_grad_(False), card)
        else:
            _onnx(path, ExportedNetwork(network, card).eval().requires_grad_(False), card)
    except OSError as error:
        raise RunError(f"{path} cannot be written: {error.strerror or error}") from None
    return path


def _safetensors(path: Path, weights: Weights, card: StoredModelCard) -> None:
    """The weights under their names; what it takes to use them is in the file's metadata, under "fedsift"."""
    from safetensors.torch import save_file

    whole = {key: value.contiguous().clone() for key, value in weights.items()}
    save_file(whole, path, metadata={"fedsift": json.dumps(asdict(card))})


def _examples(card: StoredModelCard, count: int) -> Tensor:
    return torch.rand((count, *card.shape), generator=torch.Generator().manual_seed(0))


def _torchscript(path: Path, network: nn.Module, card: StoredModelCard) -> None:
    with torch.inference_mode(False), torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            traced = torch.jit.trace(network, _examples(card, 2), check_trace=False)  # type: ignore[no-untyped-call]
            # another number of samples than it was traced with: a network whose shape depends on it shows here
            other = _examples(card, 3)
            same = torch.allclose(traced(other), network(other), atol=TOLERANCE, rtol=TOLERANCE)
        except Exception as error:  # whatever a user's network raises when it is traced
            raise RunError(f"model '{card.model}' cannot be traced for TorchScript: {error}") from error
        if not same:
            raise RunError(f"model '{card.model}' does not compute the same as TorchScript: export .safetensors")
        torch.jit.save(traced, path, _extra_files={"fedsift.json": json.dumps(asdict(card))})


def _onnx(path: Path, network: nn.Module, card: StoredModelCard) -> None:
    missing = [name for name in ("onnx", "onnxscript") if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"an .onnx file needs {' and '.join(missing)}, not installed here: pip install onnx onnxscript, "
            "or export .pt or .safetensors"
        )
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            torch.onnx.export(
                network,
                (_examples(card, 2),),
                str(path),
                input_names=["samples"],
                output_names=["logits"],
                dynamic_shapes={"samples": {0: torch.export.Dim("n")}},
                dynamo=True,
                external_data=False,
                verbose=False,
            )
        except OSError:
            raise
        except Exception as error:  # whatever a user's network raises when it is translated
            reason = str(error).strip().partition("\n")[0]
            raise RunError(f"model '{card.model}' cannot be translated to ONNX: {reason}") from error
