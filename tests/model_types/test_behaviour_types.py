"""Attention rows of every model type: masses and effective keys are those of the weights that the model gives."""

from typing import Any

import numpy as np
import pytest
import torch

from helpers.behaviour import looked_at
from helpers.collecting import collected
from helpers.model_types import TYPES, tiny_model
from ropewalk.models.probe import read_layout
from ropewalk.statistics.base import Scope, layers_of
from ropewalk.statistics.behaviour import Behaviour

TOKENS = 32
SCALED_AFTERWARDS = ("granite_swa", "granitemoe_swa")
"""They give their weights without the learned sink, which scales the output: here it is turned off."""


@pytest.mark.parametrize("model_type", TYPES)
def test_rows_are_those_of_eager_attention(model_type: str) -> None:
    model: Any = tiny_model(model_type, "eager")
    if model_type in SCALED_AFTERWARDS:
        for module in model.modules():
            if hasattr(module, "sinks"):
                module.sinks.data.fill_(-1e4)
    tokens = np.random.default_rng(0).integers(3, 20, (2, TOKENS))
    with torch.inference_mode():
        output = model(input_ids=torch.from_numpy(tokens), use_cache=False, output_attentions=True)
    layout = read_layout(model)
    given = [one.double().numpy() for one in output.attentions if one is not None and one.shape[-1] == TOKENS]
    assert len(given) == len(layout.layers)
    statistic, scope = Behaviour(rows=TOKENS, start=0.0), Scope(context=TOKENS, documents=2, bucket_size=4)
    sums = collected(model, tokens, statistic, layout=layout, scope=scope, batch=2)
    for weights, heads in zip(given, layers_of(layout, layout.heads()), strict=True):
        found = statistic.read([sums["behaviour", heads.layer.layer]], heads, scope, {}).values
        for head in heads.heads:
            each = [looked_at(weights[n, head], tokens[n], range(TOKENS)) for n in range(2)]
            for name in {name for one in each for name in one if "_induction" not in name and "_duplicate" not in name}:
                column = {"mass 0": "mass_self", "mass 1": "mass_previous"}.get(name, name.replace(" ", "_"))
                if column in found:
                    expected = np.mean([one.get(name, 0.0) for one in each])
                    assert found[column][head] == pytest.approx(expected, abs=1e-6, rel=1e-6), name
        assert model_type not in ("gpt_oss", "llama") or ("mass_sink" in found) == (model_type == "gpt_oss")
