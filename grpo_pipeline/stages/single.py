"""One stage of the loop by itself: what it needs and is missing is made first, and nothing after it."""

import functools
import inspect
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from grpo_pipeline.config import RunConfig
from grpo_pipeline.errors import UserError
from grpo_pipeline.stages.ahead import check_ahead
from grpo_pipeline.stages.catalog import Stages
from grpo_pipeline.stages.inputs import check_inputs, check_problems
from grpo_pipeline.stages.loop import rl_round
from grpo_pipeline.stages.rollouts import Purpose
from grpo_pipeline.stages.rounds import Round
from grpo_pipeline.stages.run import ModelRef
from grpo_pipeline.store import ArtifactRef

P = ParamSpec("P")
R = TypeVar("R", bound=ArtifactRef | ModelRef)
Made = ArtifactRef | ModelRef

LOOP_STAGES = (
    "make_problems",
    "sample_rollouts",
    "label_steps",
    "build_prm_rows",
    "mix_replay",
    "train_reward_model",
    "train_policy",
    "score_rollouts",
    "evaluate_policy",
    "evaluate_prm",
    "finish_round",
)
"""The stages of a round that make an artifact."""


def run_single(
    config: RunConfig,
    name: str,
    round: int,
    purpose: Purpose = "label",
    report: Callable[[Made], None] = lambda _: None,
) -> list[Made]:
    """Run the loop as far as one stage of one round, and give what that stage made.

    The loop itself says what a stage is made from, so its artifact is the one that `iterate_rl` would make.
    Artifacts that are there are found; a missing one that the stage needs is made.

    Args:
        config: The run; `rounds` does not matter.
        name: One of `LOOP_STAGES`.
        round: Its round; the problems belong to round 0.
        purpose: For `sample_rollouts`: what they are for.
        report: Called with each stage's result as it is there.

    Returns:
        One artifact or model, or two where the round has two of that stage (scores of its own and of the starting
        policy's solutions).

    Raises:
        UserError: That round has no such stage.
    """
    if (reason := _why_lacking(config, name, round)) is not None:
        raise UserError(f"round {round} of this configuration has no stage {name.replace('_', '-')}: {reason}")
    if name == "make_problems":
        check_problems(config)
    else:
        check_inputs(config, "iterate-rl")
    if round > 0:
        check_ahead(config)
    until = _Until(name, round, purpose, report)
    stages = Stages(until)
    try:
        problems = stages.make_problems(config)
        previous: Round | None = None
        for number in range(round + 1):
            previous = rl_round(stages, config, number, problems, previous)
    except _Passed:
        pass
    if not until.made:
        raise RuntimeError(f"round {round} ended without its stage {name}")
    return until.made


def _why_lacking(config: RunConfig, name: str, round: int) -> str | None:
    """Why that round has no such stage, or None; known before anything is made."""
    if name == "train_policy" and round == 0:
        return "a policy is trained from round 1 on"
    if name == "make_problems" and round > 0:
        return "the problems belong to round 0"
    kind = config.reward_model.kind
    if name in ("label_steps", "build_prm_rows", "evaluate_prm") and kind != "prm":
        return f"it is a PRM's, and reward_model.kind = {kind!r}"
    return None


class _Passed(BaseException):
    """The chosen stage is behind us; no error, so that nothing on the way out of the loop takes it for one."""


class _Until:
    """Wraps every stage: lets them pass up to and with the chosen one, and ends the loop before the next."""

    def __init__(self, name: str, round: int, purpose: Purpose, report: Callable[[Made], None]) -> None:
        self.name = name
        self.address = (round, purpose if name == "sample_rollouts" else None)
        self.report = report
        self.made: list[Made] = []

    def __call__(self, stage: Callable[P, R], /) -> Callable[P, R]:
        signature = inspect.signature(stage)

        @functools.wraps(stage)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            chosen = stage.__name__ == self.name and self._address(signature.bind(*args, **kwargs)) == self.address
            if self.made and not chosen:
                raise _Passed
            ref = stage(*args, **kwargs)
            if ref not in args:  # one that was handed on (choose_completer) was reported already
                self.report(ref)
            if chosen:
                self.made.append(ref)
            return ref

        return call

    def _address(self, bound: inspect.BoundArguments) -> tuple[Any, Any]:
        given = bound.arguments
        made = given.get("made")
        return (given.get("round", made.number if isinstance(made, Round) else 0), given.get("purpose"))
