"""What quantities are called in sentences and tables, and how their numbers are written."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from ropewalk.geometry.taxonomy import CATEGORIES, DOMINATED
from ropewalk.summary.measures import Measure


@dataclass(frozen=True)
class Unit:
    """How a quantity is written: digits after the point, a factor, and what follows a value and a change."""

    digits: int
    factor: float
    value: str
    change: str

    def number(self, value: float) -> str:
        """The number alone, rounded; a rounded -0 is 0."""
        return f"{round(value * self.factor, self.digits) + 0.0:.{self.digits}f}"

    def error(self, se: float) -> str:
        """` ± se`, or nothing where there is none."""
        if math.isnan(se):
            return ""
        smallest = 10.0**-self.digits
        return (
            f" ± {self.number(se)}" if round(se * self.factor, self.digits) > 0 else f" ± <{smallest:.{self.digits}f}"
        )


CORRELATION = Unit(3, 1.0, "", "")
SHARE = Unit(1, 100.0, "%", " percentage points")
NATS = Unit(2, 1.0, " nats", " nats")
OCTAVES = Unit(2, 1.0, " octaves", " octaves")
KEYS = Unit(1, 1.0, " keys", " keys")
PLAIN = Unit(2, 1.0, "", "")
PER_TOKEN = Unit(2, 1000.0, "", "")
"""Slopes per token are written per 1,000 of them, which their names say."""


class Quantity(NamedTuple):
    """A measure: what sentences call it, how it is written, the header of its column, and what it is about.

    Findings on quantities of one `topic` say much the same (r_k and its size), and a caption makes one of them.
    """

    name: str
    unit: Unit
    measure: str | Measure
    header: str
    topic: str


def _of(measure: str, name: str, unit: Unit, header: str = "", topic: str = "") -> tuple[str, Quantity]:
    return measure, Quantity(name, unit, measure, header or name.removeprefix("the "), topic or measure)


QUANTITIES: Mapping[str, Quantity] = dict(
    [
        _of("mean_r_q", "mean r_q", CORRELATION),
        _of("mean_r_k", "mean r_k", CORRELATION, topic="keys"),
        _of("mean_abs_r_k", "mean |r_k|", CORRELATION, topic="keys"),
        _of("discordant", "the share of discordant heads", SHARE, "discordant"),
        _of("undecided", "the share of undecided heads", SHARE, "undecided"),
        _of("undecided_category", "the share of heads near a threshold", SHARE, "uncertain"),
        _of("mean_separation_share", "the share of PC0 that is the offset of queries from keys", SHARE, "separation"),
        _of("mean_readout_q", "how well position can be read from queries", CORRELATION, "readout of queries"),
        _of("mean_readout_k", "how well position can be read from keys", CORRELATION, "readout of keys"),
        _of("mean_r_k_rope", "mean r_k in RoPE layers", CORRELATION, "r_k, RoPE", "layers"),
        _of("mean_r_k_nope", "mean r_k in NoPE layers", CORRELATION, "r_k, NoPE", "layers"),
        _of("mean_explained_variance", "the share of variance on PC0", SHARE, "on PC0"),
        *(
            _of(f"share_{category}", f"the share of {category} heads", SHARE, category, category)
            for category in CATEGORIES
        ),
        _of(
            f"discordant_{DOMINATED}",
            f"the share of heads that are {DOMINATED} and discordant",
            SHARE,
            "of these, discordant",
            "discordant",
        ),
        _of("mean_fixed_share_q", "the fixed share of queries", SHARE, "fixed, queries"),
        _of("mean_fixed_share_k", "the fixed share of keys", SHARE, "fixed, keys"),
        _of("mean_kernel_r", "the correlation of K with the measured score", CORRELATION, "correlation with K"),
        _of("mean_bend_q", "what a straight line misses of queries", SHARE, "missed, queries", "bend_q"),
        _of("mean_bend_k", "what a straight line misses of keys", SHARE, "missed, keys", "bend_k"),
        _of("mean_mu_q_a", "the mean query along the drift axis", PLAIN, "mean query"),
        _of("mean_abs_alpha_k", "the drift of keys per 1,000 tokens", PER_TOKEN, topic="drift"),
        _of("mean_abs_alpha_k_context", "the drift of keys over the context", PLAIN, topic="drift"),
        _of("mean_bias_strength", "the bias per 1,000 tokens", PER_TOKEN, topic="bias"),
        _of("mean_bias_strength_context", "the bias over the context", PLAIN, topic="bias"),
        _of("mean_abs_r_q_a", "mean |r_q| along the drift axis", CORRELATION, "|r_q|, drift axis"),
        _of("mean_abs_r_k_a", "mean |r_k| along the drift axis", CORRELATION, "|r_k|, drift axis"),
        _of("mean_separation_strength", "separation strength", SHARE, "separation strength"),
        _of("mean_plane_var_fraction", "the share of variance in the plane", SHARE, "in the plane"),
        _of("mean_drift_slow", "the share of the drift axis in slow pairs", SHARE, "drift axis"),
        _of("mean_pc0_slow", "the share of PC0 in slow pairs", SHARE, "PC0"),
        _of("mean_ap_overall", "mean plasticity", CORRELATION, "plasticity"),
        _of("mean_ap_first_20", "plasticity in the first fifth of the context", CORRELATION, "first fifth"),
        _of("mean_ap_last_20", "plasticity in the last fifth of the context", CORRELATION, "last fifth"),
        _of("mean_ap_drop", "the drop of plasticity along the context", CORRELATION, "drop"),
        _of("mean_mass_first", "attention on the first token", SHARE, "first token"),
        _of("mean_mass_first4", "attention on the first four tokens", SHARE, "first four"),
        _of("mean_mass_sink", "attention on the learned sink", SHARE, "learned sink"),
    ]
)
"""Of those of `ropewalk.summary.measures.MEASURES` that captions speak of."""
