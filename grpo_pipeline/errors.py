"""Errors that a person can act on."""


class UserError(Exception):
    """A mistake of the person who runs this: shown as one message, without traceback, exit code 2.

    The message says what was wrong, where (file, line, row, field) and what to do about it.
    """
