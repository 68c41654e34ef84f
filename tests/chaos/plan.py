"""When and whom to kill: seeded, so that a failure can be had again."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

CHAIN = 5
"""Kills of one run, until it is left in peace and compared."""
IN_CHILD = ("flow", "worker", "stage server", "Prefect server")
IN_FLOW = ("flow", "Prefect server")


@dataclass(frozen=True)
class Stage:
    """A stage of the undisturbed run.

    Attributes:
        place: Its place in the order of work.
        name: Its artifact's name, the same in every run.
        fingerprint: Its artifact's fingerprint.
        seconds: How long it took.
        in_child: Whether it ran in a child process.
    """

    place: int
    name: str
    fingerprint: str
    seconds: float
    in_child: bool


@dataclass(frozen=True)
class Kill:
    """SIGKILL to a target, some seconds after a stage has begun."""

    stage: Stage
    target: str
    delay: float

    def __str__(self) -> str:
        return f"{self.target}, {self.delay:.3f} s after {self.stage.name} began"


def plan_kills(stages: Sequence[Stage], kills: int, seed: int) -> list[list[Kill]]:
    """Chains of kills in the order of work; every stage and every target has its turn before one comes again."""
    rng = random.Random(seed)
    waiting: list[Stage] = []
    turns = {True: 0, False: 0}
    chosen = []
    for _ in range(kills):
        if not waiting:
            waiting = rng.sample(list(stages), len(stages))
        stage = waiting.pop()
        targets = IN_CHILD if stage.in_child else IN_FLOW
        turns[stage.in_child] += 1
        target = targets[turns[stage.in_child] % len(targets)]
        chosen.append(Kill(stage, target, rng.uniform(0, 1.2 * stage.seconds + 0.2)))
    chains = [chosen[start : start + CHAIN] for start in range(0, kills, CHAIN)]
    return [sorted(chain, key=lambda kill: (kill.stage.place, kill.delay)) for chain in chains]
