"""Run in a process of its own: a capture whose batch does not fit into what the system lets the process have."""

import logging
import resource
import sys
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent.parent))

from helpers.collecting import collected
from helpers.tiny import tiny_smollm3
from ropewalk.statistics.moments import MomentSums
from ropewalk.statistics.profile import Profile

DOCUMENTS, CONTEXT, ROOM = 16, 128, 80 << 20


def main() -> None:
    """Capture with a batch that needs three times the room, and once more with the batch that it came to."""
    torch.set_num_threads(1)
    logging.basicConfig(stream=sys.stdout, format="%(message)s")
    wide = {"num_hidden_layers": 2, "intermediate_size": 8192}
    tokens = np.random.default_rng(0).integers(3, 300, size=(DOCUMENTS, CONTEXT)).astype(np.int32)
    # Libraries take what they keep for themselves.
    collected(tiny_smollm3(**wide), tokens[:1], MomentSums())
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + ROOM, used + ROOM))
    sizes: list[int] = []
    model = tiny_smollm3(**wide)
    model.register_forward_pre_hook(lambda *given: sizes.append(len(given[2]["input_ids"])), with_kwargs=True)
    found = collected(model, tokens, MomentSums(), Profile(), batch=DOCUMENTS)
    expected = collected(tiny_smollm3(**wide), tokens, MomentSums(), Profile(), batch=sizes[-1])
    for key, arrays in expected.items():
        for name, array in arrays.items():
            np.testing.assert_array_equal(found[key][name], array)
    print("the same sums")


if __name__ == "__main__":
    main()
