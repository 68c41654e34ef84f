"""A process that dies with its parent, whatever signal ended that one (Linux)."""

import contextlib
import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int, number: signal.Signals = signal.SIGKILL) -> None:
    """Have the kernel send this process a signal when its parent ends; exits at once if it has ended already.

    The kernel means the parent's *thread* that started this process, so that one has to live as long.
    Elsewhere than on Linux this checks the parent once and does no more.

    Args:
        parent: Process id of the parent, as the parent itself said it.
        number: The signal.
    """
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:
        sys.exit(0)
