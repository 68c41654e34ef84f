"""Import and export by artifact: records come back, training rows are right, own labels leave in every form."""

import json
from datetime import datetime
from decimal import Decimal

import polars as pl
import pytest

from grpo_pipeline.errors import UserError
from grpo_pipeline.exchange.commands import export_command, import_command
from grpo_pipeline.exchange.exporting import export_artifact
from grpo_pipeline.exchange.files import read_form
from grpo_pipeline.exchange.importing import import_file
from grpo_pipeline.exchange.records import StepRecord, settle_neutral
from grpo_pipeline.exchange.rows import build_text_rows
from grpo_pipeline.store.verify import verify
from tests.models.conftest import make_tokenizer


def write_lines(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


BENCH = [
    {
        "id": f"x-{i}",
        "generator": "m",
        "problem": f"q{i}",
        "steps": ["a", "b"],
        "label": label,
        "final_answer_correct": label < 0,
    }
    for i, label in [(2, -1), (1, 0), (1, 1)]
]
PAIRS = [{"prompt": "q", "chosen": "a", "rejected": "b", "score": 2.5}, {"prompt": [], "chosen": "a", "rejected": "b"}]


@pytest.fixture
def model(tmp_path):
    make_tokenizer().save_pretrained(tmp_path / "model")
    return tmp_path / "model"


@pytest.mark.parametrize(("form", "rows"), [("processbench", BENCH), ("dpo", PAIRS)])
def test_an_imported_file_is_exported_as_it_was(form, rows, tmp_path):
    path = write_lines(tmp_path / "file.jsonl", rows)
    ref = import_file(path, form, tmp_path / "store")
    out = tmp_path / "out.jsonl"
    export_artifact(ref, form, out)
    assert [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()] == rows
    assert verify(tmp_path / "store") == []
    assert import_file(path, form, tmp_path / "store").cached


def test_an_import_makes_training_rows(tmp_path, model):
    ref = import_file(write_lines(tmp_path / "b.jsonl", BENCH), "processbench", tmp_path / "store", model=model)
    rows = ref.read("prm_dataset")
    assert ref.manifest().counts == {"solutions": 3, "steps": 6, "labelled_steps": 5, "rows": 3}
    tokenizer = make_tokenizer()
    found = {}
    for row in rows.iter_rows(named=True):
        text = "".join(tokenizer.convert_ids_to_tokens(row["input_ids"]))
        judged = [text[position] for position in row["step_positions"]]
        found[text] = (judged, row["soft"], row["hard"])
    # The token of a step that is judged is its separator, and the last step's own last one.
    assert found == {
        "q2\na\nb": (["\n", "b"], [1.0, 1.0], [1.0, 1.0]),
        "q1\na": (["a"], [0.0], [0.0]),
        "q1\na\nb": (["\n", "b"], [1.0, 0.0], [1.0, 0.0]),
    }
    assert set(rows["split"]) == {"train"}
    assert set(rows["rollout_id"]) == set(ref.read("solutions")["solution_id"])


@pytest.mark.parametrize(("neutral", "hard"), [("good", 1.0), ("bad", 0.0), ("unlabelled", None)])
def test_neutral_ratings(neutral, hard):
    rated = StepRecord("q", ("a", "b"), (0.5, 1.0), form="prm800k")
    assert settle_neutral(rated, neutral) == (hard, 1.0)
    estimated = StepRecord("q", ("a", "b"), (0.5, 1.0), form="math-aps")
    assert settle_neutral(estimated, neutral) == (0.5, 1.0)


def test_rows_that_cannot_be_trained_on_are_counted():
    records = [
        StepRecord("q", ("a", "b"), (None, None)),
        StepRecord("q", ("a", " \n", "b"), (1.0, None, 0.0)),
        StepRecord("q", ("a" * 50,), (1.0,)),
        StepRecord("q", ("a", "b", "c"), (None, 0.25, None)),
    ]
    frame, dropped = build_text_rows(
        records, list("wxyz"), make_tokenizer(), split="train", neutral="good", max_length=20
    )
    assert dropped == {"unlabelled": 1, "empty_step": 1, "too_long": 1}
    assert frame.select("rollout_id", "soft", "hard").rows() == [("z", [None, 0.25], [None, 1.0])]


def test_pairs_have_no_training_rows(tmp_path, model):
    with pytest.raises(UserError, match="leave --model out"):
        import_file(write_lines(tmp_path / "p.jsonl", PAIRS), "dpo", tmp_path / "store", model=model)


def test_own_labels_leave_in_every_form(run, tmp_path):
    labels = run["step_labels"][0]
    for form, rows in [("math-shepherd", 6), ("trl-stepwise", 6), ("prm800k", 6), ("processbench", 6), ("rlhflow", 6)]:
        assert export_artifact(labels, form, tmp_path / f"{form}.jsonl").rows == rows
        assert len(read_form(tmp_path / f"{form}.jsonl", form)) == rows
    lines = [json.loads(line) for line in (tmp_path / "trl-stepwise.jsonl").read_text(encoding="utf-8").splitlines()]
    # Scripted: a wrong solution has 3, 1, 0 correct completions, so only its last step is wrong.
    assert {json.dumps([line["completions"][2], line["labels"]]) for line in lines if "2 + 1?" in line["prompt"]} == {
        '["The answer is 3", [true, true, true]]',
        '["The answer is 4", [true, true, false]]',
    }


def test_own_training_rows_leave_with_replayed_ones(run, tmp_path):
    mixed = run["prm_dataset"][1]
    assert mixed.read("prm_dataset")["is_replay"].sum() == 2
    assert export_artifact(mixed, "trl-stepwise", tmp_path / "x.jsonl").rows == 8


def test_own_pairs_are_a_right_and_a_wrong_solution(run, tmp_path):
    export_artifact(run["label_rollouts"][0], "dpo", tmp_path / "x.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "x.jsonl").read_text(encoding="utf-8").splitlines()]
    assert len(lines) == 3
    for line in lines:
        gold = 2 + int(line["prompt"].rstrip("?").split()[-1])
        assert line["chosen"].endswith(f"The answer is {gold}")
        assert line["rejected"].endswith(f"The answer is {gold + 1}")


def test_artifacts_without_labels_are_refused(run, tmp_path):
    with pytest.raises(UserError, match="no step labels in this artifact"):
        export_artifact(run["label_rollouts"][0], "trl-stepwise", tmp_path / "x.jsonl")
    with pytest.raises(UserError, match="nothing to write as math-aps"):
        export_artifact(run["step_labels"][0], "math-aps", tmp_path / "x.jsonl")
    with pytest.raises(UserError, match=r"\(left out: not from a math-aps file, .*: 6\)"):
        export_artifact(run["step_labels"][0], "math-aps", tmp_path / "x.jsonl")


def test_commands(run, tmp_path, capsys):
    import_command(write_lines(tmp_path / "b.jsonl", BENCH), "processbench", str(tmp_path / "store"))
    assert "steps with label: 5" in capsys.readouterr().out
    export_command(str(run["step_labels"][0]), tmp_path / "x.parquet", "trl-stepwise")
    assert pl.read_parquet(tmp_path / "x.parquet").columns == ["prompt", "completions", "labels"]
    with pytest.raises(UserError, match="--split test: use one of train, eval"):
        import_command(tmp_path / "b.jsonl", "processbench", str(tmp_path / "store"), split="test")
    with pytest.raises(UserError, match="--form dataset"):
        export_command(str(run["step_labels"][0]), tmp_path / "y.jsonl", "dpo", push="a/b")


def test_columns_that_json_does_not_know_are_kept_as_text(tmp_path):
    path = tmp_path / "b.parquet"
    when = datetime(2026, 1, 2, 3, 4, 5)
    further = {"when": when, "day": when.date(), "blob": b"\x00\xff", "price": Decimal("1.50")}
    pl.DataFrame([{"prompt": "q", "completions": ["a"], "labels": [True], **further}]).write_parquet(path)
    extra = json.loads(import_file(path, "trl-stepwise", tmp_path / "store").read("solutions")["extra"][0])
    assert extra == {"when": "2026-01-02T03:04:05", "day": "2026-01-02", "blob": "AP8=", "price": "1.50"}
