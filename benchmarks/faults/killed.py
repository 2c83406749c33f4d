"""Programs killed: sites in every stage of every method, coordinator and SuperLink between and within rounds."""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections.abc import Callable, Iterator

from benchmarks.faults.references import app_of, lost, reference, said_by, sameness
from benchmarks.faults.row import PROCESSES, Row
from benchmarks.faults.stand import COORDINATOR, WORKER, NotSeen, Stand, accuracy_of
from benchmarks.faults.studies import settled, stages_of, study_of

AT_WORK_WITHIN = 12.0


def site_in_every_stage(stand: Stand, method: str) -> Iterator[Row]:
    """Power is lost at a site that computes, once in each stage; it is switched on again at once."""
    usual = reference(stand, method)
    stages = stages_of(settled(study_of(method, stand.trial.out)))
    began = time.monotonic()
    run = stand.start(app_of(stand, method))
    hit = []
    for name, first in stages:
        run.ask(first)
        victim = next(iter(run.waiting().get("waiting", {})), stand.sites[0])
        try:
            stand.work(victim, run, AT_WORK_WITHIN)
            hit.append(name)
        except NotSeen:
            pass  # its part of this stage is over in milliseconds: it is killed all the same
        stand.kill(victim)
        stand.start_site(victim)
    code = run.end()
    refused = {site: why for row in run.folder.rounds() for site, why in row["refused"].items()}
    names = ", ".join(name for name, _ in stages)
    yield Row(
        name=f"site killed, {method}",
        fault=f"{method}: a site loses power in every stage ({names}), and is switched on again",
        how=PROCESSES,
        expected="exit code 0, nobody set aside, equal to the undisturbed run",
        outcome=f"exit code {code}, {len(stages)} kills, {len(hit)} of them while it computed; {sameness(run, usual)}",
        passed=code == 0 and not refused and sameness(run, usual).startswith("model and rounds equal"),
        said=said_by(run.words, "gone for", "waiting for"),
        **lost(run, began, usual),
    )


def site_back_two_rounds_later(stand: Stand) -> Iterator[Row]:
    usual = reference(stand, "fedavg")
    changes = {
        "method": {"name": "fedavg", "rounds": 24},
        "federation": {"quorum": 0.5, "deadline": 300, "grace": 20},
    }
    app = stand.app(study_of("fedavg", stand.trial.out, **changes), "absent")
    undisturbed = stand.start(app)
    undisturbed.end()
    began, victim = time.monotonic(), stand.sites[-1]
    run = stand.start(app)
    run.ask(2)
    stand.work(victim, run)
    stand.kill(victim)
    run.finish(4)
    said = next((row["refused"][victim] for row in run.folder.rounds() if victim in row["refused"]), "")
    without = [row["round"] for row in run.folder.rounds() if victim in row["refused"]]
    stand.start_site(victim)
    code = run.end()
    last = run.folder.rounds()[-1]
    figures = lost(run, began, usual)
    calm, found = accuracy_of(undisturbed.folder), accuracy_of(run.folder)
    figures["accuracy_lost"] = None if calm is None or found is None else round(calm - found, 2)
    figures["seconds_lost"] = round(
        sum(row["seconds"] for row in run.folder.rounds()) - sum(row["seconds"] for row in undisturbed.folder.rounds()),
        1,
    )
    rounds = ", ".join(map(str, without))
    yield Row(
        name="site back two rounds later",
        fault="a site loses power in round 2 of 24 and comes back after two more rounds (grace 20 s)",
        how=PROCESSES,
        expected="the rounds go on without it and name it; it takes part again at the end",
        outcome=f"exit code {code}; rounds {rounds} without it; {last['participants']} sites in the last",
        passed=code == 0 and len(without) >= 2 and last["participants"] == len(stand.sites),
        said=said,
        **figures,
    )


def coordinator_everywhere(stand: Stand, method: str) -> Iterator[Row]:
    """The coordinator's program is killed within the first round of each stage and after the last one before it."""
    yield _everywhere(
        stand,
        method,
        name=f"coordinator killed, {method}",
        who="the coordinator's program is killed",
        kill=lambda: stand.kill_program("superlink", COORDINATOR),
    )


