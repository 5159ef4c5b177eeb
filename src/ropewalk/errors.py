"""The exceptions that are meant for people."""


class RopewalkError(Exception):
    """A mistake the user can fix: one sentence with the value, the limit and the remedy.

    The command line prints it as one line and exits with `exit_code`; anything else is a bug and keeps its traceback.
    """

    exit_code = 2


class IncompleteError(RopewalkError):
    """All was done that could be, and something is missing, which the same command tries again."""

    exit_code = 3


class OutOfMemoryError(RopewalkError):
    """Memory that is not there, with what would need less of it: a training that is looked at goes on without."""
