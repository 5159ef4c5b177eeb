"""Captions of the figures that follow means over heads: position signal, variance of PC0, concordance."""

import pandas as pd

from ropewalk.captions import Caption
from ropewalk.captions.production import steps
from ropewalk.captions.wording import CORRELATION, SHARE, Unit, overall, story, takeaway
from ropewalk.summary.view import View, view

NAMES = {
    "mean_r_q": "mean r_q",
    "mean_r_k": "mean r_k",
    "mean_abs_r_k": "mean |r_k|",
    "discordant": "the share of discordant heads (r_k < 0)",
    "mean_r_k_rope": "mean r_k in RoPE layers",
    "mean_r_k_nope": "mean r_k in NoPE layers",
    "mean_explained_variance": "the mean share of variance on PC0",
}


def titled(title: str, look: View) -> str:
    """The title of a figure with what it runs over."""
    if len(look.lineup) == 1:
        return f"{title} at {look.lineup.labels[0]}"
    return f"{title} {'During Training' if look.lineup.training else f'Across {look.lineup.kind.title()}s'}"


def places(look: View) -> str:
    """What the checkpoint axis shows, and what its dashed lines separate."""
    named = [group.name for group in look.lineup.groups if group.name]
    kinds = "phases" if look.lineup.training else "families"
    text = f"{len(look.lineup)} {look.lineup.kind}{'s' if len(look.lineup) > 1 else ''}"
    if len(named) > 1:
        text += f" in {len(named)} {kinds} ({', '.join(named)}), separated by dashed lines"
    return text


def known(look: View, *measures: str) -> list[str]:
    """The measures that have a value at some checkpoint (a model can have no NoPE layers)."""
    return [measure for measure in measures if not pd.isna(look.track(measure).values).all()]


def clauses(look: View, *measures: str) -> str:
    """A sentence with the course of some measures over the whole study."""
    return takeaway(look, [(NAMES[measure], look.track(measure), unit_of(measure)) for measure in measures])


def unit_of(measure: str) -> Unit:
    """Shares are written in percent."""
    return SHARE if measure == "discordant" else CORRELATION


def position_signal(table: pd.DataFrame, replicates: pd.DataFrame | None, source: str) -> Caption:
    """Caption of `figures.position_signal`."""
    look = view(table, replicates)
    bars = ", bars on the markers one standard error" if look.has_errors else ""
    spread = "bands" if look.lineup.training and len(look.lineup) > 1 else "bars"
    return Caption(
        titled("Position Correlation on PC0", look),
        (
            f"Mean r_q (blue, circles) and mean r_k (red, squares) on PC0 over the heads of {places(look)}. Shaded "
            f"{spread} show ± 1 standard deviation over heads{bars}. Hollow squares show mean |r_k|, which does not "
            "fall when a key's correlation only changes its sign.",
            *story(look, "r_q (query-position correlation)", look.track("mean_r_q"), CORRELATION),
            *story(look, "r_k (key-position correlation)", look.track("mean_r_k"), CORRELATION),
            *story(look, "|r_k| (its size)", look.track("mean_abs_r_k"), CORRELATION),
            "A mean of signed r_k mixes heads of both signs, and of layers with and without RoPE. "
            + clauses(look, "discordant", *known(look, "mean_r_k_rope", "mean_r_k_nope")),
        ),
        steps(
            look,
            source,
            "mean and standard deviation (n - 1) of r_q and r_k over all heads of a checkpoint; mean of |r_k|.",
            "lines with bands over training, markers with bars over models.",
            "position_signal",
            "smollm_fig01_position_signal_over_training",
        ),
        clauses(look, "mean_r_q", "mean_r_k", "mean_abs_r_k", "discordant"),
    )


def explained_variance(table: pd.DataFrame, replicates: pd.DataFrame | None, source: str) -> Caption:
    """Caption of `figures.explained_variance`."""
    look = view(table, replicates)
    track = look.track("mean_explained_variance")
    deviation = look.track(lambda heads: float(heads["explained_variance"].std()))
    return Caption(
        titled("Explained Variance of PC0", look),
        (
            "The share of the pooled variance of queries and keys that lies on their first principal component, as a "
            f"mean over the heads of {places(look)}, with ± 1 standard deviation over heads.",
            *story(look, "The mean share of variance on PC0", track, SHARE),
            f"Over heads, {overall(look, 'the standard deviation', deviation, SHARE)}.",
        ),
        steps(
            look,
            source,
            "mean and standard deviation (n - 1) of `explained_variance` over all heads of a checkpoint.",
            "line with a band over training, markers with bars over models.",
            "explained_variance",
            "smollm_fig04_explained_variance_evolution",
        ),
        takeaway(look, [(NAMES["mean_explained_variance"], track, SHARE)]),
    )


def concordance(table: pd.DataFrame, replicates: pd.DataFrame | None, source: str) -> Caption:
    """Caption of `figures.concordance`."""
    look = view(table, replicates)
    sides = known(look, "mean_r_k_rope", "mean_r_k_nope")
    parts = [
        paragraph
        for measure in ("mean_r_k", "mean_abs_r_k", "discordant", *sides)
        for paragraph in story(
            look,
            NAMES[measure][:1].upper() + NAMES[measure][1:],
            look.track(measure),
            unit_of(measure),
        )
    ]
    split = {
        0: "The table does not say which layers have RoPE, so they are not told apart.",
        1: f"All heads whose layer is known are in {'RoPE' if sides == ['mean_r_k_rope'] else 'NoPE'} layers.",
        2: "The lower panels tell heads of layers with RoPE from heads of layers without (NoPE).",
    }[len(sides)]
    return Caption(
        titled("Concordance of Keys with Queries", look),
        (
            f"Three panels over {places(look)}. Top: mean r_k (filled) and mean |r_k| (hollow) over all heads. "
            "Middle: the share of discordant heads, whose keys' position gradient on PC0 points against their "
            f"queries' (r_k < 0). Bottom: mean r_k by kind of layer. {split}",
            *parts,
        ),
        steps(
            look,
            source,
            "means of r_k and |r_k| over the heads of a checkpoint, over all and by `rope`; the share of heads with "
            "r_k < 0 among those that have an r_k.",
            "three stacked panels with a shared axis.",
            "concordance",
        ),
        clauses(look, "mean_r_k", "mean_abs_r_k", "discordant", *sides),
    )
