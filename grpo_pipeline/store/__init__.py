"""Artifacts on disk: find one by what it was made from, build it shard by shard, trace and check it."""

from grpo_pipeline.store.artifact import ArtifactRef
from grpo_pipeline.store.build import Build
from grpo_pipeline.store.manifest import Manifest, StageSpec
from grpo_pipeline.store.shards import ShardResult
from grpo_pipeline.store.store import Store

__all__ = ["ArtifactRef", "Build", "Manifest", "ShardResult", "StageSpec", "Store"]
