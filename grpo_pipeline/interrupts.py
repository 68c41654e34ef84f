"""Ctrl-C: one line at once, then an orderly end with exit code 130; a second Ctrl-C ends without waiting.

SIGTERM does the same to a command without Prefect.
"""

import os
import signal
import sys
import threading
from types import FrameType

EXIT_CODE = 130
"""128 + SIGINT, as shells have it."""

_said = ["interrupted; nothing that was finished is lost, and the same command can be given again"]


def catch_interrupts() -> None:
    """From now on Ctrl-C says its line and raises KeyboardInterrupt.

    Where SIGINT is ignored already (a command that a script runs in the background), it stays so.
    """
    in_main = threading.current_thread() is threading.main_thread()
    if in_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _on_interrupt)


def catch_termination() -> None:
    """From now on SIGTERM, which `timeout` and schedulers send, ends this process as Ctrl-C does.

    Not for a process in which Prefect runs a flow: it takes the signal itself.
    """
    in_main = threading.current_thread() is threading.main_thread()
    if in_main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _on_interrupt)


def keeps_work_in(folder: str) -> None:
    """Have the line say where finished work lies: of a command that goes on from there."""
    _said[0] = f"interrupted; what is finished is kept in {folder}, and the same command goes on from there"


def is_interrupted() -> bool:
    """Whether Ctrl-C was pressed, and this process is on its way out."""
    return signal.getsignal(signal.SIGINT) is _end_at_once


def _on_interrupt(number: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGINT, _end_at_once)
    if number == signal.SIGTERM:
        signal.signal(signal.SIGTERM, _end_at_once)
    # Unbuffered and from here, so that it stands there whatever the way out does or prints.
    line = ("\n" if sys.stderr.isatty() else "") + _said[0] + "\n"
    os.write(2, line.encode(errors="replace"))
    raise KeyboardInterrupt


def _end_at_once(number: int, frame: FrameType | None) -> None:
    # Children die with this process (`processes`).
    os._exit(EXIT_CODE)
