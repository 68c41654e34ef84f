"""The command `judge`: a second opinion on the solutions of an artifact, as an artifact of its own."""

import sys

from grpo_pipeline.config import EngineConfig, ModelConfig, SamplingConfig
from grpo_pipeline.engines.opening import open_engine
from grpo_pipeline.engines.protocol import Engine
from grpo_pipeline.inspect.opening import open_artifact
from grpo_pipeline.labelling.judge import judge_solutions
from grpo_pipeline.models.content import content_id
from grpo_pipeline.models.loading import resolve_model
from grpo_pipeline.store import ArtifactRef, ShardResult, StageSpec, Store
from grpo_pipeline.store.manifest import JUDGE_STAGE
from grpo_pipeline.store.sources import sources_of

_JUDGE_VERSION = 1


def judge_command(
    artifact: str, model: ModelConfig, engine: EngineConfig, sampling: SamplingConfig, votes: int, seed: int
) -> None:
    """Judge an artifact's solutions and print where the opinions are; arguments as in `cli.judge`."""
    ref = open_artifact(artifact)  # before a model is loaded
    folder = resolve_model(model)
    with open_engine(folder, model, engine, model_id=content_id(folder)) as judge:
        new = judge_artifact(ref, judge, sampling, votes, seed)
    counts = new.manifest().counts
    sys.stdout.write(f"{new}\n{counts['solutions_judged']} of {counts['solutions']} solutions judged\n")


def judge_artifact(ref: ArtifactRef, judge: Engine, sampling: SamplingConfig, votes: int, seed: int) -> ArtifactRef:
    """The artifact with a judge's opinions (table ``judgements``), in the store of the judged one."""
    sources = sources_of(ref)
    spec = StageSpec(
        stage=JUDGE_STAGE,
        version=_JUDGE_VERSION,
        round=ref.round,
        config={"judge": judge.model_id, "votes": votes, "sampling": sampling.model_dump(mode="json")},
        parents=(ref,),
        seed=seed,
    )

    def make(_: int) -> ShardResult:
        result = judge_solutions(
            sources.nearest("problems"), sources.nearest("steps"), judge, sampling, votes=votes, seed=seed
        )
        return ShardResult({"judgements": result.judgements}, counts=result.counts, tokens=result.counts["tokens"])

    return Store(ref.root).build(spec, 1, make)
