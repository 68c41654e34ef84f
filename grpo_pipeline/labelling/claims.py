"""Who is sampling what at this moment: so that workers that share a ledger never sample one prefix twice.

A worker claims a prefix before it samples, and gives the claim up with the samples or when it fails. Claims
are rows of the ledger's file. A worker that was killed cannot give anything up, so each holds a lock file
which the system unlocks when its process ends, however it ends: claims of a worker whose file can be locked
are void.
"""

import itertools
import secrets
import sqlite3
from collections.abc import Iterable
from pathlib import Path

from filelock import FileLock, Timeout

CREATE = """
CREATE TABLE IF NOT EXISTS claims (
    prefix_key TEXT PRIMARY KEY,
    worker TEXT NOT NULL,            -- name of the worker's lock file
    claimant TEXT NOT NULL           -- which of the worker's samplers
) WITHOUT ROWID
"""


class Claims:
    """Claims on prefixes. Every method but `close` belongs into an open write transaction of the connection.

    Args:
        connection: The ledger's; has the table of `CREATE`.
        folder: Where workers' lock files lie; None where no other process can see the ledger.
    """

    def __init__(self, connection: sqlite3.Connection, folder: Path | None) -> None:
        self._connection = connection
        self._folder = folder
        self._worker = secrets.token_hex(8)
        self._numbers = itertools.count()
        self._lock: FileLock | None = None
        if folder is not None:
            folder.mkdir(exist_ok=True)
            self._void_the_dead(path.stem for path in folder.glob("*.lock"))
            self._lock = self._lock_of(self._worker)
            self._lock.acquire(blocking=False)

    def new_claimant(self) -> str:
        """A name for one sampler of this worker; two of them exclude each other as two workers do."""
        return f"{self._worker}-{next(self._numbers)}"

    def claim(self, keys: Iterable[str], claimant: str) -> set[str]:
        """Claim what no living worker has claimed.

        Returns:
            The keys that are now the claimant's.
        """
        found = self._connection.execute("SELECT DISTINCT worker FROM claims WHERE worker <> ?", (self._worker,))
        self._void_the_dead(worker for (worker,) in found.fetchall())
        self._connection.executemany(
            "INSERT OR IGNORE INTO claims VALUES (?, ?, ?)", ((key, self._worker, claimant) for key in keys)
        )
        mine = self._connection.execute("SELECT prefix_key FROM claims WHERE claimant = ?", (claimant,))
        return {key for (key,) in mine.fetchall()}

    def release(self, keys: Iterable[str], claimant: str) -> None:
        """Give claims up."""
        self._connection.executemany(
            "DELETE FROM claims WHERE prefix_key = ? AND claimant = ?", ((key, claimant) for key in keys)
        )

    def close(self) -> None:
        """Leave; claims that are still held become void."""
        if self._lock is not None:
            Path(self._lock.lock_file).unlink(missing_ok=True)
            self._lock.release()
            self._lock = None

    def _void_the_dead(self, workers: Iterable[str]) -> None:
        for worker in workers:
            if self._folder is None or worker == self._worker:
                continue
            lock = self._lock_of(worker)
            path = Path(lock.lock_file)
            if path.exists():
                try:
                    lock.acquire(blocking=False)
                except Timeout:
                    continue
                path.unlink(missing_ok=True)
                lock.release()
            self._connection.execute("DELETE FROM claims WHERE worker = ?", (worker,))

    def _lock_of(self, worker: str) -> FileLock:
        assert self._folder is not None
        return FileLock(self._folder / f"{worker}.lock", thread_local=False)
