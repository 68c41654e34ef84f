"""The ledger: every completion ever sampled, on disk, found by completer, prefix, sampling and index.

Sampling completions is the dominant cost of a PRM data set, so none is ever sampled twice: a label run asks
the ledger first and samples what is missing. A restart, a larger N, another schedule or rule, or a later
round with the same completer costs only the missing samples.

It is a folder with one SQLite file in write-ahead mode. A finished request is one transaction: it is there
after SIGKILL, and a tail that was torn while being written is left out when the file is next opened. Rows and
index are on disk, so memory does not grow with their number. Several processes of one machine may share the
file, and claims (`claims`) see to it that they never sample the same prefix at once. Write-ahead mode shares
memory between its users, so the folder must be on a local disk: over a network file system two machines would
corrupt it.
"""

import logging
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, Self

import polars as pl
from filelock import FileLock

from grpo_pipeline.engines.protocol import SamplingParams
from grpo_pipeline.errors import UserError
from grpo_pipeline.labelling import claims
from grpo_pipeline.labelling.claims import Claims
from grpo_pipeline.labelling.mounts import network_filesystem
from grpo_pipeline.seeds import derive_id
from grpo_pipeline.tables import empty

_log = logging.getLogger(__name__)

FILE = "completions.sqlite"
WORKERS = "workers"
OPENING = "opening.lock"
_FORMAT = 1
_BUSY_SECONDS = 60.0

_CREATE = """
CREATE TABLE IF NOT EXISTS completions (
    prefix_key TEXT NOT NULL,        -- completer, prefix and sampling parameters
    completion_index INTEGER NOT NULL,
    completion_id TEXT NOT NULL,
    rollout_id TEXT NOT NULL,
    problem_id TEXT NOT NULL,
    step_index INTEGER NOT NULL,
    prefix_hash TEXT NOT NULL,
    completer_id TEXT NOT NULL,
    n_tokens INTEGER NOT NULL,
    text TEXT NOT NULL,
    finish_reason TEXT NOT NULL,
    seed INTEGER NOT NULL,
    answer TEXT,
    verdict TEXT,                    -- null until it was checked
    gold_answer TEXT,                -- what it was checked against
    checker_version TEXT,
    PRIMARY KEY (prefix_key, completion_index)
) WITHOUT ROWID
"""

_COLUMNS = (
    "prefix_key, completion_index, completion_id, rollout_id, problem_id, step_index, prefix_hash, completer_id, "
    "n_tokens, text, finish_reason, seed, answer, verdict, gold_answer, checker_version"
)
_PLACES = ", ".join("?" * (_COLUMNS.count(",") + 1))


@dataclass(frozen=True, slots=True)
class PrefixKey:
    """What decides a draw, but for its index.

    Attributes:
        completer_id: Content id of the completer.
        prefix_hash: Hash of the prefix's token ids.
        sampling_hash: Hash of the sampling parameters.
    """

    completer_id: str
    prefix_hash: str
    sampling_hash: str

    @property
    def text(self) -> str:
        """The key as one string."""
        return f"{self.completer_id}/{self.prefix_hash}/{self.sampling_hash}"

    def completion_id(self, index: int) -> str:
        """Id of the completion with that index."""
        return derive_id(self.completer_id, self.prefix_hash, self.sampling_hash, index)


@dataclass(slots=True)
class Draw:
    """One completion, as the ledger holds it.

    Attributes:
        index: 0-based index among the prefix's completions.
        rollout_id, problem_id, step_index: For what it was first sampled.
        n_tokens: Sampled tokens.
        text: What it adds to the solution's text so far.
        finish_reason: stop or length.
        seed: Its seed.
        answer, verdict: What the checker said; verdict is None until it was asked.
        gold_answer, checker_version: What was checked against, and by which rules.
    """

    index: int
    rollout_id: str
    problem_id: str
    step_index: int
    n_tokens: int
    text: str
    finish_reason: str
    seed: int
    answer: str | None = None
    verdict: str | None = None
    gold_answer: str | None = None
    checker_version: str | None = None


def sampling_hash(sampling: SamplingParams) -> str:
    """Hash of everything in the sampling parameters that decides a draw."""
    temperature, top_p = repr(float(sampling.temperature)), repr(float(sampling.top_p))
    return derive_id(temperature, top_p, sampling.max_tokens, *sampling.stop)


class CompletionLedger(Protocol):
    """What sampling asks of a ledger: `Ledger`, or one that another process keeps (`workers.ray_ledger`)."""

    def find(self, key: PrefixKey, first: int, end: int) -> list[Draw]:
        """See `Ledger.find`."""
        ...

    def new_claimant(self) -> str:
        """See `Ledger.new_claimant`."""
        ...

    def claim(self, keys: Iterable[PrefixKey], claimant: str) -> set[PrefixKey]:
        """See `Ledger.claim`."""
        ...

    def release(self, keys: Iterable[PrefixKey], claimant: str) -> None:
        """See `Ledger.release`."""
        ...

    def add(self, key: PrefixKey, draws: Sequence[Draw], claimant: str | None = None) -> None:
        """See `Ledger.add`."""
        ...

    def set_verdicts(self, checked: Iterable[tuple[PrefixKey, Draw]]) -> None:
        """See `Ledger.set_verdicts`."""
        ...


