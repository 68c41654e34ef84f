"""`grpo-pipeline check`: files in, files out, and errors that say what to do."""

import json

import polars as pl
import pytest
from rich.console import Console

from grpo_pipeline.answers.command import check_file, show_counts
from grpo_pipeline.errors import UserError

ROWS = [
    {"gold": "5", "pred": "\\boxed{5}", "id": 1},
    {"gold": "5", "pred": "6", "mode": "answer"},
    {"gold": "5", "pred": "nothing"},
]


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_verdicts_are_written_as_jsonl(tmp_path):
    out = tmp_path / "out.jsonl"
    check_file(write(tmp_path / "in.jsonl", ROWS), out)
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    found = [(row["verdict"], row["answer"]) for row in rows]
    assert found == [("correct", "5"), ("wrong", "6"), ("no_answer", None)]
    assert rows[0]["id"] == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.jsonl", "out.jsonl"]


def test_verdicts_are_written_as_parquet(tmp_path):
    out = tmp_path / "out.parquet"
    check_file(write(tmp_path / "in.jsonl", [*ROWS, {"gold": "5", "pred": "\ud800 5"}]), out)
    frame = pl.read_parquet(out)
    assert frame["verdict"].to_list()[:3] == ["correct", "wrong", "no_answer"]
    assert frame.columns == ["gold", "pred", "mode", "answer", "verdict", "reason", "checker_version"]


def test_counts_are_shown(tmp_path):
    console = Console(record=True, width=160)
    show_counts(check_file(write(tmp_path / "in.jsonl", ROWS), None), console)
    text = console.export_text()
    assert "3 answers checked" in text
    assert "not_found" in text


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"gold": "5"}\n', "line 1: the field 'pred' is missing"),
        (
            '{"gold": "5", "pred": "5"}\n{"gold": 5, "pred": "5"}\n',
            "line 2, field 'gold': a string is needed",
        ),
        ('{"gold": "5", "pred": "5", "mode": "box"}\n', "line 1, field 'mode': 'box' is unknown"),
        ("[1]\n", "line 1: expected a JSON object, found list"),
        ("{nonsense\n", "line 1: broken JSON"),
        ("\n\n", "the file is empty"),
    ],
)
def test_mistakes_name_line_field_and_remedy(tmp_path, content, message):
    path = tmp_path / "in.jsonl"
    path.write_text(content)
    with pytest.raises(UserError, match=r"in\.jsonl") as error:
        check_file(path, tmp_path / "out.jsonl")
    assert message in str(error.value)
    assert not (tmp_path / "out.jsonl").exists()


def test_mistakes_about_files(tmp_path):
    with pytest.raises(UserError, match="there is no such file"):
        check_file(tmp_path / "none.jsonl", None)
    with pytest.raises(UserError, match=r"must end in \.jsonl or \.parquet"):
        check_file(write(tmp_path / "in.jsonl", ROWS), tmp_path / "out.csv")
    with pytest.raises(UserError, match="this is a folder"):
        check_file(tmp_path, None)
    (tmp_path / "bytes.jsonl").write_bytes(b"\xff\xfe{}")
    with pytest.raises(UserError, match="not UTF-8"):
        check_file(tmp_path / "bytes.jsonl", None)
