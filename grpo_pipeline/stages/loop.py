"""Iterative RL with a reward model that is refreshed after each round (METHOD 6, Algorithm 1), of stages.

The composition knows nothing of Prefect: flows hand in stages that are tasks, `grpo-pipeline run` the plain ones.
"""

from typing import Protocol

from rich.console import Console

from grpo_pipeline.config import RunConfig
from grpo_pipeline.labelling.receipt import render_receipt
from grpo_pipeline.stages.ahead import check_ahead
from grpo_pipeline.stages.catalog import Stages
from grpo_pipeline.stages.inputs import check_inputs
from grpo_pipeline.stages.rounds import Labelled, Measured, Round
from grpo_pipeline.stages.run import ModelRef
from grpo_pipeline.stages.summary import write_report, write_summary
from grpo_pipeline.store import ArtifactRef


class MakeRound(Protocol):
    """Makes the round after another: `rl_round`, or the flow around it."""

    def __call__(self, config: RunConfig, number: int, problems: ArtifactRef, previous: Round | None, /) -> Round:
        """The finished round."""
        ...


def iterate_rl(stages: Stages, config: RunConfig, make_round: MakeRound) -> tuple[Round, ...]:
    """Round 0 measures, labels and trains the first PRM; each further one trains the policy and refreshes it."""
    check_inputs(config, "iterate-rl")
    if config.rounds > 0:
        check_ahead(config)
    problems = stages.make_problems(config)
    rounds: tuple[Round, ...] = ()
    for number in range(config.rounds + 1):
        rounds = (*rounds, make_round(config, number, problems, rounds[-1] if rounds else None))
    write_summary(config, rounds)
    write_report(config, rounds)
    return rounds


def rl_round(stages: Stages, config: RunConfig, number: int, problems: ArtifactRef, previous: Round | None) -> Round:
    """One round: improve the policy, label its solutions, refresh the reward model, measure both, record it."""
    if previous is None:
        policy = start = stages.base_policy(config)
        history: tuple[ArtifactRef, ...] = ()
    else:
        start = previous.reward_model
        policy = stages.train_policy(config, number, problems, previous.policy, start)
        history = (*previous.history, previous.labelled.rows)
    labelled = label_round(stages, config, number, problems, policy, history)
    reward_model = stages.train_reward_model(config, number, labelled.dataset, start)
    common = previous.common if previous else None
    measured = measure_round(stages, config, number, problems, policy, labelled, reward_model, common)
    made = Round(
        number=number,
        problems=problems,
        policy=policy,
        labelled=labelled,
        reward_model=reward_model,
        measured=measured,
        history=history,
        common=common or measured.rollouts,
        previous=previous.record.fingerprint if previous and previous.record else None,
    )
    return made.model_copy(update={"record": stages.finish_round(config, made)})


def label_round(
    stages: Stages,
    config: RunConfig,
    number: int,
    problems: ArtifactRef,
    policy: ModelRef,
    history: tuple[ArtifactRef, ...],
) -> Labelled:
    """Sample solutions of a round's policy, and make this round's rows of them.

    A PRM's rows need step labels, which completions are sampled for; what they cost is printed. An ORM's and a
    pairwise model's follow from the solutions' verdicts. `history` holds the earlier rounds' own rows.
    """
    rollouts = stages.sample_rollouts(config, "label", number, problems, policy)
    labels = None
    if config.reward_model.kind == "orm":
        rows = stages.build_orm_rows(config, number, problems, rollouts, policy)
    elif config.reward_model.kind == "pairwise":
        rows = stages.build_pair_rows(config, number, problems, rollouts, policy)
    else:
        completer = stages.choose_completer(config, policy)
        labels = stages.label_steps(config, number, problems, rollouts, completer)
        Console().print(render_receipt(labels.manifest().receipt, number))
        rows = stages.build_prm_rows(config, number, problems, rollouts, labels)
    dataset = stages.mix_replay(config, number, problems, rows, history)
    return Labelled(rollouts=rollouts, labels=labels, rows=rows, dataset=dataset)


def measure_policy(stages: Stages, config: RunConfig, number: int, problems: ArtifactRef, policy: ModelRef) -> Measured:
    """Measure a policy by itself."""
    rollouts = stages.sample_rollouts(config, "evaluate", number, problems, policy)
    greedy = stages.sample_rollouts(config, "greedy", number, problems, policy)
    figures = stages.evaluate_policy(config, number, problems, rollouts, greedy, None)
    return Measured(rollouts=rollouts, greedy=greedy, policy=figures)


def measure_round(
    stages: Stages,
    config: RunConfig,
    number: int,
    problems: ArtifactRef,
    policy: ModelRef,
    labelled: Labelled,
    reward_model: ModelRef,
    common: ArtifactRef | None,
) -> Measured:
    """Measure a round's policy, alone and with its reward model, the reward model, and its step labels.

    `common` holds the starting policy's solutions, on which every later reward model is measured too.
    """
    rollouts = stages.sample_rollouts(config, "evaluate", number, problems, policy)
    greedy = stages.sample_rollouts(config, "greedy", number, problems, policy)
    scores = stages.score_rollouts(config, number, rollouts, reward_model)
    own = start = (rollouts, scores)
    if common is not None:
        start = (common, stages.score_rollouts(config, number, common, reward_model))
    figures = stages.evaluate_policy(config, number, problems, rollouts, greedy, scores)
    if labelled.labels is None:
        quality = stages.evaluate_outcome_model(config, number, start, own)
        return Measured(rollouts=rollouts, greedy=greedy, policy=figures, scores=scores, prm=quality)
    labels = (labelled.rollouts, labelled.labels)
    quality = stages.evaluate_prm(config, number, problems, start, own, labels)
    second_look = stages.score_rollouts(config, number, labelled.rollouts, reward_model)
    return Measured(
        rollouts=rollouts, greedy=greedy, policy=figures, scores=scores, prm=quality, labelled_scores=second_look
    )
