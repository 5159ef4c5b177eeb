"""A tiny model, random documents, and all its queries and keys on them."""

from typing import Any

import numpy as np
import pytest


@pytest.fixture(scope="session")
def model() -> Any:
    from helpers.tiny import tiny_smollm3

    return tiny_smollm3()


@pytest.fixture(scope="session")
def tokens() -> np.ndarray:
    from helpers.tiny import CONTEXT, DOCUMENTS

    return np.random.default_rng(0).integers(3, 300, size=(DOCUMENTS, CONTEXT)).astype(np.int32)


@pytest.fixture(scope="session")
def by_hand(model: Any, tokens: np.ndarray) -> list[Any]:
    """All queries and keys of the model on the tokens, one full forward pass."""
    import torch

    from ropewalk.models.tap import Call, tap

    calls: list[Call] = []
    with torch.inference_mode(), tap(model, calls.append):
        model(input_ids=torch.from_numpy(tokens.astype(np.int64)), use_cache=False)
    return calls
