"""What the crew of workers on Ray does when workers are lost, on a small fake of Ray: no package and no process."""

import logging
import sys
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace

import pytest

from grpo_pipeline.config import parse_config
from grpo_pipeline.workers import on_ray

_Crew, WorkerLostError = on_ray._Crew, on_ray.WorkerLostError


class RayActorError(Exception):
    """A worker is dead, or out of reach."""


class OutOfMemoryError(Exception):
    """The system killed a worker for memory."""


class RayTaskError(Exception):
    """The code of a worker raised."""


@dataclass(eq=False)
class Answer:
    """What a call will give: worked out when it is waited for."""

    actor: "Actor"
    method: str
    arguments: tuple
    error: Exception | None = None
    is_there: bool = False


@dataclass(eq=False)
class Actor:
    """A handle; every attribute is a method with `remote`."""

    ray: "FakeRay"
    name: str

    def __getattr__(self, method):
        return SimpleNamespace(remote=lambda *arguments: Answer(self, method, arguments))


@dataclass
class FakeRay:
    """The part of the module `ray` that a crew uses; answers come in the order in which they were asked for.

    Attributes:
        happens: Called with (ray, worker, method, shard) before each answer to `open`, `answer` and `make` that is
            waited for; may add to `dead`, or raise what the worker ends by.
        dead: Workers that are.
        calls: (worker, method, shard or None) of each that was answered well, in order.
        killed, left: Workers that were killed, and those that the ledger's keeper was told of.
        silent: Waits that pass without an answer.
        begun: Workers whose process runs while `silent`.
    """

    happens: object = lambda *_: None
    dead: set = field(default_factory=set)
    calls: list = field(default_factory=list)
    killed: list = field(default_factory=list)
    left: list = field(default_factory=list)
    silent: int = 0
    begun: int = 0

    def remote(self, _):
        return SimpleNamespace(
            options=lambda **_: SimpleNamespace(remote=lambda name, *_: Actor(self, name)),
        )

    def wait(self, answers, num_returns=1, timeout=None):
        assert len(answers) == len(set(answers)) >= num_returns
        if timeout == 0:
            return answers[: self.begun], answers[self.begun :]
        if self.silent:
            self.silent -= 1
            return [], answers
        self._work_out(answers[0])
        return answers[:1], answers[1:]

    def get(self, answer):
        self._work_out(answer)
        if answer.error is not None:
            raise answer.error

    def kill(self, actor):
        self.killed.append(actor.name)

    def available_resources(self):
        return {"CPU": 1.0, "memory": 5.0}

    def _work_out(self, answer):
        if answer.is_there:
            return
        answer.is_there = True
        name, method = answer.actor.name, answer.method
        if method == "leave":
            # Whoever may still live is ended before its claims are void.
            assert self.killed[-1:] == list(answer.arguments)
            self.left += answer.arguments
            return
        assert name not in self.killed
        shard = answer.arguments[0] if method == "make" else None
        try:
            self.happens(self, name, method, shard)
            if name in self.dead:
                raise RayActorError(f"{name} died")
            self.calls.append((name, method, shard))
        except (RayActorError, OutOfMemoryError, RayTaskError) as error:
            answer.error = error


@pytest.fixture
def fake(monkeypatch):
    package, exceptions = ModuleType("ray"), ModuleType("ray.exceptions")
    for kind in (RayActorError, OutOfMemoryError, RayTaskError):
        setattr(exceptions, kind.__name__, kind)
    package.exceptions, package.get = exceptions, lambda answer: answer.actor.ray.get(answer)
    monkeypatch.setitem(sys.modules, "ray", package)
    monkeypatch.setitem(sys.modules, "ray.exceptions", exceptions)
    return FakeRay()


def crew_of(ray, count):
    workers = parse_config({"workers": {"task_runner": "ray", "count": count}}, "test").workers
    return _Crew(ray, None, None, workers, Actor(ray, "keeper"))


def made(ray, count, shards):
    """The shards that a crew says are done, sorted."""
    return sorted(crew_of(ray, count).run(range(shards)))


def hired(ray):
    return list(dict.fromkeys(name for name, _, _ in ray.calls))


def test_each_worker_opens_once_and_shards_go_round(fake):
    assert list(crew_of(fake, 2).run(range(5))) == [0, 1, 2, 3, 4]
    assert fake.calls == [
        ("worker-0", "open", None),
        ("worker-1", "open", None),
        ("worker-0", "make", 0),
        ("worker-1", "make", 1),
        ("worker-0", "make", 2),
        ("worker-1", "make", 3),
        ("worker-0", "make", 4),
    ]
    assert fake.killed == fake.left == []


def test_no_more_are_hired_than_there_are_shards(fake):
    assert made(fake, 8, 2) == [0, 1]
    assert hired(fake) == ["worker-0", "worker-1"]


@pytest.mark.parametrize("kind", [RayActorError, OutOfMemoryError])
def test_one_lost_at_a_shard_is_ended_and_replaced(fake, kind):
    def happens(ray, name, method, shard):
        if (name, shard) == ("worker-1", 1):
            raise kind("")

    fake.happens = happens
    assert made(fake, 2, 5) == [0, 1, 2, 3, 4]
    assert fake.killed == fake.left == ["worker-1"]
    assert hired(fake) == ["worker-0", "worker-1", "worker-2"]
    assert [shard for _, method, shard in fake.calls if method == "make"].count(1) == 1


