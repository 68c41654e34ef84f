"""The tables of an artifact together with those of all that it was made from."""

from dataclasses import dataclass

import polars as pl

from grpo_pipeline.errors import UserError
from grpo_pipeline.schemas import TABLES
from grpo_pipeline.store.artifact import ArtifactRef
from grpo_pipeline.store.store import Store


@dataclass(frozen=True)
class Sources:
    """An artifact and all that it was made from in its store, nearest first.

    Attributes:
        refs: The artifact, its parents, their parents, each once.
    """

    refs: tuple[ArtifactRef, ...]

    def gather(self, table: str) -> pl.DataFrame:
        """The table's rows of the artifact and its ancestors; of rows with one key the nearest.

        Raises:
            UserError: None of them has that table.
        """
        frames = [ref.read(table) for ref in self.refs if table in ref.tables]
        if not frames:
            raise self._lacks(table)
        key = list(TABLES[table].key)
        return pl.concat(frames, how="diagonal").unique(key, keep="first", maintain_order=True)

    def nearest(self, table: str) -> pl.DataFrame:
        """The table's rows of the nearest artifact that has it.

        Raises:
            UserError: None of them has that table.
        """
        for ref in self.refs:
            if table in ref.tables:
                return ref.read(table)
        raise self._lacks(table)

    def has(self, table: str) -> bool:
        """Whether one of them has that table."""
        return any(table in ref.tables for ref in self.refs)

    def _lacks(self, table: str) -> UserError:
        return UserError(f"{self.refs[0]}: table {table} is neither in it nor in what it was made from")


def sources_of(ref: ArtifactRef) -> Sources:
    """An artifact's ancestors in its own store."""
    by_path = {found.path: found for found in Store(ref.root).artifacts()}
    found, waiting = {ref.path: ref}, [ref]
    while waiting:
        parents = waiting.pop(0).manifest().parents
        new = [by_path[p.path] for p in parents if p.store is None and p.path in by_path and p.path not in found]
        found |= {parent.path: parent for parent in new}
        waiting += new
    return Sources(tuple(found.values()))
