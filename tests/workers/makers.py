"""Makers without a model, for workers of any kind, in any process."""

import os
import signal
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from grpo_pipeline.config import RunConfig, parse_config
from grpo_pipeline.errors import UserError
from grpo_pipeline.labelling.ledger import Draw, PrefixKey
from grpo_pipeline.store import StageSpec, Store
from grpo_pipeline.workers.build import build_in_shards
from tests.store.conftest import make_checked

SPEC = StageSpec(stage="checked", version=1, round=0, config={}, parents=(), seed=7)
KEY = PrefixKey("model", "prefix", "sampling")


@dataclass(frozen=True)
class Maker:
    """Three rows a shard; each opening and each shard leaves a line in `log`, with the process that did it.

    Attributes:
        log: File of those lines.
        refuse: Shard at which a UserError is raised.
        die: Shard at which the process is killed, once.
        seconds: How long a shard takes.
        ledger_folder: See `ShardMaker`; with one, every shard claims the same prefix, and adds a draw of its own.
        device: See `ShardMaker.place`.
        gpus: See `ShardMaker.place`.
        config: See `ShardMaker`.
    """

    log: Path
    refuse: int | None = None
    die: int | None = None
    seconds: float = 0.0
    ledger_folder: Path | None = None
    device: str = "cpu"
    gpus: int = 1
    config: RunConfig = field(default_factory=lambda: parse_config({"model": {"device": "cpu"}}, "test"))

    @property
    def place(self):
        return self.device, self.gpus

    @contextmanager
    def open(self, ledger):
        self._note("open")

        def make(shard):
            if shard == self.refuse:
                raise UserError(f"shard {shard} is refused")
            time.sleep(self.seconds)
            if ledger is not None:
                self._draw(ledger, shard)
            self._note(shard)
            return make_checked(shard)

        yield make
        self._note("close")

    def _draw(self, ledger, shard):
        claimant = ledger.new_claimant()
        while not ledger.claim([KEY], claimant):
            time.sleep(0.05)
        if shard == self.die and not (once := self.log.with_suffix(".died")).exists():
            once.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        draw = Draw(shard, "r", "p", 0, 3, f"text {shard}", "stop", 7)
        ledger.add(KEY, [draw], claimant)
        assert ledger.find(KEY, shard, shard + 1) == [draw]
        draw.verdict, draw.answer = "correct", str(shard)
        ledger.set_verdicts([(KEY, draw)])

    def _note(self, what):
        with self.log.open("a") as file:
            file.write(f"{os.getpid()} {what}\n")

    def lines(self):
        """(process, what), in order."""
        return [tuple(line.split()) for line in self.log.read_text().splitlines()]

    def made(self):
        """Shards that were made, sorted."""
        return sorted(int(what) for _, what in self.lines() if what.isdigit())


def build(root, maker, workers, shards=6):
    return build_in_shards(Store(root), SPEC, [str(index) for index in range(shards)], maker, workers)


def main():
    root, log, seconds, runner = sys.argv[1:]
    workers = parse_config({"workers": {"task_runner": runner, "count": 2}}, "test").workers
    build(root, Maker(Path(log), seconds=float(seconds)), workers)


if __name__ == "__main__":
    main()