@pytest.mark.parametrize("when", ["open", "make"])
def test_all_but_one_of_nine_lost_together_are_replaced(fake, when):
    def happens(ray, name, method, shard):
        if method == when and not ray.dead:
            ray.dead |= {f"worker-{number}" for number in range(8)}

    fake.happens = happens
    assert made(fake, 9, 30) == list(range(30))
    assert sorted(fake.killed) == sorted(fake.left) == sorted(fake.dead)
    assert {"worker-8", *(f"worker-{number}" for number in range(9, 17))} <= set(hired(fake))


def test_all_lost_together_are_replaced(fake):
    def happens(ray, name, method, shard):
        if shard == 4 and not ray.dead:
            ray.dead |= {f"worker-{number}" for number in range(4)}

    fake.happens = happens
    assert made(fake, 4, 12) == list(range(12))
    assert len(fake.killed) == 4


def test_who_has_nothing_to_do_takes_over_and_nobody_is_hired(fake):
    def happens(ray, name, method, shard):
        if (name, shard) == ("worker-2", 2):
            raise RayActorError("gone")

    fake.happens = happens
    assert made(fake, 3, 3) == [0, 1, 2]
    assert fake.calls[-2:] == [("worker-1", "answer", None), ("worker-1", "make", 2)]
    assert hired(fake) == ["worker-0", "worker-1", "worker-2"]


def test_idle_ones_lost_unseen_are_not_laid_to_the_shard_that_they_were_to_take_over(fake):
    def happens(ray, name, method, shard):
        if (name, shard) == ("worker-4", 4):
            ray.dead |= {f"worker-{number}" for number in range(5)}  # the whole machine; 0 to 3 had nothing to do

    fake.happens = happens
    assert made(fake, 5, 5) == [0, 1, 2, 3, 4]
    assert fake.killed == ["worker-4", "worker-3", "worker-2", "worker-1", "worker-0"]
    assert fake.calls[-2:] == [("worker-5", "open", None), ("worker-5", "make", 4)]


def test_a_shard_that_costs_three_workers_ends_the_stage(fake):
    def happens(ray, name, method, shard):
        if shard == 1:
            raise OutOfMemoryError("node is low on memory")

    fake.happens = happens
    with pytest.raises(WorkerLostError, match=r"^3 workers .* at shard 1; .* node is low on memory$"):
        made(fake, 2, 9)
    assert len(fake.killed) == 2  # the third is left to `kill`, as all that live are
    assert {shard for _, method, shard in fake.calls if method == "make"} >= {0, 2}


def test_losses_at_different_shards_do_not_add_up(fake):
    lost = set()

    def happens(ray, name, method, shard):
        if shard is not None and shard not in lost:
            lost.add(shard)
            raise RayActorError("gone")

    fake.happens = happens
    assert made(fake, 2, 7) == list(range(7))
    assert len(fake.killed) == 7


def test_a_place_whose_workers_never_get_ready_ends_the_stage(fake):
    def happens(ray, name, method, shard):
        if method == "open":
            raise RayActorError("no room in memory")

    fake.happens = happens
    with pytest.raises(WorkerLostError, match=r"^3 workers .* before they were ready for a shard"):
        made(fake, 1, 4)
    assert fake.killed == ["worker-0", "worker-1"]


def test_one_that_got_ready_clears_its_place(fake):
    """At one place: two lost while opening, one that opens and dies at a shard, two more lost while opening."""

    def happens(ray, name, method, shard):
        number = int(name.rpartition("-")[2])
        if (method == "open" and number in (0, 1, 3, 4)) or (number, shard) == (2, 0):
            raise RayActorError("gone")

    fake.happens = happens
    assert made(fake, 1, 2) == [0, 1]
    assert fake.calls[0] == ("worker-2", "open", None)
    assert hired(fake) == ["worker-2", "worker-5"]


def test_an_error_of_the_code_is_no_loss(fake):
    def happens(ray, name, method, shard):
        if shard == 2:
            error = RayTaskError("a bug")
            error.cause = ValueError("a bug")
            raise error

    fake.happens = happens
    with pytest.raises(RayTaskError, match="a bug"):
        made(fake, 2, 4)
    assert fake.killed == fake.left == []


@pytest.mark.parametrize(
    ("begun", "level", "message"),
    [
        (0, logging.WARNING, "no worker on Ray has found room yet: each wants 1 CPUs and 0 GPUs of one machine; free"),
        (2, logging.INFO, "2 of 3 workers on Ray have begun, and load what their shards need"),
    ],
)
def test_while_nobody_is_ready_one_is_told_what_is_waited_for(fake, caplog, begun, level, message):
    fake.silent, fake.begun = 1, begun
    with caplog.at_level(logging.INFO, on_ray.__name__):
        assert made(fake, 3, 3) == [0, 1, 2]
    ((_, found, text),) = caplog.record_tuples
    assert found == level
    assert text.startswith(message)
    assert "memory" not in text
