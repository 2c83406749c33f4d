"""The forecast of a run's time: its arithmetic by hand, and one whole forecast."""

from __future__ import annotations

import pytest

from fedsift.runtime.loop import EvaluationSchedule
from fedsift.study import planning as timing
from fedsift.study.planning import StageTrial, evaluations
from fedsift.study.study import Study


def test_a_round_grows_with_the_data_and_the_epochs() -> None:
    def seconds(part: float, epochs: int) -> StageTrial:
        # 0.5 s whatever the data, 2 s for looking at all samples, 10 s for training on them once
        return StageTrial({"train": 0.5 + part * (2 + 10 * epochs)}, {"train": 0.1 + part * 3})

    whole = timing._extrapolated(seconds(0.1, 1), seconds(0.3, 1), seconds(0.3, 2), 0.1, 0.3, epochs=5)
    assert whole.rounds["train"] == pytest.approx(0.5 + 2 + 50)
    assert whole.evaluations["train"] == pytest.approx(3.1)


def test_data_that_was_tried_in_full_is_not_stretched() -> None:
    trial = StageTrial({"train": 2.0, "find": 1.0}, {"train": 0.5})
    whole = timing._extrapolated(trial, trial, trial, 1.0, 1.0, epochs=1)
    assert whole == trial


def test_evaluations_of_a_stage() -> None:
    assert [evaluations(EvaluationSchedule(every=3), rounds) for rounds in (0, 1, 3, 4, 9)] == [0, 1, 1, 2, 3]


def test_every_stage_and_its_evaluation_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    study = Study.from_table(
        {
            "partition": {"name": "iid", "sites": 4},
            "model": {"name": "mlp"},
            "train": {"epochs": 3, "batch_size": 8},
            "method": {"name": "fednoro", "rounds": 5, "warm_up": 2},
        }
    )
    tried: list[tuple[int, int]] = []
    try_once = timing._timed_stages

    def count(study: Study, federated: object, epochs: int) -> StageTrial:
        trial = try_once(study, federated, epochs)  # type: ignore[arg-type]
        assert set(trial.rounds) == {"warm up", "find noisy sites", "robust training"}
        assert set(trial.evaluations) == {"warm up", "robust training"}
        tried.append((len(federated.dataset.test), epochs))  # type: ignore[attr-defined]
        return trial

    monkeypatch.setattr(timing, "_timed_stages", count)
    monkeypatch.setattr(timing, "REPEATS", 1)
    timed = timing.time_study(study)
    assert set(timed.stages) == {"warm up", "find noisy sites", "robust training"}
    assert timed.seconds > 0
    assert [epochs for _, epochs in tried] == [1, 1, 1, 2]
    assert tried[0][0] < tried[2][0] < 450  # parts of the test set too
    assert 0 < timed.samples < 4 * 1348
    # sites of nine batches or fewer: whole rounds with all their epochs, nothing is extrapolated
    tried.clear()
    little = Study.from_table({**study.to_table(), "data": {"name": "digits", "train_limit": 120, "test_limit": 40}})
    samples = timing.time_study(little).samples
    assert tried == [(32, 1), (40, 3)]  # three of 3.75 batches first, for what only the first round pays
    assert samples == 120 * 0.8 + 120 * 3