class Ledger:
    """Completions on disk; safe to use from several threads.

    Args:
        folder: Where it lies, made where it does not exist; None keeps it in memory, for one run.

    Raises:
        UserError: The folder holds something else, or a ledger of another format.
    """

    def __init__(self, folder: Path | None = None) -> None:
        path = None if folder is None else folder / FILE
        if folder is not None:
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise UserError(f"{folder}: cannot hold the ledger ({error.strerror}); name another folder") from None
            if kind := network_filesystem(folder):
                _log.warning("the ledger %s is on %s: use it from one machine at a time, or it may break", folder, kind)
        self._lock = threading.Lock()
        self._connection = sqlite3.connect(
            path or ":memory:", timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False
        )
        # Who else changes a new file to write-ahead mode at the same moment is not waited for by SQLite itself.
        alone = nullcontext() if folder is None else FileLock(folder / OPENING)
        with alone:
            self._set_up(path)
        with self._transaction():
            self._claims = Claims(self._connection, None if folder is None else folder / WORKERS)

    def _set_up(self, path: Path | None) -> None:
        try:
            self._connection.execute("PRAGMA journal_mode = WAL")
            # The system keeps what a killed process has written; only a power cut can lose the last rows.
            self._connection.execute("PRAGMA synchronous = NORMAL")
            self._connection.execute(_CREATE)
            self._connection.execute(claims.CREATE)
            found = self._connection.execute("PRAGMA user_version").fetchone()[0]
            if found == 0:
                self._connection.execute(f"PRAGMA user_version = {_FORMAT}")
        except sqlite3.DatabaseError as error:
            self._connection.close()
            raise UserError(f"{path}: cannot be used as a ledger ({error}); move it away or name another") from None
        if found not in (0, _FORMAT):
            self._connection.close()
            raise UserError(f"{path}: a ledger of format {found}, this version reads {_FORMAT}; use another file")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._claims.close()
            self._connection.close()

    def __len__(self) -> int:
        with self._lock:
            return int(self._connection.execute("SELECT count(*) FROM completions").fetchone()[0])

    def find(self, key: PrefixKey, first: int, end: int) -> list[Draw]:
        """The draws of a prefix with first <= index < end that were sampled, by index; there may be gaps."""
        query = (
            "SELECT completion_index, rollout_id, problem_id, step_index, n_tokens, text, finish_reason, seed, answer,"
            " verdict, gold_answer, checker_version FROM completions"
            " WHERE prefix_key = ? AND completion_index >= ? AND completion_index < ? ORDER BY completion_index"
        )
        with self._lock:
            rows = self._connection.execute(query, (key.text, first, end)).fetchall()
        return [Draw(*row) for row in rows]

    def new_claimant(self) -> str:
        """A name to claim prefixes under; one for each sampler."""
        return self._claims.new_claimant()

    def claim(self, keys: Iterable[PrefixKey], claimant: str) -> set[PrefixKey]:
        """Claim prefixes before sampling them, but for those that another living sampler has claimed.

        Returns:
            Those claimed. What was sampled of them meanwhile is to be found now, and nobody else adds to it.
        """
        by_text = {key.text: key for key in keys}
        with self._transaction():
            claimed = self._claims.claim(by_text, claimant)
        return {key for text, key in by_text.items() if text in claimed}

    def release(self, keys: Iterable[PrefixKey], claimant: str) -> None:
        """Give up claims on prefixes that were not sampled after all."""
        with self._transaction():
            self._claims.release((key.text for key in keys), claimant)

    def add(self, key: PrefixKey, draws: Sequence[Draw], claimant: str | None = None) -> None:
        """Write a finished request's draws, all or none, and give up the claim on their prefix.

        Draws that are there already stay as they are.
        """
        rows = [
            (
                key.text,
                draw.index,
                key.completion_id(draw.index),
                draw.rollout_id,
                draw.problem_id,
                draw.step_index,
                key.prefix_hash,
                key.completer_id,
                draw.n_tokens,
                draw.text,
                draw.finish_reason,
                draw.seed,
                draw.answer,
                draw.verdict,
                draw.gold_answer,
                draw.checker_version,
            )
            for draw in draws
        ]
        with self._transaction():
            self._connection.executemany(f"INSERT OR IGNORE INTO completions ({_COLUMNS}) VALUES ({_PLACES})", rows)
            if claimant is not None:
                self._claims.release((key.text,), claimant)

    def set_verdicts(self, checked: Iterable[tuple[PrefixKey, Draw]]) -> None:
        """Write what the checker said of draws that are in the ledger."""
        rows = [
            (draw.answer, draw.verdict, draw.gold_answer, draw.checker_version, key.text, draw.index)
            for key, draw in checked
        ]
        with self._transaction():
            self._connection.executemany(
                "UPDATE completions SET answer = ?, verdict = ?, gold_answer = ?, checker_version = ?"
                " WHERE prefix_key = ? AND completion_index = ?",
                rows,
            )

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """A write transaction: all or nothing, and no other writer meanwhile."""
        with self._lock:
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield
            except BaseException:
                self._connection.execute("ROLLBACK")
                raise
            self._connection.execute("COMMIT")

    def frames(self, rows: int = 50_000) -> Iterator[pl.DataFrame]:
        """All checked completions as frames of the ``completions`` table, at most ``rows`` at a time."""
        schema = empty("completions").schema
        query = f"SELECT {', '.join(schema)}, prefix_key FROM completions"
        query += " WHERE verdict IS NOT NULL AND (prefix_key, completion_index) > (?, ?)"
        query += " ORDER BY prefix_key, completion_index LIMIT ?"
        last: tuple[str, int] = ("", -1)
        while True:
            with self._lock:
                found = self._connection.execute(query, (*last, rows)).fetchall()
            if not found:
                return
            frame = pl.DataFrame([row[:-1] for row in found], schema=schema, orient="row")
            last = (found[-1][-1], frame["completion_index"][-1])
            yield frame
