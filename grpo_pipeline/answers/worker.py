"""A worker process: reads one comparison a line from stdin, answers one line on stdout, until EOF.

Started by `pool` as `python -c "...main()"` rather than through multiprocessing, so that it neither forks a
process with threads and GPU memory nor runs the user's __main__ again. Its memory is limited, and it dies
with its parent: by PR_SET_PDEATHSIG on Linux, and everywhere by the end of its stdin.
"""

import contextlib
import json
import os
import resource
import signal
import sys
from dataclasses import asdict

from grpo_pipeline.processes.death import die_with_parent

MEMORY_LIMIT_BYTES = 2 << 30


def main() -> None:
    """Serve comparisons until stdin ends."""
    parent = int(sys.argv[1]) if len(sys.argv) > 1 else os.getppid()
    die_with_parent(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    _limit_memory()
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what a library prints must not mix with the answers

    import sympy  # noqa: F401 - loaded before "ready", so that the first comparison does not pay for it

    from grpo_pipeline.answers.checker import compare_spans
    from grpo_pipeline.answers.verdicts import Check

    _send(out, "ready")
    for line in sys.stdin:
        gold, span = json.loads(line)
        try:
            check = compare_spans(gold, span, heavy=True)
        except MemoryError:
            check = Check("timeout", span, "worker_died")
        except Exception:  # noqa: BLE001 - sympy raises whatever it likes; the pair is reported as undecided
            check = Check("timeout", span, "undecided")
        _send(out, asdict(check))


def _send(out: object, message: object) -> None:
    out.write(json.dumps(message) + "\n")  # type: ignore[attr-defined]
    out.flush()  # type: ignore[attr-defined]


def _limit_memory() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = MEMORY_LIMIT_BYTES if hard == resource.RLIM_INFINITY else min(MEMORY_LIMIT_BYTES, hard)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_AS, (limit, hard))


if __name__ == "__main__":
    main()
