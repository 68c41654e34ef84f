"""Which stages run in a child process, where the run's configuration lets them."""

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from grpo_pipeline.config import RunConfig
from grpo_pipeline.processes.calls import run_in_child, start_server

P = ParamSpec("P")
R = TypeVar("R")

MODEL_STAGES = frozenset(
    {
        "base_policy",
        "choose_completer",
        "open_dataset",
        "open_prm",
        "sample_rollouts",
        "label_steps",
        "train_reward_model",
        "train_policy",
        "score_rollouts",
        "score_labelled",
        "evaluate_policy",
        "evaluate_prm",
        "evaluate_labelled",
        "measure_problems",
    }
)
"""Stages that load torch: in a child the flow's process never does, and GPU memory is free when the stage ends."""


def run_stage(stage: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Run a stage: in a child process if it uses a model and `RunConfig.child_processes` is on, else here.

    Raises:
        UserError: As the stage raises it.
        ChildError: It failed in its child process, or that process died.
    """
    if not _config(args, kwargs).child_processes:
        return stage(*args, **kwargs)
    if stage.__name__ not in MODEL_STAGES:
        start_server()  # it gets ready while this stage works
        return stage(*args, **kwargs)
    return run_in_child(stage, *args, **kwargs)


def _config(args: tuple[Any, ...], kwargs: dict[str, Any]) -> RunConfig:
    config: RunConfig = kwargs["config"] if "config" in kwargs else args[0]
    return config
