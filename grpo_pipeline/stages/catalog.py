"""Every stage by name, as one object that the composition (`stages.loop`, `jobs`, `variants`) is written against.

`Stages()` are the plain functions. A wrapper puts something around each of them: `tasks.stages` makes them
Prefect tasks, `stages.single` stops after a chosen one. The composition is the same for all.
"""

from collections.abc import Callable
from typing import ParamSpec, Protocol, TypeVar

from grpo_pipeline.stages import comparison, evaluation, labels, models, prm_files, problems, rollouts, rounds
from grpo_pipeline.stages.run import ModelRef
from grpo_pipeline.store import ArtifactRef

P = ParamSpec("P")
R = TypeVar("R", bound=ArtifactRef | ModelRef)


class Wrapper(Protocol):
    """Puts something around a stage and leaves its name and signature as they are."""

    def __call__(self, stage: Callable[P, R], /) -> Callable[P, R]:
        """The wrapped stage."""
        ...


def plain(stage: Callable[P, R], /) -> Callable[P, R]:
    """The stage as it is."""
    return stage


class Stages:
    """The stages, each wrapped by `wrap`; what each does stands in its own module."""

    def __init__(self, wrap: Wrapper = plain) -> None:
        self.make_problems = wrap(problems.make_problems)
        self.base_policy = wrap(models.base_policy)
        self.choose_completer = wrap(models.choose_completer)
        self.sample_rollouts = wrap(rollouts.sample_rollouts)
        self.label_steps = wrap(labels.label_steps)
        self.build_prm_rows = wrap(labels.build_prm_rows)
        self.build_orm_rows = wrap(labels.build_orm_rows)
        self.build_pair_rows = wrap(labels.build_pair_rows)
        self.mix_replay = wrap(labels.mix_replay)
        self.train_reward_model = wrap(models.train_reward_model)
        self.train_policy = wrap(models.train_policy)
        self.score_rollouts = wrap(evaluation.score_rollouts)
        self.evaluate_policy = wrap(evaluation.evaluate_policy)
        self.evaluate_outcome_model = wrap(evaluation.evaluate_outcome_model)
        self.evaluate_prm = wrap(evaluation.evaluate_prm)
        self.open_dataset = wrap(prm_files.open_dataset)
        self.open_prm = wrap(prm_files.open_prm)
        self.import_labelled = wrap(prm_files.import_labelled)
        self.score_labelled = wrap(prm_files.score_labelled)
        self.evaluate_labelled = wrap(prm_files.evaluate_labelled)
        self.finish_round = wrap(rounds.finish_round)
        self.measure_problems = wrap(comparison.measure_problems)
        self.compare_trials = wrap(comparison.compare_trials)
