"""Rows of `spectrum.csv`: what is known of each pair of dimensions that turn together."""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from ropewalk.geometry.moments import Floats
from ropewalk.models.layout import Rotary
from ropewalk.statistics.base import LayerHeads, head_rows

PAIRS: Mapping[str, str] = {
    "pair": "pair of dimensions that turn together, fastest first",
    "frequency": "radians a token",
    "wavelength": "tokens for a whole turn",
}
"""Columns by which the rows of several statistics are joined."""


def spectrum_rows(heads: LayerHeads, rotary: Rotary, columns: Mapping[str, Floats]) -> pd.DataFrame:
    """A row per head and pair from columns [1 + groups, heads, pairs], with errors."""
    frequencies = np.array(rotary.frequencies)
    order = np.argsort(-frequencies, kind="stable")
    facts = {
        "pair": np.arange(len(order)),
        "frequency": frequencies[order],
        "wavelength": 2 * np.pi / frequencies[order],
    }
    return head_rows(heads, facts, {name: column[..., order] for name, column in columns.items()})
