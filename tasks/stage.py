"""What makes a stage a Prefect task: the store decides what is done already, and the UI says so."""

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from prefect import task
from prefect.artifacts import create_markdown_artifact
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State
from prefect.context import TaskRunContext
from prefect.states import Completed

from grpo_pipeline.stages.isolation import run_stage
from grpo_pipeline.stages.run import ModelRef
from grpo_pipeline.store import ArtifactRef

P = ParamSpec("P")
R = TypeVar("R", bound=ArtifactRef | ModelRef)


def stage_task(stage: Callable[P, R]) -> Callable[P, R]:
    """Wrap a stage as a task of the same name and signature.

    Prefect's own result cache is off: it reports a hit when the file behind it is gone, so the store
    decides. A stage that found its artifact ends in the state ``Cached``. The call gives the reference,
    whatever the state's name.
    """

    @functools.wraps(stage)
    def run(*args: P.args, **kwargs: P.kwargs) -> R | State[R]:
        ref: R = run_stage(stage, *args, **kwargs)
        artifact = ref.artifact if isinstance(ref, ModelRef) else ref
        if artifact is None:
            return ref
        if artifact.cached:
            return Completed(name="Cached", message=f"{artifact.path} was there", data=ref)
        _publish(artifact)
        return ref

    summary = (stage.__doc__ or "").strip().splitlines()[0]
    as_task = task(name=stage.__name__, description=summary, cache_policy=NO_CACHE, persist_result=False)
    prefect_task: Any = as_task(run)

    @functools.wraps(stage)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        state = prefect_task(*args, return_state=True, **kwargs)
        result: R = state.result()
        return result

    return call


def _publish(artifact: ArtifactRef) -> None:
    """A short card of the artifact under a stable key, so that versions line up in the UI."""
    if TaskRunContext.get() is None:
        return
    manifest = artifact.manifest()
    rows = "\n".join(f"| {name} | {table.rows:,} |" for name, table in sorted(manifest.tables.items()))
    counts = "\n".join(f"| {name} | {count:,} |" for name, count in sorted(manifest.counts.items()))
    create_markdown_artifact(
        key=f"{artifact.stage}-round-{artifact.round}".replace("_", "-"),
        description=f"{artifact.stage}, round {artifact.round}",
        markdown=(
            f"`{artifact.path}` in {manifest.timings.seconds:.1f} s\n\n| table | rows |\n|---|---|\n{rows}\n\n"
            + (f"| count | |\n|---|---|\n{counts}\n" if counts else "")
        ),
    )
