"""The exceptions that are meant for people."""


class RopewalkError(Exception):
    """A mistake the user can fix: one sentence with the value, the limit and the remedy.

    The command line prints it as one line and exits with 2; anything else is a bug and keeps its traceback.
    """


class OutOfMemoryError(RopewalkError):
    """Memory that is not there, with what would need less of it: a training that is looked at goes on without."""
