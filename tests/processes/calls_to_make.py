"""Functions that tests call in child processes."""

import logging
import os
import subprocess
import sys
import time
from pathlib import Path

from grpo_pipeline.config import RunConfig
from grpo_pipeline.errors import UserError
from grpo_pipeline.progress import progress
from grpo_pipeline.store import ArtifactRef


def surroundings(config: RunConfig, variable: str) -> dict[str, str]:
    import torch

    return {
        "name": config.name,
        "pid": str(os.getpid()),
        "group": str(os.getpgid(0)),
        "folder": str(Path.cwd()),
        "variable": os.environ.get(variable, ""),
        "cuda": str(torch.cuda.is_initialized()),
        "modules": ",".join(name for name in ("torch", "transformers", "polars", "prefect") if name in sys.modules),
    }


def same(ref: ArtifactRef, pairs: tuple[tuple[ArtifactRef, ArtifactRef], ...]) -> ArtifactRef | None:
    return ref if all(pair == (ref, ref) for pair in pairs) else None


def fail(kind: str) -> None:
    if kind == "user":
        raise UserError("no such thing: do this instead")
    if kind == "bug":
        raise ZeroDivisionError("by nothing")
    if kind == "exit":
        sys.exit(3)
    os.kill(os.getpid(), 9)


def tell(steps: int) -> None:
    logging.getLogger("grpo_pipeline.somewhere").warning("said in %s", "the child")
    with progress("counting", steps, "sheep") as bar:
        for _ in range(steps):
            bar.advance()
            time.sleep(0.6)


def start_family(log: Path, deaf: bool) -> None:
    """Start a grandchild in the group and one in a session of its own, say so, and wait; closes a file at SIGTERM."""
    if deaf:
        import signal

        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sleep = [sys.executable, "-c", "import time; time.sleep(600)"]
    children = [subprocess.Popen(sleep), subprocess.Popen(sleep, start_new_session=True)]
    pids = [os.getpid(), os.getppid(), *(child.pid for child in children)]
    part = log.with_suffix(".part")
    part.write_text(" ".join(map(str, pids)))
    part.rename(log)
    try:
        while True:
            time.sleep(0.05)
    finally:
        log.with_suffix(".closed").write_text("yes")


def say_pid_and_sleep(folder: Path) -> None:
    (folder / str(os.getpid())).touch()
    for _ in range(300):
        logging.getLogger(__name__).warning("at work")  # one who listens is not kept from anything by it
        time.sleep(0.2)


def parent_and_those_of_calls(count: int) -> list[str]:
    """This process's parent, and those of calls that it makes itself, at once."""
    from concurrent.futures import ThreadPoolExecutor

    from grpo_pipeline.processes.calls import run_in_child

    with ThreadPoolExecutor(count) as pool:
        asked = [pool.submit(run_in_child, parent) for _ in range(count)]
        return [str(os.getppid()), *(one.result() for one in asked)]


def parent() -> str:
    return str(os.getppid())


def pass_on(kind: str) -> None:
    from grpo_pipeline.processes.calls import run_in_child

    run_in_child(fail, kind)


def ask_for_a_family(folder: Path, deaf: bool) -> None:
    """Have another call start a family, and say one's own process id."""
    from grpo_pipeline.processes.calls import run_in_child

    (folder / "asking.part").write_text(str(os.getpid()))
    (folder / "asking.part").rename(folder / "asking")
    run_in_child(start_family, folder / "family", deaf)
