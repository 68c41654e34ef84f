"""Metrics handed on to trackers: real TensorBoard where it is installed, and stand-ins for the others."""

import importlib.machinery
import json
import sys
import types

import polars as pl
import pytest

from grpo_pipeline.config import TrainingConfig
from grpo_pipeline.errors import UserError
from grpo_pipeline.training import trackers
from grpo_pipeline.training.trackers import Trackers

METRICS = pl.DataFrame({"step": [1, 2], "round": [1, 1], "stage": ["s", "s"], "loss": [0.5, 0.25], "kl": [None, 0.1]})


def config(*kinds):
    return TrainingConfig.model_validate({"report_to": kinds, "report_project": "mine"})


def test_tensorboard_reads_back_what_was_logged(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with Trackers(config("tensorboard"), "run-1", tmp_path, {"seed": 3}) as sinks:
        sinks.log(METRICS)
    events = EventAccumulator(str(tmp_path / "run-1"))
    events.Reload()
    assert [(e.step, e.value) for e in events.Scalars("loss")] == [(1, 0.5), (2, 0.25)]
    assert [(e.step, pytest.approx(0.1)) for e in events.Scalars("kl")] == [
        (e.step, e.value) for e in events.Scalars("kl")
    ]
    assert [e.step for e in events.Scalars("kl")] == [2]  # a null is not a 0


@pytest.fixture
def calls(monkeypatch):
    """trackio and wandb as modules that write down what is asked of them."""
    seen = []
    for name in ("trackio", "wandb"):
        module = types.ModuleType(name)
        module.__spec__ = importlib.machinery.ModuleSpec(name, None)

        class Run:
            def __init__(self, owner):
                self.owner = owner

            def log(self, values, step=None, **_):
                seen.append((self.owner, "log", step, values))

            def finish(self):
                seen.append((self.owner, "finish"))

        def init(owner=name, **settings):
            seen.append((owner, "init", settings))
            return Run(owner)

        module.init, module.config = init, {}
        monkeypatch.setitem(sys.modules, name, module)
    return seen


@pytest.mark.parametrize("kind", ["trackio", "wandb"])
def test_every_row_reaches_the_run(tmp_path, calls, kind):
    with Trackers(config(kind), "run-1", tmp_path, {"seed": 3}) as sinks:
        sinks.log(METRICS)
    (_, _, settings), *rest = calls
    assert (settings["project"], settings["name"], settings["config"]) == ("mine", "run-1", {"seed": 3})
    assert not any("key" in name for name in settings)  # secrets come from the environment alone
    assert rest == [
        (kind, "log", 1, {"round": 1, "loss": 0.5}),
        (kind, "log", 2, {"round": 1, "loss": 0.25, "kl": 0.1}),
        (kind, "finish"),
    ]


def test_an_absent_library_names_its_install(tmp_path, monkeypatch):
    monkeypatch.setattr(trackers.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(UserError, match=r"'wandb', which is not installed: pip install 'grpo-pipeline\[wandb\]'"):
        Trackers(config("wandb"), "r", tmp_path, {})


def test_settings_have_no_place_for_secrets():
    fields = json.dumps(TrainingConfig.model_json_schema())
    assert not any(word in fields.lower() for word in ("api_key", "password", "secret", "login"))
