"""The one exception that is meant for people."""


class RopewalkError(Exception):
    """A mistake the user can fix: one sentence with the value, the limit and the remedy.

    The command line prints it as one line and exits with 2; anything else is a bug and keeps its traceback.
    """
