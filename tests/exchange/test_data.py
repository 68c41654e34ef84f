"""The real files: exact counts, and every row written back as it was."""

import json
from collections import Counter
from pathlib import Path

import polars as pl
import pytest

from grpo_pipeline.exchange.exporting import export_artifact
from grpo_pipeline.exchange.files import read_form, write_rows
from grpo_pipeline.exchange.forms import FORMS
from grpo_pipeline.exchange.importing import import_file
from grpo_pipeline.store.verify import verify

DATA = Path(__file__).parents[3] / "shared" / "data"

pytestmark = [pytest.mark.data, pytest.mark.skipif(not DATA.is_dir(), reason="no ../shared/data")]

FILES = {
    "gsm8k": ("processbench", "processbench/gsm8k.json"),
    "math": ("processbench", "processbench/math.json"),
    "prm800k": ("prm800k", "prm800k/openr_samples_prm800k.jsonl"),
    "steps": ("prm800k-steps", "prm800k/phase1_test.stepwise-critic.parquet"),
    "shepherd": ("math-shepherd", "math_shepherd/openr_samples_math-shepherd.jsonl"),
    "aps": ("math-aps", "math_shepherd/openr_samples_math-aps.jsonl"),
    "tree": ("math-aps-tree", "math_shepherd/openr_samples_math-aps-tree.jsonl"),
}


def rows_of(path):
    if path.suffix == ".parquet":
        return pl.read_parquet(path).to_dicts()
    if path.suffix == ".json":
        return json.loads(path.read_text(encoding="utf-8"))
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]


@pytest.mark.parametrize("name", FILES)
def test_every_row_is_written_back(name, tmp_path):
    form, file = FILES[name]
    path = DATA / file
    records = read_form(path, form)
    written = FORMS[form].write(records)
    assert not written.skipped
    assert written.rows == rows_of(path)
    copy = tmp_path / path.name
    write_rows(copy, written.rows)
    assert read_form(copy, form) == records


@pytest.mark.parametrize("name", FILES)
def test_an_import_is_exported_as_it_was(name, tmp_path):
    form, file = FILES[name]
    path = DATA / file
    ref = import_file(path, form, tmp_path / "run")
    assert verify(tmp_path / "run") == []
    copy = tmp_path / path.name
    assert not export_artifact(ref, form, copy).skipped
    assert rows_of(copy) == rows_of(path)


def labels(name):
    form, file = FILES[name]
    return Counter(label for record in read_form(DATA / file, form) for label in record.labels)


def test_counts_of_processbench():
    records = read_form(DATA / FILES["gsm8k"][1], "processbench")
    assert (len(records), sum(len(r.steps) for r in records)) == (400, 2082)
    assert sum(0.0 in r.labels for r in records) == 207
    published = rows_of(DATA / FILES["gsm8k"][1])
    judged = sum(len(row["steps"]) if row["label"] == -1 else row["label"] + 1 for row in published)
    assert judged == 1568
    assert sum(label is not None for r in records for label in r.labels) == judged
    records = read_form(DATA / FILES["math"][1], "processbench")
    assert (len(records), sum(len(r.steps) for r in records)) == (1000, 6505)
    assert sum(0.0 in r.labels for r in records) == 594


def test_counts_of_prm800k_steps():
    form, file = FILES["steps"]
    records = read_form(DATA / file, form)
    assert len(records) == 5449
    assert Counter(r.labels[-1] for r in records) == {1.0: 2245, 0.0: 1970, 0.5: 867, None: 367}
    assert all(label is None for r in records for label in r.labels[:-1])
    assert len({r.question for r in records}) == 101


def test_counts_of_prm800k():
    form, file = FILES["prm800k"]
    records = read_form(DATA / file, form)
    rated = [c["rating"] for row in rows_of(DATA / file) for s in row["label"]["steps"] for c in s["completions"] or ()]
    found = Counter(label for r in records for label in r.labels)
    assert (found[1.0], found[0.5], found[0.0]) == (rated.count(1), rated.count(0), rated.count(-1))
    assert sum("frame" in r.extra for r in records) == 6


def test_counts_of_math_shepherd():
    assert labels("shepherd") == {1.0: 5, 0.0: 20}


@pytest.mark.parametrize("name", ["aps", "tree"])
def test_counts_of_searches(name):
    form, file = FILES[name]

    def nodes(tree):
        return 1 + sum(nodes(child) for child in tree["children"])

    expected = sum(
        len(row["reasoning_steps"]) if name == "aps" else nodes(row["reasoning_steps"]) for row in rows_of(DATA / file)
    )
    records = read_form(DATA / file, form)
    assert len(records) == expected
    assert sum(label is not None for r in records for label in r.labels) == expected - 3
    assert sum(not r.steps for r in records) == 3
