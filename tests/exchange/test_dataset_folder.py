"""The data set folder: opened by `datasets`, its card true, its upload listed before anything is sent."""

import json

import datasets
import huggingface_hub
import pytest

from grpo_pipeline.errors import UserError
from grpo_pipeline.exchange.commands import export_command
from grpo_pipeline.exchange.dataset_folder import write_dataset_folder
from grpo_pipeline.exchange.importing import import_file
from grpo_pipeline.exchange.push import list_upload, push_folder


@pytest.fixture(scope="module")
def folder(run, tmp_path_factory):
    target = tmp_path_factory.mktemp("sets") / "set"
    write_dataset_folder(run["step_labels"][1], target, license_id="mit")
    return target


def test_datasets_opens_it(folder, run, tmp_path):
    loaded = datasets.load_dataset(str(folder), cache_dir=str(tmp_path))
    assert list(loaded) == ["train"]
    assert loaded["train"].num_rows == 6
    row = next(r for r in loaded["train"] if not r["correct"])
    assert row["labels"] == [True, True, False]
    assert row["soft_labels"] == [0.75, 0.25, 0.0]
    assert row["round"] == 1
    raw = datasets.load_dataset(str(folder), "completions", cache_dir=str(tmp_path))["train"]
    assert raw.num_rows == run["step_labels"][1].read("completions").height


def test_the_card_counts_and_names_what_it_was_made_from(folder):
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert huggingface_hub.DatasetCard(card).data.license == "mit"
    for line in (
        "| problems | 3 |",
        "| solutions | 6 |",
        "| steps | 18 |",
        "| steps labelled good | 15 |",
        "| steps labelled wrong | 3 |",
        "- scripted: 6 solutions",
        "  - sampling: `temperature = 1.0, top_p = 1.0`",
        '  - labelling: `schedule = "brute", completions = 4`',
    ):
        assert line in card.splitlines()


def test_an_imported_file_becomes_a_test_split_whatever_its_columns_are_called(tmp_path):
    row = {"prompt": "q", "completions": ["a", "b"], "labels": [True, False], "source": 5, "soft": "no"}
    (tmp_path / "x.jsonl").write_text(json.dumps(row) + "\n")
    ref = import_file(tmp_path / "x.jsonl", "trl-stepwise", tmp_path / "run", split="eval")
    write_dataset_folder(ref, tmp_path / "set")
    loaded = datasets.load_dataset(str(tmp_path / "set"), cache_dir=str(tmp_path / "cache"))
    assert list(loaded) == ["test"]
    assert (loaded["test"][0]["soft_labels"], loaded["test"][0]["source"]) == ([1.0, 0.0], "trl-stepwise")
    card = (tmp_path / "set" / "README.md").read_text(encoding="utf-8")
    assert "license: unknown" in card
    assert "those of the file that was imported" in card


def test_a_folder_with_something_in_it_is_left_alone(folder, run):
    with pytest.raises(UserError, match="not an empty folder"):
        write_dataset_folder(run["step_labels"][0], folder)


def test_a_file_in_the_folders_place_is_left_alone(run, tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(UserError, match="not an empty folder"):
        write_dataset_folder(run["step_labels"][0], tmp_path / "file")


def test_a_dry_run_sends_nothing(run, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(huggingface_hub, "HfApi", lambda: pytest.fail("the hub was asked"))
    export_command(str(run["step_labels"][0]), tmp_path / "set", push="me/steps", dry_run=True)
    out = capsys.readouterr().out
    for file in ("README.md", "data/train.parquet", "tables/step_labels/part-00000.parquet"):
        assert f"would upload {file} (" in out


def test_push_sends_what_the_dry_run_lists(folder, monkeypatch):
    calls = []

    class Hub:
        def create_repo(self, name, **further):
            calls.append((name, further["repo_type"], further["private"]))

        def upload_folder(self, **further):
            calls.append((further["repo_id"], further["allow_patterns"]))

    monkeypatch.setattr(huggingface_hub, "HfApi", Hub)
    (folder / ".cache").mkdir()
    (folder / ".cache" / "secret").write_text("x")
    assert push_folder(folder, "me/steps") == "https://huggingface.co/datasets/me/steps"
    assert calls[0] == ("me/steps", "dataset", True)
    assert calls[1] == ("me/steps", [file.path for file in list_upload(folder)])
    assert not any(".cache" in path for path in calls[1][1])
