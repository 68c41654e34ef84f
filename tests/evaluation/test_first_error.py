import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_pipeline.errors import UserError
from grpo_pipeline.evaluation.first_error import (
    FIXED,
    Threshold,
    choose_threshold,
    first_error_figures,
    predict_first_error,
)
from grpo_pipeline.evaluation.processbench import processbench_f1, processbench_table, read_processbench

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


def write(path, records):
    path.write_text(json.dumps(records))
    return path


RECORD = {
    "id": "x-0",
    "generator": "g",
    "problem": "q",
    "steps": ["a", "b"],
    "label": 1,
    "final_answer_correct": False,
}


def test_a_list_and_lines_read_the_same(tmp_path):
    lines = tmp_path / "lines.jsonl"
    # U+2028 is a line separator to str.splitlines, but not to JSON.
    odd = RECORD | {"problem": "a\u2028b"}
    lines.write_text("\n".join(json.dumps(record, ensure_ascii=False) for record in (RECORD, odd)) + "\n")
    frame = read_processbench(write(tmp_path / "list.json", [RECORD, odd]))
    assert read_processbench(lines).equals(frame)
    assert frame["steps"].to_list() == [["a", "b"]] * 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"label": 2}, "label is 2, expected -1 or the index of one of 2 steps"),
        ({"label": None}, "label is None"),
        ({"steps": []}, "steps must be"),
        ({"steps": "a"}, "steps must be"),
    ],
)
def test_broken_records_are_named(tmp_path, change, message):
    with pytest.raises(UserError, match=f"record 1: {message}"):
        read_processbench(write(tmp_path / "f.json", [RECORD, RECORD | change]))


def test_broken_files_are_named(tmp_path):
    with pytest.raises(UserError, match="cannot be read"):
        read_processbench(tmp_path / "absent.json")
    (tmp_path / "empty.json").write_text("")
    with pytest.raises(UserError, match="empty"):
        read_processbench(tmp_path / "empty.json")
    (tmp_path / "broken.json").write_text("[{]")
    with pytest.raises(UserError, match="not valid JSON"):
        read_processbench(tmp_path / "broken.json")
    with pytest.raises(UserError, match="record 0: expected an object with id"):
        read_processbench(write(tmp_path / "other.json", [{"a": 1}]))


# Records, erroneous ones, those whose first step is wrong: counted in the files' raw JSON.
COUNTS = {"gsm8k": (400, 207, 37), "math": (1000, 594, 115)}


@pytest.mark.data
@pytest.mark.skipif(not DATA.is_dir(), reason="ProcessBench files are not here")
@pytest.mark.parametrize("subset", ["gsm8k", "math"])
def test_trivial_scorers_have_their_closed_form_on_the_real_files(subset):
    frame = read_processbench(DATA / f"{subset}.json")
    raw = json.loads((DATA / f"{subset}.json").read_text())
    labels = frame["label"].to_list()
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


def test_table_tunes_on_the_named_subset_and_says_so():
    one = ([1, -1], [[0.9, 0.3], [0.35, 0.8]])
    two = ([0, -1], [[0.31], [0.4]])
    table = processbench_table({"gsm8k": one, "math": two}, tune_on="gsm8k")
    assert table["subset"].to_list() == ["gsm8k", "math", "mean"]
    assert table["tuned_here"].to_list() == [True, False, True]
    assert table["threshold"].to_list() == pytest.approx([0.325] * 3)
    assert table["f1"].to_list() == [1.0, 1.0, 1.0]
    fixed = processbench_table({"gsm8k": one, "math": two})
    assert fixed["threshold"].to_list() == [FIXED.value] * 3
    assert fixed["f1"].to_list() == [0.0, 0.0, 0.0]
    assert fixed.schema["n_error"] == pl.Int64
