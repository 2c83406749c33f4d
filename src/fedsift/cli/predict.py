"""`fedsift predict` and `fedsift export`: a trained model, applied to new samples or written for other tools."""

from __future__ import annotations

from pathlib import Path

import typer
from rich.markup import escape

from fedsift.cli.output import print_json, print_table, stderr, stdout

SHOWN = 20


def register(app: typer.Typer) -> None:
    app.command("predict")(predict)
    app.command("export")(export)


def predict(
    run: Path = typer.Argument(help="The run's folder."),
    data: Path = typer.Argument(
        help="A picture, a folder or zip of pictures, an .npz with `images`, an .npy, or a CSV of numbers."
    ),
    out: Path | None = typer.Option(None, "--out", help="Write all predictions to this CSV file."),
    json: bool = typer.Option(False, "--json", help="Print all predictions as JSON."),
) -> None:
    """Apply a run's trained model to new samples; labels are not needed."""
    from fedsift.api.predictions import read_samples, write_csv
    from fedsift.api.start import load

    trained = load(run)
    ids, images, broken = read_samples(data, trained.card, trained.study.get("data", {}))
    found = trained.predict(images, ids)
    for name, reason in broken:
        stderr.print(f"[yellow]left out {escape(name)}:[/] {escape(reason)}", highlight=False, soft_wrap=True)
    rows = found.rows()
    if out is not None:
        write_csv(out, rows)
    if json:
        print_json({"classes": found.classes, "predictions": rows, "left_out": dict(broken)})
        return
    cells = [
        [row["id"], row["predicted_label"], "" if found.multilabel else f"{row['confidence']:.3f}"]
        for row in rows[:SHOWN]
    ]
    print_table(f"{len(rows)} predictions", ["sample", "predicted_label", "confidence"], cells)
    if len(rows) > SHOWN and out is None:
        stdout.print(f"... and {len(rows) - SHOWN} more: --out FILE.csv or --json give all", highlight=False)
    if out is not None:
        stdout.print(f"predictions: {out}", highlight=False, soft_wrap=True, markup=False)


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
