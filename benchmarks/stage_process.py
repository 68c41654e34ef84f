"""What a child process costs a stage: start-up of the server, and the time of a call that does next to nothing.

    python benchmarks/stage_process.py [--quick] [--json FILE]

`first` includes the server's imports; `ready` is a call when a worker waits with its imports done, as after any
stage that takes longer than those; `at_once` is a call that follows the one before at once, so it waits for the
worker's imports. `in_process` is the same call without a child.
"""

import argparse
import json
import statistics
import time
from pathlib import Path

from grpo_pipeline.config import RunConfig
from grpo_pipeline.processes.calls import run_in_child
from grpo_pipeline.stages.models import base_policy

PAUSE_S = 2.0


def seconds(call) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def measure(repeats: int) -> dict[str, float]:
    config = RunConfig()

    def child() -> None:
        run_in_child(base_policy, config)

    first = seconds(child)
    ready, at_once = [], []
    for _ in range(repeats):
        time.sleep(PAUSE_S)
        ready.append(seconds(child))
        at_once.append(seconds(child))
    base_policy(config)  # its imports are not what is compared
    here = [seconds(lambda: base_policy(config)) for _ in range(repeats)]
    return {
        "first": first,
        "ready": statistics.median(ready),
        "at_once": statistics.median(at_once),
        "in_process": statistics.median(here),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="3 repeats in place of 20")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args()
    figures = measure(3 if options.quick else 20)
    for name, value in figures.items():
        print(f"{name:12} {value:.3f} s")
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
