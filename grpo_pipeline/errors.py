"""Errors that the library raises on purpose."""


class UserError(Exception):
    """A mistake of the person who runs this: shown as one message, without traceback, exit code 2."""
