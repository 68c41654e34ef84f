import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_pipeline.evaluation.first_error import (
    Threshold,
    choose_threshold,
    first_error_figures,
    predict_first_error,
    processbench_f1,
)
from grpo_pipeline.exchange.files import read_form
from grpo_pipeline.exchange.processbench import first_wrong_step

DATA = Path(__file__).resolve().parents[3] / "shared" / "data" / "processbench"


def test_prediction_by_hand():
    scores = [[0.9, 0.4, 0.1], [0.5, 0.7], [0.2], []]
    assert predict_first_error(scores, 0.5).tolist() == [1, -1, 0, -1]
    assert predict_first_error(scores, 0.0).tolist() == [-1, -1, -1, -1]


def test_figures_by_hand():
    # Erroneous: 2 of 3 found exactly; correct: 1 of 2. Harmonic mean of 2/3 and 1/2 is 4/7.
    figures = first_error_figures([0, 2, 1, -1, 3], [0, 2, 2, -1, -1])
    assert (figures.error, figures.correct) == (pytest.approx(2 / 3), 0.5)
    assert figures.f1 == pytest.approx(4 / 7)
    assert (figures.n_error, figures.n_correct) == (3, 2)


def test_f1_at_the_edges():
    assert first_error_figures([-1, -1], [0, 1]).f1 is None
    assert first_error_figures([0, 0], [-1, -1]).f1 is None
    assert first_error_figures([1, 0], [0, -1]).f1 == 0.0
    with pytest.raises(ValueError, match="1 predictions for 2 labels"):
        first_error_figures([0], [0, 1])


def test_chosen_threshold_by_hand():
    # Only 0.3 <= t < 0.6 finds step 1 and leaves the correct solution alone.
    scores, labels = [[0.9, 0.3], [0.6, 0.8]], [1, -1]
    chosen = choose_threshold(scores, labels, split="tuning")
    assert chosen == Threshold(pytest.approx(0.45), "tuning")
    assert first_error_figures(predict_first_error(scores, chosen.value), labels).f1 == 1.0


@given(
    st.lists(
        st.tuples(st.lists(st.integers(0, 9).map(lambda i: i / 9), min_size=1, max_size=4), st.integers(-1, 3)),
        min_size=2,
        max_size=12,
    )
)
def test_no_threshold_at_all_does_better(solutions):
    scores = [row for row, _ in solutions]
    labels = [min(label, len(row) - 1) for row, label in solutions]
    if len({label == -1 for label in labels}) == 1:
        with pytest.raises(ValueError, match="needs both"):
            choose_threshold(scores, labels, split="s")
        return
    chosen = processbench_f1(labels, scores, choose_threshold(scores, labels, split="s")).f1
    best = max(processbench_f1(labels, scores, Threshold(t)).f1 for t in np.linspace(-0.05, 1.05, 111))
    assert chosen == pytest.approx(best)


# Records, erroneous ones, those whose first step is wrong: counted in the files' raw JSON.
COUNTS = {"gsm8k": (400, 207, 37), "math": (1000, 594, 115)}


@pytest.mark.data
@pytest.mark.skipif(not DATA.is_dir(), reason="ProcessBench files are not here")
@pytest.mark.parametrize("subset", ["gsm8k", "math"])
def test_trivial_scorers_have_their_closed_form_on_the_real_files(subset):
    records = read_form(DATA / f"{subset}.json", "processbench")
    raw = json.loads((DATA / f"{subset}.json").read_text())
    labels = [first_wrong_step(record.labels) for record in records]
    n_error = sum(record["label"] >= 0 for record in raw)
    at_zero = sum(record["label"] == 0 for record in raw)
    assert (len(labels), n_error, at_zero) == COUNTS[subset]
    lengths = [len(record["steps"]) for record in raw]
    # "No error anywhere": right on every correct solution, on no erroneous one.
    silent = processbench_f1(labels, [np.ones(n) for n in lengths])
    assert (silent.error, silent.correct, silent.f1) == (0.0, 1.0, 0.0)
    # "Step 0 is wrong": right on the erroneous ones that begin wrong, on no correct one.
    first = processbench_f1(labels, [np.zeros(n) for n in lengths])
    assert (first.error, first.correct, first.f1) == (at_zero / n_error, 0.0, 0.0)
    # The oracle.
    truth = [np.where(np.arange(n) == label, 0.1, 0.9) for n, label in zip(lengths, labels, strict=True)]
    assert processbench_f1(labels, truth).f1 == 1.0
    # Right on all correct ones and on those that begin wrong: harmonic mean of 1 and the share.
    half = [row if label <= 0 else np.ones(len(row)) for row, label in zip(truth, labels, strict=True)]
    share = at_zero / n_error
    assert processbench_f1(labels, half).f1 == pytest.approx(2 * share / (1 + share))
