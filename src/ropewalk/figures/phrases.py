"""What measures are called in sentences, and how their numbers are written."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from ropewalk.geometry.taxonomy import CATEGORIES, DOMINATED


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
OCTAVES = Unit(2, 1.0, "", " octaves")
KEYS = Unit(1, 1.0, " keys", " keys")
PLAIN = Unit(2, 1.0, "", "")
PER_TOKEN = Unit(2, 1000.0, " per 1,000 tokens", " per 1,000 tokens")
PER_CONTEXT = Unit(2, 1.0, " per context", " per context")


class Phrase(NamedTuple):
    """What a measure is called in a sentence, and how its numbers are written."""

    name: str
    unit: Unit


PHRASES: Mapping[str, Phrase] = {
    "mean_r_q": Phrase("mean r_q", CORRELATION),
    "mean_r_k": Phrase("mean r_k", CORRELATION),
    "mean_abs_r_k": Phrase("mean |r_k|", CORRELATION),
    "discordant": Phrase("the share of discordant heads (r_q·r_k < 0) among the decided", SHARE),
    "undecided": Phrase("the share of heads whose r_q or r_k is not beyond its error", SHARE),
    "undecided_category": Phrase("the share of heads whose category is less than 95% certain", SHARE),
    "mean_separation_share": Phrase("the mean share of PC0's variance that tells queries from keys", SHARE),
    "mean_readout_q": Phrase("the mean readout of queries", CORRELATION),
    "mean_readout_k": Phrase("the mean readout of keys", CORRELATION),
    "above_permuted_q": Phrase("the share of heads with r_q above that of shuffled positions", SHARE),
    "above_permuted_k": Phrase("the share of heads with |r_k| above that of shuffled positions", SHARE),
    "mean_r_k_rope": Phrase("mean r_k in RoPE layers", CORRELATION),
    "mean_r_k_nope": Phrase("mean r_k in NoPE layers", CORRELATION),
    "mean_explained_variance": Phrase("the mean share of variance on PC0", SHARE),
    **{f"share_{category}": Phrase(f"the share of {category} heads", SHARE) for category in CATEGORIES},
    f"discordant_{DOMINATED}": Phrase(f"the share that is {DOMINATED} and discordant", SHARE),
    "mean_kernel_r": Phrase("the mean correlation of K with the measured score over distance", CORRELATION),
    "mean_bend_q": Phrase("the mean share of queries' variance on PC0 that bends with position", SHARE),
    "mean_bend_k": Phrase("the mean share of keys' variance on PC0 that bends with position", SHARE),
    "mean_mu_q_a": Phrase("the mean of queries along the drift axis", PLAIN),
    "mean_abs_alpha_k": Phrase("the mean drift of keys |alpha_k|", PER_TOKEN),
    "mean_abs_alpha_k_context": Phrase("the mean drift of keys |alpha_k|", PER_CONTEXT),
    "mean_bias_strength": Phrase("mean bias strength", PER_TOKEN),
    "mean_bias_strength_context": Phrase("mean bias strength", PER_CONTEXT),
    "mean_abs_r_q_a": Phrase("mean |r_q| along the drift axis", CORRELATION),
    "mean_abs_r_k_a": Phrase("mean |r_k| along the drift axis", CORRELATION),
    "mean_separation_strength": Phrase("mean separation strength", SHARE),
    "mean_plane_var_fraction": Phrase("the mean share of variance in the plane", SHARE),
    "mean_var_frac_a": Phrase("the mean share of variance along the drift axis", SHARE),
    "mean_drift_slow": Phrase("the mean share of the drift axis in pairs slower than the context", SHARE),
    "mean_pc0_slow": Phrase("the mean share of PC0 in such pairs", SHARE),
    "mean_ap_overall": Phrase("mean plasticity", CORRELATION),
    "mean_ap_first_20": Phrase("mean plasticity in the first fifth of the context", CORRELATION),
    "mean_ap_last_20": Phrase("mean plasticity in the last fifth", CORRELATION),
    "mean_ap_drop": Phrase("the mean drop of plasticity from the first fifth to the last", CORRELATION),
    "mean_ap_gap": Phrase("what taking scores as Gaussian adds to mean plasticity", CORRELATION),
    "mean_mass_first": Phrase("mean attention on the first token", SHARE),
    "mean_mass_first4": Phrase("mean attention on the first four tokens", SHARE),
    "mean_mass_sink": Phrase("mean attention on the learned sink", SHARE),
}
"""Of those of `ropewalk.summary.measures.MEASURES` that captions speak of."""
