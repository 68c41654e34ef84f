"""Stage 1: problems, read or generated, cleaned, split."""

from grpo_pipeline.config import RunConfig
from grpo_pipeline.problems.loading import load_problems
from grpo_pipeline.stages.run import Run
from grpo_pipeline.store import ArtifactRef, ShardResult

VERSION = 1


def make_problems(config: RunConfig) -> ArtifactRef:
    """Read or generate the run's problems; the `problems` table with both splits.

    A local source enters the fingerprint by the hash of its bytes, so an edited file is a new artifact.
    """
    run = Run(config)
    spec = run.spec("problems", VERSION, 0, (), problems=config.problems, files=_file_hashes(config))

    def make(_: int) -> ShardResult:
        loaded = load_problems(config.problems, run.seed("problems"))
        return ShardResult(frames={"problems": loaded.frame}, counts=loaded.counts)

    return run.store.build(spec, 1, make)


def _file_hashes(config: RunConfig) -> dict[str, str]:
    from hashlib import sha256
    from pathlib import Path

    sources = {config.problems.source, config.problems.eval_source or config.problems.source}
    files = sorted(path for path in map(Path, sources) if path.is_file())
    return {str(path): sha256(path.read_bytes()).hexdigest() for path in files}
