"""Numbers over heads and checkpoints, with errors."""
