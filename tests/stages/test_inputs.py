"""What a job reads is looked for before anything heavy is loaded or a server started, and is named by its setting."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from flows import cli
from grpo_pipeline.config import parse_config
from grpo_pipeline.errors import UserError
from grpo_pipeline.stages import command
from grpo_pipeline.stages.inputs import check_inputs, find_dataset
from tests.small_run import make_run

ROOT = Path(__file__).parents[2]
ALL = ("iterate-rl", "next-round", "build-prm-dataset", "train-prm", "train-policy", "evaluate", "compare-methods")
LABELLING = tuple(job for job in ALL if job != "evaluate")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("small") / "run")


@pytest.fixture
def no_server(monkeypatch):
    def never(name):
        raise AssertionError("a server was asked for")

    monkeypatch.setattr("flows.server.require_server", never)


CASES = [
    ("problems.source=nowhere.jsonl", ALL, "problems.source: nowhere.jsonl: no such problem file"),
    ("problems={count=5, eval_source='./nowhere'}", ALL, "problems.eval_source: ./nowhere: does not exist"),
    ("model.path=./nowhere", ALL, "model.path = './nowhere': no such folder"),
    ("model.path=runs/x/y", ALL, "model.path = 'runs/x/y': no such folder"),
    ("model.path=docs", ALL, "docs: no weights"),
    ("labelling.completer={path='/nowhere'}", LABELLING, "labelling.completer.path = '/nowhere': no such folder"),
    ("prm_dataset=nowhere", ("train-prm",), "prm_dataset: nowhere: there is no finished artifact here"),
    ("prm_evaluation={model='nowhere', files=['a:b']}", ("evaluate-prm",), "nowhere: no such model folder"),
    ("prm_evaluation={model='data/tiny'}", ("evaluate-prm",), "nothing to measure on"),
    ("prm_evaluation={model='data/tiny', files=['b']}", ("evaluate-prm",), "'b' is not FORM:PATH"),
    ("prm_evaluation={model='data/tiny', files=['b:c']}", ("evaluate-prm",), "no form 'b'"),
    (
        "prm_evaluation={model='data/tiny', files=['processbench:c.json']}",
        ("evaluate-prm",),
        "prm_evaluation.files: c.json: no such file",
    ),
    (
        "prm_evaluation={model='data/tiny', rollouts=['c']}",
        ("evaluate-prm",),
        "prm_evaluation.rollouts: c: there is no finished artifact here",
    ),
]


@pytest.mark.parametrize(
    ("setting", "job", "message"), [(setting, job, message) for setting, jobs, message in CASES for job in jobs]
)
def test_a_missing_input_is_refused_before_a_server_starts(no_server, monkeypatch, tmp_path, setting, job, message):
    monkeypatch.chdir(ROOT)
    options = ["--set", f"root={tmp_path}", "--set", setting]
    for arguments in ([job, *options], ["run", job, *options]):
        if "compare-methods" in arguments:
            arguments += ["--set", "comparison.variants={a={title='A'}}"]
        result = CliRunner().invoke(cli.app, arguments)
        assert isinstance(result.exception, UserError), result.output
        assert message in str(result.exception)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("stage", [name for name in command.STAGES if name not in command.JOBS])
def test_so_it_is_for_a_single_stage(stage, tmp_path):
    options = ["--set", f"root={tmp_path}", "--set", "problems.source=nowhere.jsonl"]
    result = CliRunner().invoke(cli.app, ["run", stage, "--round=0", *options])
    assert isinstance(result.exception, UserError)
    assert list(tmp_path.iterdir()) == []


def test_what_a_job_does_not_read_is_not_asked_for():
    away = {"problems": {"source": "nowhere.jsonl"}, "labelling": {"completer": {"path": "/nowhere"}}}
    check_inputs(parse_config({"labelling": away["labelling"]}, "test"), "evaluate")
    check_inputs(parse_config({"prm_dataset": "nowhere"}, "test"), "build-prm-dataset")
    measured = {"model": str(ROOT / "data" / "tiny"), "files": [f"processbench:{Path(__file__)}"]}
    check_inputs(parse_config({"prm_evaluation": measured, **away}, "test"), "evaluate-prm")
    check_inputs(parse_config({"model": {"path": "owner/name"}, "problems": {"source": "owner/set:main"}}, "test"), "x")


def test_the_data_set_must_fit_the_kind_of_reward_model(run):
    rows = str(run["prm_dataset"][0])
    config = parse_config({"prm_dataset": rows}, "test")
    check_inputs(config, "train-prm")
    assert find_dataset(config) == run["prm_dataset"][0]
    config = parse_config({"prm_dataset": str(run["step_labels"][0])}, "test")
    with pytest.raises(UserError, match=r"no prm_dataset table, which reward_model\.kind = 'prm' is trained on"):
        check_inputs(config, "train-prm")


@pytest.mark.parametrize(
    "arguments", [["train-prm", "--set=prm_dataset=nowhere"], ["run", "train-prm", "--set=prm_dataset=nowhere"]]
)
def test_nothing_heavy_is_loaded_for_it(arguments):
    program = f"""
import sys
from flows.cli import main
sys.argv = ["grpo-pipeline", *{arguments}]
try:
    main()
except SystemExit as ended:
    heavy = ("torch", "transformers", "prefect", "datasets", "sympy", "matplotlib")
    print(ended.code, [name for name in heavy if name in sys.modules])
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert done.stdout.splitlines() == ["2 []"], done.stderr
    assert done.stderr.startswith("error: prm_dataset: nowhere")
