"""Stage 1: problems, read or generated, cleaned, split."""

from grpo_pipeline.config import RunConfig
from grpo_pipeline.problems.loading import load_problems
from grpo_pipeline.stages.run import Run, function_hashes
from grpo_pipeline.store import ArtifactRef, ShardResult

VERSION = 1


def make_problems(config: RunConfig) -> ArtifactRef:
    """Read or generate the run's problems; the `problems` table with both splits.

    A local source, file or folder, enters the fingerprint by the hash of its bytes, so an edited one is a new
    artifact.
    """
    run = Run(config)
    spec = run.spec(
        "problems",
        VERSION,
        0,
        (),
        problems=config.problems,
        files=_file_hashes(config),
        **function_hashes(config, "problems.reader"),
    )

    def make(_: int) -> ShardResult:
        loaded = load_problems(config.problems, run.seed("problems"))
        return ShardResult(frames={"problems": loaded.frame}, counts=loaded.counts)

    return run.store.build(spec, 1, make)


def _file_hashes(config: RunConfig) -> dict[str, str]:
    from hashlib import sha256
    from pathlib import Path

    sources = {config.problems.source, config.problems.eval_source or config.problems.source}
    paths = [Path(source).expanduser() for source in sorted(sources)]
    files = [file for path in paths for file in (sorted(path.rglob("*")) if path.is_dir() else [path])]
    return {str(file): sha256(file.read_bytes()).hexdigest() for file in files if file.is_file()}