def superlink_everywhere(stand: Stand, method: str) -> Iterator[Row]:
    """The whole SuperLink with its gateway loses power at the same moments; both commands are typed again."""
    yield _everywhere(
        stand,
        method,
        name=f"superlink killed, {method}",
        who="SuperLink, gateway and coordinator lose power",
        kill=lambda: stand.kill("superlink"),
        mend=stand.start_superlink,
    )


def _everywhere(
    stand: Stand,
    method: str,
    name: str,
    who: str,
    kill: Callable[[], None],
    mend: Callable[[], None] = lambda: None,
) -> Row:
    usual = reference(stand, method)
    began = time.monotonic()
    run, kills, words = stand.start(app_of(stand, method)), 0, ""
    firsts = [first for _, first in stages_of(settled(study_of(method, stand.trial.out)))]
    moments = [(firsts[0], "within"), *itertools.product(firsts[1:], ("boundary", "within"))]
    for first, moment in moments:
        run.finish(first - 1)
        if moment == "within":
            run.ask(first)
        kill()
        kills += run.end() != 0  # it may have been over just before
        words = words or said_by(run.words, "ended before", "goes on from")
        mend()
        run = stand.start(app_of(stand, method), run.folder.id)
    code = run.end()
    return Row(
        name=name,
        fault=f"{method}: {who} at every boundary of stages and within each stage",
        how=PROCESSES,
        expected="each `start` says how to go on, the sites need nobody; equal to the undisturbed run",
        outcome=f"exit code {code} after {kills} of {len(moments)} kills; {sameness(run, usual)}",
        passed=code == 0
        and kills == len(moments)
        and bool(words)
        and sameness(run, usual).startswith("model and rounds equal"),
        said=words,
        **lost(run, began, usual),
    )


def slow_site(stand: Stand) -> Iterator[Row]:
    """A site's own process stands still for twenty seconds while it trains."""
    usual = reference(stand, "fedavg")
    began, victim = time.monotonic(), stand.sites[1]
    run = stand.start(app_of(stand, "fedavg"))
    stand.work(victim, run)
    worker = stand.pids_of(victim, WORKER)[0]
    os.kill(worker, signal.SIGSTOP)
    time.sleep(20.0)
    words = said_by(run.words[run.words.rfind("answers to Train") :], "waiting for")
    os.kill(worker, signal.SIGCONT)
    code = run.end()
    yield Row(
        name="slow site",
        fault="a site stands still for 20 s while it trains",
        how=PROCESSES,
        expected="it is waited for, and said so; equal to the undisturbed run",
        outcome=f"exit code {code}; {sameness(run, usual)}",
        passed=code == 0 and victim in words and sameness(run, usual).startswith("model and rounds equal"),
        said=words,
        **lost(run, began, usual),
    )


def flapping_site(stand: Stand) -> Iterator[Row]:
    """A site's own process is killed in every round, and the site itself in every second one."""
    usual = reference(stand, "fedavg")
    began, victim = time.monotonic(), stand.sites[1]
    run = stand.start(app_of(stand, "fedavg"))
    kills = 0
    for number in range(1, 5):
        run.ask(number)
        stand.work(victim, run)
        if run.over:
            break
        if number % 2:
            stand.kill_program(victim, WORKER)
        else:
            stand.kill(victim)
            stand.start_site(victim)
        kills += 1
    code = run.end()
    words = said_by(stand.log(victim), "it is started again")
    yield Row(
        name="flapping site",
        fault="a site's process is killed in rounds 1 and 3, the whole site in rounds 2 and 4",
        how=PROCESSES,
        expected="nobody is set aside; equal to the undisturbed run",
        outcome=f"exit code {code}, {kills} kills; {sameness(run, usual)}",
        passed=code == 0 and kills == 4 and sameness(run, usual).startswith("model and rounds equal"),
        said=words,
        **lost(run, began, usual),
    )
