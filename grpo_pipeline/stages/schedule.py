"""One more round of a run, as a schedule makes it: after the newest finished one, and one run at a time.

Everything is decided by the records in the store; Prefect's database is not asked.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime

from filelock import FileLock, Timeout

from grpo_pipeline.config import RunConfig
from grpo_pipeline.errors import UserError
from grpo_pipeline.stages.ahead import check_ahead
from grpo_pipeline.stages.catalog import Stages
from grpo_pipeline.stages.history import newest_round, rounds_up_to
from grpo_pipeline.stages.inputs import check_inputs
from grpo_pipeline.stages.loop import MakeRound
from grpo_pipeline.stages.rounds import Round
from grpo_pipeline.stages.run import Run, run_root
from grpo_pipeline.stages.summary import write_report, write_summary
from grpo_pipeline.store import ArtifactRef
from grpo_pipeline.store.filesystem import explain, make_folder
from grpo_pipeline.store.manifest import LOCKS


@dataclass(frozen=True)
class NextRound:
    """What came of a scheduled round.

    Attributes:
        made: The round; None where this run was not the one to make it.
        message: One sentence for a person.
    """

    made: Round | None
    message: str


def next_round(stages: Stages, config: RunConfig, make_round: MakeRound, due: datetime | None = None) -> NextRound:
    """Make the round after the newest finished one, whatever `rounds` says; round 0 where there is none.

    With the same settings it is the round that `iterate_rl` would make. Where another run is making it, or a round
    was finished after this run was `due`, this one ends at once: what it was started for is being done, or is done.

    Args:
        stages: The stages.
        config: The run; settings may differ from those of earlier rounds, and hold from this round on.
        make_round: Makes the round.
        due: When this run should have started, with its time zone; None for now.

    Raises:
        UserError: Which round is the newest is not clear (`history.newest_round`), or the run's problems,
            starting model or kind of reward model have changed, so that rounds would no longer compare.
    """
    check_inputs(config, "next-round")
    with _alone(config) as alone:
        if not alone:
            return NextRound(None, f"another run is making the next round of {run_root(config)}; this one ends")
        newest = newest_round(config)
        if newest is not None and due is not None and (finished := _finished(newest)) > due:
            return NextRound(
                None,
                f"overtaken: round {newest.number} of {run_root(config)} was finished at {finished:%Y-%m-%d %H:%M:%S} "
                f"UTC, and this run was due at {due:%Y-%m-%d %H:%M:%S %Z}; this one ends",
            )
        check_ahead(config)
        problems = stages.make_problems(config)
        if newest is not None:
            _check_unchanged(stages, config, problems, newest)
        number = newest.number + 1 if newest else 0
        made = make_round(config, number, problems, newest)
        rounds = rounds_up_to(config, made)
        write_summary(config, rounds)
        write_report(config, rounds)
        return NextRound(made, f"round {number} of {run_root(config)} is finished")


def _check_unchanged(stages: Stages, config: RunConfig, problems: ArtifactRef, newest: Round) -> None:
    where = f"{run_root(config)} has {newest.number + 1} finished rounds"
    if problems != newest.problems:
        raise UserError(
            f"{where} on other problems than this configuration's: their figures would not compare; restore "
            "[problems] and seed, or use another name"
        )
    if newest.policy.artifact is None and stages.base_policy(config).model_id != newest.policy.model_id:
        raise UserError(f"{where} from another starting model than {config.model.path}; use another name")
    if (kind := _reward_model_kind(newest)) != config.reward_model.kind:
        raise UserError(
            f"{where} with reward_model.kind = {kind!r}, whose model the next one goes on from; restore it, or use "
            f"another name for {config.reward_model.kind!r}"
        )


def _reward_model_kind(made: Round) -> str:
    if made.labelled.labels is not None:
        return "prm"
    return "pairwise" if "preference_pairs" in made.labelled.dataset.tables else "orm"


@contextmanager
def _alone(config: RunConfig) -> Iterator[bool]:
    """Whether nobody else makes the run's next round; the kernel frees the lock when its holder dies."""
    folder = Run(config).scratch(LOCKS)
    path = folder / "next-round.lock"
    lock = FileLock(path)
    with explain(f"locking {path}"), suppress(Timeout):
        make_folder(folder)
        lock.acquire(timeout=0)
    try:
        yield lock.is_locked
    finally:
        lock.release()


def _finished(made: Round) -> datetime:
    assert made.record is not None
    return datetime.fromisoformat(made.record.manifest().created)
