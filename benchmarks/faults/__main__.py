"""Faults and attacks against a consortium of real processes, one after another; docs/faults.md from what was seen.

    python -m benchmarks.faults [--only NAME ...] [--again] [--list] [--page]

A row that is in results/deployed.csv is not made again unless --again or --only asks for it. Needs Linux; the disks
that are full and read-only need the right to mount a small file system, and are left out without it.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

from benchmarks.faults import before, disks, hostile, intercepted, killed, soak, strangers, together
from benchmarks.faults.page import write_page
from benchmarks.faults.row import PROCESSES, ROWS, Row, keep_row, known
from benchmarks.faults.stand import NotSeen, Stand, standing
from benchmarks.faults.studies import study_of

OnStand = Callable[[Stand], Iterator[Row]]
Alone = Callable[[Path], Iterator[Row]]

DIGITS = ("fednoro", "fedcorr", "rhfl", "feddpcont")
ON_DIGITS: dict[str, OnStand] = {
    **{f"site killed, {name}": partial(killed.site_in_every_stage, method=name) for name in DIGITS},
    **{f"coordinator killed, {name}": partial(killed.coordinator_everywhere, method=name) for name in DIGITS},
    **{f"messages read, {name}": partial(intercepted.every_message, method=name) for name in DIGITS},
    "never silent": together.never_silent,
    "two runs at once": together.two_runs,
    "start killed": together.start_dies,
    "coordinator restored": together.coordinator_restored,
    "slow site": killed.slow_site,
    "flapping site": killed.flapping_site,
    "site back two rounds later": killed.site_back_two_rounds_later,
    "deployed soak": soak.deployed_rounds,
    "only ca.crt": strangers.only_the_certificate,
    "plain text": strangers.plain_text,
    "unlisted key": strangers.unlisted_key,
    "foreign certificate": strangers.foreign_certificate,
    "expired certificate": strangers.expired_certificate,
    "taken name": strangers.taken_name,
    "revoked in a run": strangers.revoked_in_a_run,
    "reinstated in a run": strangers.reinstated_in_a_run,
    "hostile app": strangers.hostile_app,
    "hostile coordinator": strangers.hostile_coordinator,
    "hostile site": hostile.hostile_site,
    "oversize at the gateway": hostile.oversize,
    "corrupt bytes at the gateway": hostile.broken_requests,
    "flood": hostile.flood,
    "disk full at a site": disks.full_at_a_site,
    "disk full at the coordinator": disks.disks_of_the_coordinator,
    "changed study": before.other_study,
    "class order": before.other_classes,
    **{f"superlink killed, {name}": partial(killed.superlink_everywhere, method=name) for name in DIGITS},
}
"""One consortium for all of them; the SuperLink is killed last."""
ON_FINDINGS: dict[str, OnStand] = {
    "site killed, fedmlp": partial(killed.site_in_every_stage, method="fedmlp"),
    "coordinator killed, fedmlp": partial(killed.coordinator_everywhere, method="fedmlp"),
    "messages read, fedmlp": partial(intercepted.every_message, method="fedmlp"),
    "superlink killed, fedmlp": partial(killed.superlink_everywhere, method="fedmlp"),
}
ALONE: dict[str, Alone] = {
    "killed while writing": disks.killed_while_writing,
    "disk changes bytes": disks.changed_bytes,
    "500 rounds": soak.many_rounds,
    "truncated data": before.truncated_data,
    "label out of range": before.label_out_of_range,
    "hostile pictures": before.hostile_pictures,
    "data that unpack": before.arrays_that_unpack,
    "read-only notebook": before.readonly_notebook,
    "long temporary path": before.long_temporary_path,
}


def carried_out(name: str, place: Path, rows: Callable[[], Iterator[Row]]) -> None:
    """Keep each row as it comes, without this machine's paths; what could not be brought about is one that failed."""
    try:
        for found in rows():
            row = replace(found, said=found.said.replace(f"{place}/", ""))
            keep_row(row)
            print(f"{'PASS' if row.passed else 'FAIL'}  {row.name}: {row.outcome}", flush=True)
    except NotSeen as reason:
        print(f"FAIL  {name}: {reason}", flush=True)
        keep_row(Row(name, name, PROCESSES, "", f"could not be brought about: {reason}", False, ""))


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--only", nargs="+", default=[], metavar="NAME", help="These rows, again if they are there.")
    options.add_argument("--again", action="store_true", help="Every row, whether it is there or not.")
    options.add_argument("--list", action="store_true", help="Print the names.")
    options.add_argument("--page", action="store_true", help="Only write docs/faults.md from the results.")
    options.add_argument("--keep", type=Path, help="A new folder for logs and runs, which stays.")
    chosen = options.parse_args()
    everything = [*ALONE, *ON_DIGITS, *ON_FINDINGS]
    if chosen.list:
        print("\n".join(everything))
        return
    done = set() if chosen.again else set(known(ROWS))
    wanted = chosen.only or [name for name in everything if name not in done]
    unknown = [name for name in wanted if name not in everything]
    if unknown:
        raise SystemExit(f"no fault is called '{unknown[0]}'; --list prints the names")
    if not chosen.page:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background ignores it, and so would ours
        place = chosen.keep or Path(tempfile.mkdtemp(prefix="faults-"))
        try:
            for name in (name for name in wanted if name in ALONE):
                carried_out(name, place, partial(ALONE[name], place / name.replace(" ", "-")))
            for base, table in (("rhfl", ON_DIGITS), ("fedmlp", ON_FINDINGS)):
                names = [name for name in wanted if name in table]
                if names:
                    with standing(place / base, study_of(base, place)) as stand:
                        for name in names:
                            carried_out(name, place, partial(table[name], stand))
                            stand.stop_runs()
        finally:
            if chosen.keep is None:
                shutil.rmtree(place, ignore_errors=True)
    write_page()


if __name__ == "__main__":
    main()
