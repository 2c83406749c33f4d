"""`fedsift export`: a trained model as a file for other tools."""

from __future__ import annotations

from pathlib import Path

import typer

from fedsift.cli.output import print_json, stdout


def register(app: typer.Typer) -> None:
    app.command("export")(export)


def export(
    run: Path = typer.Argument(help="The run's folder."),
    file: Path = typer.Argument(help="The file; its ending chooses: .safetensors, .pt (TorchScript) or .onnx."),
    json: bool = typer.Option(False, "--json", help="Print the file's path as JSON."),
) -> None:
    """Write a run's trained model for other tools; TorchScript and ONNX normalise pictures (0..1) themselves."""
    from fedsift.api.start import load

    path = load(run).export(file)
    if json:
        print_json({"model": path})
    else:
        stdout.print(f"model: {path}", highlight=False, soft_wrap=True, markup=False)
