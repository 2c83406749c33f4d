"""`fedsift doctor`: check data before any training, and recommend methods."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.markup import escape

from fedsift.cli.output import print_json, print_table, say, stdout
from fedsift.core.text import argument, visible

if TYPE_CHECKING:
    from fedsift.benchmark.advice import Advice
    from fedsift.data.doctor import DoctorReport, MethodFit
    from fedsift.data.sources.base import Source
    from fedsift.study.study import Study

SHOWN = 5
COLOURS = {"error": "bold red", "warning": "yellow", "note": "dim"}


def register(app: typer.Typer) -> None:
    app.command("doctor")(doctor)


def doctor(
    path: Path = typer.Argument(
        help="A folder or zip of pictures, a folder of sites, a CSV of numbers, an .npz, or a study.toml."
    ),
    options: list[str] | None = typer.Argument(None, help="Fields of the source, e.g. label_column=dx size=64."),
    json: bool = typer.Option(False, "--json", help="Print as JSON."),
) -> None:
    """Look at data before any training. Exits with 0 (nothing to mend), 7 (look at the findings) or 3 (unusable)."""
    from fedsift.data.doctor import UNUSABLE, examine, fitting
    from fedsift.methods._base import methods
    from fedsift.study.quick_look import look_for_reference

    study = study_at(path, options or [])
    source = source_at(path, options or []) if study is None else study.source
    report = examine(source, partial(look_for_reference, study=study))
    fits = fitting(report, {name: methods.get(name)() for name in methods})
    advice = advice_on(report, fits)
    if json:
        print_json({**dataclasses.asdict(report), "exit_code": report.exit_code,
                    "methods": [dataclasses.asdict(fit) for fit in fits],
                    "advice": None if advice is None else dataclasses.asdict(advice)})  # fmt: skip
    else:
        _print_report(report, fits)
        for line in advice_lines(advice) if advice is not None else ():
            say(line)
        if source.own and report.exit_code != UNUSABLE:
            same = [option if study is None else f"data.{option}" for option in options or []]
            say(f"next, which labels are wrong: fedsift audit {' '.join(map(argument, [path, *same]))}")
    raise typer.Exit(report.exit_code)


def advice_on(report: DoctorReport, fits: list[MethodFit]) -> Advice | None:
    """What did best in our own runs where sites were like these, of the methods that nothing speaks against here.

    None where the leaderboard has nothing like it.
    """
    from fedsift.benchmark.advice import advice_for

    if not report.sites or report.kind != "multiclass":
        return None
    return advice_for(
        clean_sites=all(finding.code != "no-clean-reference" for finding in report.findings),
        every_class=not any(site.absent for site in report.sites),
        unfit=[fit.method for fit in fits if fit.reason],
    )


def advice_lines(advice: Advice) -> Iterator[str]:
    """The best methods of a situation, with what they gained there and how sure that is."""
    from fedsift.core.numbers import plural

    if not advice.best:
        if advice.methods:
            yield f"advice: none; something speaks against every method of the leaderboard where {advice.situation}"
        return
    yield (
        f"advice: where {advice.situation}, the leaderboard (CIFAR-10 features, {advice.methods} methods) has, of "
        "those that nothing speaks against here,"
    )
    for best in advice.best:
        interval = "" if best.low is None else f" [{best.low:+.1f}, {best.high:+.1f}]"
        yield (
            f"    {best.named}: {best.above_reference:+.1f}{interval} points above {advice.reference} on "
            f"{plural(best.seeds, 'seed')}, mean rank {best.mean_rank:g}"
        )
    apart = "" if advice.separated in (True, None) else "the first two do not differ significantly; "
    yield f"    {apart}wrong labels of your own may differ: try two"


def study_at(path: Path, options: list[str]) -> Study | None:
    """A study, whose partition and noise count too; None for data as they lie there."""
    from fedsift.study.study import Study

    if path.suffix != ".toml":
        return None
    return Study.from_file(path, [f"data.{option}" for option in options])


def source_at(path: Path, options: list[str]) -> Source:
    from fedsift.data.doctor import kind_at
    from fedsift.study.toml_tables import apply_overrides, build

    study = study_at(path, options)
    if study is not None:
        return study.source
    table = apply_overrides({"path": str(path)}, options)
    return build(kind_at(path), table, "")


def _print_report(report: DoctorReport, fits: list[MethodFit]) -> None:
    from fedsift.core.numbers import duration, size

    counts = ", ".join(f"{visible(name)} {count}" for name, count in report.counts.items())
    name = escape(visible(report.name))
    stdout.print(f"[bold]{name}[/]: {report.train} training and {report.test} test samples of shape "
                 f"{'x'.join(map(str, report.shape))}, {report.kind}", highlight=False)  # fmt: skip
    say(f"classes: {counts}")
    if report.sites:
        cells = [[s.name, s.train, s.test, ", ".join(s.absent) or "-"] for s in report.sites]
        print_table("sites", ["site", "train", "test", "classes it lacks"], cells)
    for finding in report.findings:
        colour = COLOURS[finding.severity]
        text, fix = escape(visible(finding.text)), escape(visible(finding.fix))
        stdout.print(f"[{colour}]{finding.severity}[/] {text}. [dim]{fix}.[/]", highlight=False,
                     soft_wrap=True)  # fmt: skip
        for example in finding.examples[:SHOWN] if finding.severity != "note" else ():
            say(f"    {visible(example)}")
        if len(finding.examples) > SHOWN and finding.severity != "note":
            stdout.print(f"    ... and {len(finding.examples) - SHOWN} more (--json lists all)", highlight=False)
    cost = report.estimate
    stdout.print(f"images need {size(cost.image_bytes)} of memory; loading took "
                 f"{duration(cost.first_load_seconds)}; a pass of a small network takes about "
                 f"{duration(cost.epoch_seconds)}", highlight=False)  # fmt: skip
    print_table("methods", ["method", "fits", "why"], [[f.method, f.verdict, f.reason] for f in fits])
