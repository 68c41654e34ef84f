"""Training of a policy: one loop for six methods (METHOD 5 and 6)."""

from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import polars as pl

from grpo_pipeline.config import RunConfig
from grpo_pipeline.models.content import content_id
from grpo_pipeline.progress import progress
from grpo_pipeline.training.policy_contract import OnStep, PolicyResult
from grpo_pipeline.training.policy_trainer import PolicyTrainer
from grpo_pipeline.training.processes import ALONE, Processes


def train_policy(
    *,
    model_dir: Path,
    out_dir: Path,
    workdir: Path,
    problems: pl.DataFrame,
    config: RunConfig,
    round: int,
    seed: int,
    policy_id: str | None = None,
    reward_model_dir: Path | None = None,
    demonstrations: pl.DataFrame | None = None,
    fixed_rollouts: Mapping[str, pl.DataFrame] | None = None,
    examples: pl.DataFrame | None = None,
    on_step: OnStep | None = None,
    processes: Processes = ALONE,
) -> PolicyResult:
    """Train a policy by the configured method and save it.

    Args:
        model_dir: The policy to start from, which is also the reference.
        out_dir: Where the trained policy is saved.
        workdir: Where checkpoints are; a run that was killed goes on from there to the same weights.
        problems: `problems` table, of training problems only.
        config: The run's configuration.
        round: RL round.
        seed: The run's seed.
        policy_id: Content id of model_dir; None works it out.
        reward_model_dir: The reward model, where rewards ask for one.
        demonstrations: `problems` columns with gold_solution, for SFT and PPO's ptx term.
        fixed_rollouts: Tables rollouts and checked, for RFT and DPO; None samples them with model_dir first.
        examples: `problems` columns of worked examples for few-shot prompts.
        on_step: Receives the step's tables after it: metrics, and for online methods rollouts, checked, steps,
            step_scores and advantages. Step 0 holds the samples that an offline method drew. After a resume the
            steps since the last checkpoint come again, with the same rows but for the times. Called in the main
            process only.
        processes: The processes that train together; all of them call this with the same arguments.

    Raises:
        UserError: For a setting, folder or frame that does not fit.
        ValueError: For a problem of the evaluation split.
    """
    trainer = PolicyTrainer(
        model_dir=model_dir,
        workdir=workdir,
        problems=problems,
        config=config,
        round=round,
        seed=seed,
        policy_id=policy_id or content_id(model_dir),
        reward_model_dir=reward_model_dir,
        demonstrations=demonstrations,
        fixed_rollouts=fixed_rollouts,
        examples=examples,
        on_step=on_step,
        processes=processes,
    )
    with closing(trainer):
        trainer.resume()
        with progress(f"{config.policy.method}, round {round}", trainer.total, "steps") as bar:
            bar.advance(trainer.step)
            while trainer.step < trainer.total and not trainer.stopped_early:
                trainer.run_step()
                bar.advance()
        return trainer.finish(out_dir)
