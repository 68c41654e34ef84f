"""Forms of records, and the files and folders that hold them."""

import json
from pathlib import Path

import polars as pl
import pytest

from grpo_pipeline.config import ProblemsConfig
from grpo_pipeline.errors import UserError
from grpo_pipeline.problems.loading import load_problems
from grpo_pipeline.problems.readers import choose_reader
from grpo_pipeline.problems.records import RawRecord, read_records

DATA = Path(__file__).parents[2].parent / "shared" / "data"
GSM8K = {"question": "Q?", "answer": "Half is 48/2 = <<48/2=24>>24.\nAll: <<1+1=2>>2\n#### 1,072"}
SVAMP = {"ID": "chal-1", "Body": "He has 3 apples", "Question": "How many?", "Answer": 145.0, "Equation": "( 3 )"}
MATH = {"problem": "P", "solution": "S", "answer": " \\frac{1}{2} ", "level": 2, "subject": "Algebra"}


def read(values, name="auto", **columns):
    record = RawRecord("file, line 3", values)
    return choose_reader(name, columns, record)(record)


def test_gsm8k():
    problem = read(GSM8K)
    assert (problem.question, problem.gold_answer, problem.meta) == ("Q?", "1072", None)
    assert problem.gold_solution == "Half is 48/2 = 24.\nAll: 2\n#### 1,072"
    assert read({**GSM8K, "answer": "no marker"}, "gsm8k").gold_answer is None


@pytest.mark.parametrize(
    ("answer", "gold"),
    [
        ("1,234", "1234"),
        ("-12,345,678.50", "-12345678.50"),
        ("12,34", "12,34"),
        ("(1,234)", "(1,234)"),
        ("1,2", "1,2"),
        ("3, 5", "3, 5"),
        ("x,000", "x,000"),
        (" 7 ", "7"),
    ],
)
def test_commas_go_only_where_the_answer_is_one_number(answer, gold):
    assert read({"question": "q", "answer": f"#### {answer}"}).gold_answer == gold
    assert read({"problem": "q", "answer": answer}).gold_answer == gold.strip()


def test_svamp():
    problem = read(SVAMP)
    assert problem.question == "He has 3 apples. How many?"
    assert problem.gold_answer == "145"
    assert json.loads(problem.meta) == {"ID": "chal-1", "Equation": "( 3 )"}
    assert read({**SVAMP, "Body": "He ate. ", "Answer": 2.5}).question == "He ate. How many?"
    assert read({**SVAMP, "Answer": 2.5}).gold_answer == "2.5"
    assert read({**SVAMP, "Answer": 1e20}).gold_answer == "100000000000000000000"


def test_math500():
    problem = read(MATH)
    assert (problem.question, problem.gold_answer, problem.gold_solution) == ("P", "\\frac{1}{2}", "S")
    assert json.loads(problem.meta) == {"subject": "Algebra", "level": 2}


def test_column_mapping():
    problem = read({"prompt": "p", "target": 3, "why": None}, "columns", question="prompt", gold_answer="target")
    assert (problem.question, problem.gold_answer, problem.gold_solution) == ("p", "3", None)
    full = {"question": "prompt", "gold_answer": "target", "gold_solution": "why"}
    assert read({"prompt": "p", "target": "x", "why": "s"}, "columns", **full).gold_solution == "s"
    assert read({"question": "q", "gold_answer": "a"}).gold_answer == "a"


@pytest.mark.parametrize(
    ("values", "name", "columns", "message"),
    [
        ({"question": "q"}, "gsm8k", {}, "file, line 3: no column 'answer'; there are question"),
        ({"question": 5, "answer": "#### 1"}, "auto", {}, "file, line 3: column question: expected text, found int 5"),
        ({"problem": "q", "answer": True}, "auto", {}, "column answer: expected text or a number, found bool"),
        ({"problem": "q", "answer": ["1"]}, "auto", {}, "column answer: expected text or a number, found list"),
        ({"a": 1, "b": 2}, "auto", {}, r"no known form has the columns a, b; set problems.reader"),
        ({"question": "q", "answer": "72"}, "auto", {}, "no known form has the columns answer, question"),
        ({"a": 1}, "columns", {"question": "a"}, "missing: gold_answer"),
        ({"a": 1}, "columns", {"question": "a", "gold_answer": "a", "x": "a"}, "unknown: x"),
        ({"a": "1"}, "columns", {"question": "a", "gold_answer": "b"}, "no column 'b'; there are a"),
    ],
)
def test_wrong_columns_are_named(values, name, columns, message):
    with pytest.raises(UserError, match=message):
        read(values, name, **columns)


@pytest.mark.parametrize("suffix", ["parquet", "jsonl", "json"])
def test_the_same_records_from_every_kind_of_file(tmp_path, suffix):
    records = [GSM8K, {"question": "línea\u2028two", "answer": "#### 3"}]
    path = tmp_path / f"x.{suffix}"
    if suffix == "parquet":
        pl.DataFrame(records).write_parquet(path)
    elif suffix == "json":
        path.write_text(json.dumps(records))
    else:
        path.write_text("\n".join(json.dumps(record, ensure_ascii=False) for record in records) + "\n\n")
    assert [dict(record.values) for record in read_records(str(path))] == records


