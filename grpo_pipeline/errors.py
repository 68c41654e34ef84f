"""Errors that a person can act on."""


class UserError(Exception):
    """A mistake of the person who runs this: shown as one message, without traceback, exit code 2.

    The message says what was wrong, where (file, line, row, field) and what to do about it.
    """


class ChildError(RuntimeError):
    """A call failed in its child process (its traceback is in the message), or the process died."""


class ProcessDiedError(ChildError):
    """A child process died. The message says of what; no code of ours is to blame, so no traceback helps: exit code 1.

    Out of memory is the commonest way.
    """
