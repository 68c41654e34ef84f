"""The ledger for workers on Ray: one process keeps it, on the machine that the stage runs on, and workers ask that.

Its file cannot be shared over a network (`labelling.ledger`), and completions that each machine kept for itself would
be sampled again when the next round, or a restart, has another machine do it.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from grpo_pipeline.labelling.ledger import Draw, Ledger, PrefixKey


class LedgerKeeper:
    """The process that has the file open: for each worker by itself, so that the claims of one that died are void."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._open: dict[str, Ledger] = {}
        self._left: set[str] = set()

    def ask(self, worker: str, method: str, *arguments: Any) -> Any:
        """Call a method of the ledger for a worker.

        Raises:
            RuntimeError: The worker has left: it was taken for lost, and its claims are others' by now.
        """
        if worker in self._left:
            raise RuntimeError(f"{worker} was taken for lost, and another makes its shard: it has no ledger any more")
        if worker not in self._open:
            self._open[worker] = Ledger(self._folder)
        return getattr(self._open[worker], method)(*arguments)

    def leave(self, worker: str) -> None:
        """A worker is lost: what it claimed is for others, and it is refused from now on."""
        self._left.add(worker)
        if worker in self._open:
            self._open.pop(worker).close()


class KeptLedger:
    """The ledger as a worker sees it (`labelling.ledger.CompletionLedger`).

    Args:
        keeper: Handle of the `LedgerKeeper`.
        worker: The worker's name.
    """

    def __init__(self, keeper: Any, worker: str) -> None:
        self._keeper = keeper
        self._worker = worker

    def find(self, key: PrefixKey, first: int, end: int) -> list[Draw]:  # noqa: D102
        found: list[Draw] = self._ask("find", key, first, end)
        return found

    def new_claimant(self) -> str:  # noqa: D102
        name: str = self._ask("new_claimant")
        return name

    def claim(self, keys: Iterable[PrefixKey], claimant: str) -> set[PrefixKey]:  # noqa: D102
        claimed: set[PrefixKey] = self._ask("claim", list(keys), claimant)
        return claimed

    def release(self, keys: Iterable[PrefixKey], claimant: str) -> None:  # noqa: D102
        self._ask("release", list(keys), claimant)

    def add(self, key: PrefixKey, draws: Sequence[Draw], claimant: str | None = None) -> None:  # noqa: D102
        self._ask("add", key, list(draws), claimant)

    def set_verdicts(self, checked: Iterable[tuple[PrefixKey, Draw]]) -> None:  # noqa: D102
        self._ask("set_verdicts", list(checked))

    def _ask(self, method: str, *arguments: Any) -> Any:
        from grpo_pipeline.workers.ray_answers import answer_of

        return answer_of(self._keeper.ask.remote(self._worker, method, *arguments))


@contextmanager
def kept_ledger(ray: Any, folder: Path | None) -> Iterator[Any]:
    """A handle of a keeper on this machine while the block runs; None for no folder."""
    if folder is None:
        yield None
        return
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    keeper = ray.remote(LedgerKeeper).options(num_cpus=0, scheduling_strategy=here).remote(folder)
    try:
        yield keeper
    finally:
        ray.kill(keeper)  # each write was a transaction, and a dead process holds no claims