def test_data_set_folder_through_datasets(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (tmp_path / "set").mkdir()
    pl.DataFrame([GSM8K] * 2).write_parquet(tmp_path / "set" / "train.parquet")
    records = read_records(str(tmp_path / "set"))
    assert [record.values["question"] for record in records] == ["Q?", "Q?"]
    assert records[1].where.endswith("set[train], row 1")
    with pytest.raises(UserError, match=r"split nope: cannot be loaded"):
        read_records(str(tmp_path / "set"), "nope")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.jsonl", '{"a": 1}\n\n{"a": \n', r"x.jsonl, line 3: broken JSON"),
        ("x.jsonl", '{"a": 1}\n[1]\n', "x.jsonl, line 2: expected a JSON object, found list"),
        ("x.jsonl", "", "x.jsonl: the file is empty"),
        ("x.json", " \n", "x.json: the file is empty"),
        ("x.json", "[]", "x.json: there are no records"),
        ("x.json", '{"a": 1}', "x.json: expected a list of objects, found a JSON dict"),
        ("x.json", '[\n{"a": 1},\n{]', "x.json, line 3: broken JSON"),
        ("x.json", "[1]", "x.json, record 0: expected a JSON object, found int"),
        ("x.parquet", "PAR1 not really", "x.parquet: not a Parquet file"),
        ("x.jsonl", b'{"a": "\xff"}', "x.jsonl: not UTF-8 text"),
        ("x.csv", "a,b", "x.csv: is none of these"),
    ],
)
def test_broken_files_are_named_with_their_line(tmp_path, name, content, message):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UserError, match=message):
        read_records(str(path))


@pytest.mark.parametrize("name", ["nowhere.jsonl", "./nowhere", "/nowhere/at/all"])
def test_missing_files(name):
    with pytest.raises(UserError, match=r"no such problem file|does not exist"):
        read_records(name)


@pytest.mark.data
@pytest.mark.skipif(not DATA.is_dir(), reason="no shared data")
@pytest.mark.parametrize(
    ("file", "count", "golds"),
    [
        ("gsm8k/train.jsonl", 7473, ["72", "10", "5"]),
        ("gsm8k/test.jsonl", 1319, ["18", "3", "70000"]),
        ("math/math500_test.jsonl", 500, ["\\left( 3, \\frac{\\pi}{2} \\right)", "p - q", "\\frac{14}{3}"]),
        ("svamp/SVAMP.json", 1000, ["51", "1"]),
    ],
)
def test_real_data_is_recognised_and_read(file, count, golds):
    records = read_records(str(DATA / file))
    reader = choose_reader("auto", {}, records[0])
    problems = [reader(record) for record in records]
    assert len(problems) == count
    assert [problem.gold_answer for problem in problems[: len(golds)]] == golds
    assert all(problem.gold_answer and problem.question for problem in problems)
    assert not any("<<" in (problem.gold_solution or "") for problem in problems if "gsm8k" in file)


def test_a_users_reader(tmp_path):
    records = [{"body": "1+1", "key": "2"}, {"body": "old", "key": None}, {"body": "2+2", "key": 4}]
    (tmp_path / "mine.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    config = ProblemsConfig(source=str(tmp_path / "mine.jsonl"), reader=f"{__name__}:mine", eval_count=1)
    loaded = load_problems(config, seed=0, usable=lambda gold: None)
    assert sorted(loaded.frame.select("question", "gold_answer", "gold_solution").iter_rows()) == [
        ("1+1", "2", None),
        ("2+2", "4", None),
    ]
    assert (loaded.counts["read"], loaded.counts["dropped_by_reader"]) == (3, 1)


def mine(record):
    """Leaves out what has no key."""
    return None if record["key"] is None else {"question": record["body"], "gold_answer": record["key"]}


def lacking(record):
    return {"question": "q"}


def unknown(record):
    return {"question": "q", "gold_answer": "1", "level": 3}


def wordy(record):
    return "q"


def numeric(record):
    return {"question": 7, "gold_answer": "1"}


def raising(record):
    return {"question": record["x"], "gold_answer": "1"}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("lacking", "file, line 3: .*missing: gold_answer"),
        ("unknown", "unknown: level"),
        ("wordy", "returned str; expected a dictionary"),
        ("numeric", "column question: expected text, found int"),
        ("raising", "file, line 3: problems.reader: .*raising' failed: KeyError: 'x' .*, in raising"),
        ("nowhere", "has no function 'nowhere'"),
    ],
)
def test_what_a_users_reader_may_not_do(name, message):
    with pytest.raises(UserError, match=message):
        read({"a": 1}, f"{__name__}:{name}")


def test_a_reader_that_does_not_exist_is_refused_before_anything_starts():
    with pytest.raises(ValueError, match="'gsm9k' is none of auto, gsm8k"):
        ProblemsConfig(source="x.jsonl", reader="gsm9k")
