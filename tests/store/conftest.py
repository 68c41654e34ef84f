import pytest

from grpo_pipeline.store import ArtifactRef, ShardResult, StageSpec, Store
from grpo_pipeline.tables import from_rows


def checked_rows(shard, n=3):
    """n verdicts of problems whose ids fall in the order of their number, so that sorting shows."""
    return from_rows(
        [
            {
                "rollout_id": f"r{shard:02d}-{j}",
                "problem_id": f"p{shard:02d}-{n - j}",
                "answer": str(j),
                "verdict": "correct" if j % 2 else "wrong",
                "reason": "equal",
                "checker_version": "1",
            }
            for j in range(n)
        ],
        "checked",
    )


def make_checked(shard):
    return ShardResult({"checked": checked_rows(shard)}, {"dropped": shard}, 10, {"usd": 0.5, "shards": [shard]})


def checked_spec(
    round=0,
    parents=(),
    stage="checked",
    **config,
) -> StageSpec:
    return StageSpec(stage=stage, version=1, round=round, config=config, parents=parents, seed=7)


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "run")


@pytest.fixture
def built(store) -> ArtifactRef:
    return store.build(checked_spec(), 3, make_checked)


@pytest.fixture
def helpers():
    class Helpers:
        rows = staticmethod(checked_rows)
        make = staticmethod(make_checked)
        spec = staticmethod(checked_spec)

    return Helpers
