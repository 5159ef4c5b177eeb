"""What the process that workers are forked from imports: all that they need, and a short end."""

import atexit
import gc

import ropewalk.engines.worker  # noqa: F401

# It has the command's output open, so that whoever reads that to its end waits for this process as well. A search of
# all that torch and transformers made for circles takes a second, and memory goes back to the system without it.
atexit.register(gc.freeze)
