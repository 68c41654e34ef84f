"""An artifact made by workers."""

from collections.abc import Sequence
from functools import partial

from grpo_pipeline.config import WorkersConfig
from grpo_pipeline.store import ArtifactRef, StageSpec, Store
from grpo_pipeline.workers.maker import ShardMaker
from grpo_pipeline.workers.threads import run_in_threads


def build_in_shards(
    store: Store, spec: StageSpec, plan: Sequence[str], maker: ShardMaker, workers: WorkersConfig
) -> ArtifactRef:
    """Have an artifact's shards made by the configured workers, or take the artifact that is there.

    Rows are the same whoever makes them, and whatever was killed in between.

    Args:
        store: Where it goes.
        spec: What to make.
        plan: A text for each shard that says what is in it (`Store.build_by`).
        maker: How one is made.
        workers: Who makes them.

    Raises:
        UserError: As making a shard raises it; Ray is chosen and not installed, or cannot be reached.
        ChildError: A worker that is a process of this machine died, or failed otherwise.
        WorkerLostError: Workers on Ray died again and again.
    """
    if workers.task_runner == "threads":
        return store.build_by(spec, plan, partial(run_in_threads, maker, workers.count))
    if workers.task_runner == "processes":
        from grpo_pipeline.workers.processes import run_in_processes

        return store.build_by(spec, plan, partial(run_in_processes, maker, workers))
    from grpo_pipeline.workers.on_ray import run_on_ray

    return store.build_by(spec, plan, partial(run_on_ray, maker, workers))
