"""How many CPU threads a forward pass is worth.

An operation that takes a few microseconds is done before a second thread has woken up. Measured on 2 cores with
threads that sleep while they wait (ratio of the times on one thread and on two; decode and training alike): 0.4 at
0.4M parameters and 64 tokens, 0.7 at 1,024 tokens, 1.3 at 4,096; 0.7 at 2.6M and 256 tokens, 1.2 at 1,024; 0.8 at 6.8M
and 64 tokens, 1.0 to 1.3 at 1,024.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch

SMALL = 1 << 30
"""Parameters x tokens of a forward pass below which one thread is faster than two."""

_ALL: ContextVar[int | None] = ContextVar("_ALL", default=None)


@contextmanager
def fitting_threads(models: Sequence[Any], tokens: int) -> Iterator[None]:
    """Compute on one thread where more would wait for each other, else on as many as torch was given.

    Blocks may be nested, each with its own number of tokens. One thread of a process at a time may be in a block: torch
    keeps a number for all threads, too. On other devices nothing changes.

    Args:
        models: transformers models that run.
        tokens: Tokens that go through them at once.
    """
    if any(model.device.type != "cpu" for model in models):
        yield
        return
    before = torch.get_num_threads()
    outermost = _ALL.get() or before
    parameters = max(sum(weight.numel() for weight in model.parameters()) for model in models)
    token = _ALL.set(outermost)
    torch.set_num_threads(1 if parameters * tokens < SMALL else outermost)
    try:
        yield
    finally:
        torch.set_num_threads(before)
        _ALL.reset(token)
