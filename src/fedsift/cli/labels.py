"""`fedsift labels`: correct labels, take corrections back, check the ledger, forget a sample."""

from __future__ import annotations

import getpass
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from fedsift.cli.output import print_json, stdout
from fedsift.detection.label_thresholds import APPLY

if TYPE_CHECKING:
    from fedsift.label_audit.corrections import AppliedCorrections
    from fedsift.label_audit.site_audit import LabelOrigin, SiteAudit
    from fedsift.label_audit.site_files import SiteFolder

FOLDER = typer.Argument(help="A site's folder of an audit: OUT/sites/SITE.")
JSON = typer.Option(False, "--json", help="Print as JSON.")
WHO = typer.Option("", "--who", help="Who decides (default: the user's name).")
TABLE = typer.Option(None, "--table", help="The original CSV or .npz, where the audit does not know it.")
TO = typer.Option(None, "--to", help="Another place for the corrected table than beside the original.")
LABEL_COLUMN = typer.Option("", "--label-column", help="The original's column with the class.")
ID_COLUMN = typer.Option("", "--id-column", help="The original's column with the sample's name.")


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="Correct labels: apply, undo, verify, forget.", no_args_is_help=True)
    group.command("apply")(apply)
    group.command("undo")(undo)
    group.command("verify")(verify)
    group.command("forget")(forget)
    app.add_typer(group, name="labels")


def apply(
    folder: Path = FOLDER,
    by: str = typer.Option("verdicts", "--by", help="verdicts, probability, or both (people first)."),
    above: float = typer.Option(APPLY, "--above", help="By probability: where it is above this."),
    include_test: bool = typer.Option(
        False, "--include-test", help="Test samples, too; that changes what is measured."
    ),
    who: str = WHO,
    table: Path | None = TABLE,
    label_column: str = LABEL_COLUMN,
    id_column: str = ID_COLUMN,
    to: Path | None = TO,
    json: bool = JSON,
) -> None:
    """Write a corrected table beside the original, which stays as it is."""
    from fedsift.label_audit import corrections

    place, audit, origin = _opened(folder, table, label_column, id_column)
    done = corrections.apply(
        place, audit, by=by, threshold=above, who=_who(who), test=include_test, origin=origin, out=to
    )
    _print_applied(done, json)


def undo(
    folder: Path = FOLDER,
    to_line: int = typer.Option(..., "--to-line", help="Back to what held after this line of the ledger; 0: nothing."),
    who: str = WHO,
    table: Path | None = TABLE,
    label_column: str = LABEL_COLUMN,
    id_column: str = ID_COLUMN,
    to: Path | None = TO,
    json: bool = JSON,
) -> None:
    """Take verdicts and corrections back to any line of the ledger, and write the table anew."""
    from fedsift.label_audit import corrections

    place, audit, origin = _opened(folder, table, label_column, id_column)
    _print_applied(corrections.undo(place, audit, to_line, who=_who(who), origin=origin, out=to), json)


def verify(
    folder: Path = FOLDER,
    head: str | None = typer.Option(None, "--head", help="A hash that was noted earlier and must be in the ledger."),
    json: bool = JSON,
) -> None:
    """Check that no line of the ledger was edited, removed, reordered or cut off."""
    from fedsift.label_audit.ledger import LabelLedger, LedgerError
    from fedsift.label_audit.site_files import SiteFolder

    place = SiteFolder.open(folder)
    ledger = LabelLedger(place.ledger)
    problems = ledger.verify(*([] if head is None else [head]), *place.noted_heads())
    if problems:
        if json:
            print_json({"sound": False, "problems": problems})
            raise typer.Exit(LedgerError.exit_code)
        raise LedgerError(f"{ledger.path}: {problems[0]}")
    lines, last = ledger.head()
    if json:
        print_json({"sound": True, "lines": lines, "head": last})
    else:
        stdout.print(f"{lines} lines, none edited, removed or reordered; head {last}", highlight=False, soft_wrap=True)


def forget(
    folder: Path = FOLDER,
    ids: list[str] = typer.Argument(help="The samples' names."),
    who: str = WHO,
    json: bool = JSON,
) -> None:
    """Remove samples from the site's files, notebook, corrected table and ledger, and say which models saw them."""
    from fedsift.label_audit.corrections import forget_everywhere
    from fedsift.label_audit.writing import open_site

    place, audit = open_site(folder)
    removed = []
    for name in ids:
        found, audit = forget_everywhere(place, audit, name, who=_who(who))
        removed.append(found)
    if json:
        print_json([asdict(found) for found in removed])
        return
    for found in removed:
        lines = [
            f"{found.id}: removed from {len(found.files)} files and {found.ledger_lines} lines of the ledger",
            f"models that saw it: {', '.join(found.models) or 'none is recorded'}",
            *(f"not removed: {what}" for what in found.remains),
            *found.notes,
        ]
        for line in lines:
            stdout.print(line, highlight=False, soft_wrap=True, markup=False)


def _who(name: str) -> str:
    return name or getpass.getuser()


def _opened(
    folder: Path, table: Path | None, label_column: str, id_column: str
) -> tuple[SiteFolder, SiteAudit, LabelOrigin | None]:
    """A site's audit, and what it knows of the original, changed by what the command line says."""
    from fedsift.label_audit.site_audit import LabelOrigin
    from fedsift.label_audit.writing import open_site

    place, audit = open_site(folder)
    origin = audit.origin
    if table is not None:
        if table.suffix.lower() == ".npz":
            origin = replace(origin or LabelOrigin("npz", ""), kind="npz", path=str(table), table="")
        else:
            origin = origin or LabelOrigin("folder", str(table.parent))
            kind = "table" if origin.kind == "table" else "folder"
            origin = replace(origin, kind=kind, table=str(table))
            if audit.multilabel and not origin.separator and not origin.label_columns:
                origin = replace(origin, label_columns=audit.classes)
    if origin is not None and label_column:
        origin = replace(origin, label_column=label_column)
    if origin is not None and id_column:
        origin = replace(origin, id_column=id_column)
    return place, audit, origin


def _print_applied(done: AppliedCorrections, json: bool) -> None:
    if json:
        print_json(asdict(done))
        return
    lines = [f"{done.changed} labels differ from the given ones in {done.table}"]
    if done.test_left_out:
        lines.append(
            f"{done.test_left_out} test samples were left as they are: correcting a test set changes what is measured "
            "(--include-test does it all the same)"
        )
    lines.append(f"ledger: {done.new} new lines, the last is {done.line}")
    for line in lines:
        stdout.print(line, highlight=False, soft_wrap=True, markup=False)
