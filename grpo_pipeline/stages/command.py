"""`grpo-pipeline run`: any job or stage without Prefect, on the same store."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from grpo_pipeline.errors import UserError

if TYPE_CHECKING:
    from grpo_pipeline.config import RunConfig
    from grpo_pipeline.stages.rounds import Labelled, Measured
    from grpo_pipeline.stages.run import ModelRef

JOBS = (
    "iterate-rl",
    "next-round",
    "build-prm-dataset",
    "train-prm",
    "train-policy",
    "evaluate",
    "evaluate-prm",
    "compare-methods",
)
STAGES = (
    "make-problems",
    "sample-rollouts",
    "label-steps",
    "build-prm-rows",
    "mix-replay",
    "train-reward-model",
    "train-policy",
    "score-rollouts",
    "evaluate-policy",
    "evaluate-prm",
    "finish-round",
)
"""`stages.single.LOOP_STAGES` as they are typed; a test holds the two together, so that --help stays light."""

PURPOSES = ("label", "evaluate", "greedy")


def run_command(
    what: Annotated[
        str,
        typer.Argument(metavar="JOB|STAGE", help=f"Jobs: {', '.join(JOBS)}. Stages of a round: {', '.join(STAGES)}."),
    ],
    config: Annotated[
        Path | None, typer.Option("--config", help="TOML file; the defaults where it is left out.")
    ] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override, e.g. policy.optimizer.lr=1e-5.")
    ] = None,
    round: Annotated[
        int | None, typer.Option("--round", min=0, help="Stages: of which round of the loop; 0 where left out.")
    ] = None,
    purpose: Annotated[str, typer.Option(help=f"sample-rollouts: {', '.join(PURPOSES)}.")] = "label",
) -> None:
    """Run a job, or one stage of one round with whatever it needs and is missing, without Prefect.

    The functions, the store and so the artifacts are those of the flows: a flow finds what this made, and the other
    way round. A name that is both (train-policy, evaluate-prm) is the stage where --round is given. Any other stage is
    that of round 0 without it, whatever rounds the run has by now: the same command gives the same artifact.
    """
    from grpo_pipeline.config import load_config
    from grpo_pipeline.interrupts import catch_termination, keeps_work_in
    from grpo_pipeline.stages.progress_lines import print_line
    from grpo_pipeline.stages.rollouts import Purpose
    from grpo_pipeline.stages.run import run_root
    from grpo_pipeline.stages.single import run_single

    if what not in (*JOBS, *STAGES):
        raise UserError(f"{what!r} is neither a job ({', '.join(JOBS)}) nor a stage ({', '.join(STAGES)})")
    if purpose not in PURPOSES:
        raise UserError(f"--purpose {purpose}: give one of {', '.join(PURPOSES)}")
    settings = load_config(config, overrides or [])
    keeps_work_in(run_root(settings))
    catch_termination()
    if what in JOBS and round is None:
        _run_job(what, settings)
        return
    if what not in STAGES:
        raise UserError(f"--round belongs to stages, and {what} is a job; leave it out")

    stage = what.replace("-", "_")
    if round is None and stage != "make_problems":  # problems have no round
        typer.echo(f"{what} of round 0; --round N takes that of another", err=True)
    run_single(settings, stage, round or 0, cast(Purpose, purpose), print_line)


def _run_job(name: str, config: "RunConfig") -> None:
    from functools import partial

    from grpo_pipeline.report.figures import print_figures
    from grpo_pipeline.report.terminal import print_run
    from grpo_pipeline.stages import jobs, loop, schedule, variants
    from grpo_pipeline.stages.catalog import Stages
    from grpo_pipeline.stages.comparison_report import print_report, write_report
    from grpo_pipeline.stages.progress_lines import with_lines

    stages = Stages(with_lines)
    if name == "iterate-rl":
        loop.iterate_rl(stages, config, partial(loop.rl_round, stages))
        print_run(config)
    elif name == "next-round":
        typer.echo(schedule.next_round(stages, config, partial(loop.rl_round, stages)).message)
    elif name == "compare-methods":
        comparison = variants.compare_methods(stages, config, partial(variants.compare_seed, stages))
        print_report(config, write_report(config, comparison))
    elif name == "evaluate-prm":
        print_figures(jobs.evaluate_prm(stages, config))
    else:
        others: dict[str, Callable[[Stages, RunConfig], Labelled | Measured | ModelRef]] = {
            "build-prm-dataset": jobs.build_prm_dataset,
            "train-prm": jobs.train_prm,
            "train-policy": jobs.train_policy,
            "evaluate": jobs.evaluate,
        }
        for ref in _artifacts(others[name](stages, config)):
            typer.echo(ref)


def _artifacts(made: "Labelled | Measured | ModelRef") -> list[str]:
    """What a job made, one line each."""
    from grpo_pipeline.stages.run import ModelRef

    if isinstance(made, ModelRef):
        return [str(made.folder)]
    return [str(ref) for _, ref in made if ref is not None]
