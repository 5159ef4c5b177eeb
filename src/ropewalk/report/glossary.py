"""The words of the report, with every threshold taken from where it is defined."""

from collections.abc import Iterator
from typing import NamedTuple

from ropewalk.geometry.taxonomy import CERTAIN, DEPTH_BINS, rule_conditions


class Term(NamedTuple):
    """A word and what it means, in paragraphs ("- " begins a bullet, `code` and **bold** are allowed)."""

    name: str
    meaning: tuple[str, ...]


def _categories() -> Iterator[str]:
    """Every category with its rule as a bullet, in the taxonomy's order."""
    for category, conditions in rule_conditions():
        rule = " and ".join(f"`{condition}`" for condition in conditions)
        yield f"- **{category}**: {rule or 'every other head whose two correlations are known'}"


def glossary() -> tuple[Term, ...]:
    """All terms, in reading order."""
    return (
        Term(
            "head",
            (
                "A (layer, query head) pair together with the key head it reads. With grouped-query attention "
                "several query heads read the same key head.",
            ),
        ),
        Term(
            "PC0",
            (
                "The first principal component of a head's queries and keys, pooled: the one direction along which "
                "they vary most. PC1, PC2, ... follow in order of variance.",
            ),
        ),
        Term(
            "r_q",
            (
                "Pearson correlation of the queries' projection on the component with token position. The component "
                "is oriented so that r_q is not negative; where r_q is close to zero, so that r_k is not.",
            ),
        ),
        Term(
            "r_k",
            (
                "The same for the keys, on the same component with the same orientation. Its size says how strongly "
                "keys carry position, its sign whether they move with the queries or against them. Because signs "
                "cancel in a mean, the mean of `|r_k|` stands beside the mean of r_k.",
            ),
        ),
        Term(
            "concordant, discordant",
            (
                "A head is discordant when `r_q · r_k < 0`: along the component its keys drift with position in the "
                "opposite direction to its queries. It is concordant when they drift the same way, and undecided when "
                "r_q or r_k is not beyond its error; shares are of the decided heads. A head can turn discordant "
                "without its keys losing position.",
            ),
        ),
        Term(
            "explained variance",
            ("The share of the total variance of a head's pooled queries and keys that lies along the component.",),
        ),
        Term(
            "separation share",
            (
                "How much of PC0's variance is the offset between the mean query and the mean key. Near 1, PC0 is the "
                "axis that tells queries from keys, and r_q and r_k belong to a direction that was chosen for that.",
            ),
        ),
        Term(
            "axis",
            (
                "Where r_q and r_k are measured. **Pooled**: PC0 of queries and keys together, as published. "
                "**Centred**: the first principal component of both, each about its own mean. **Drift**: the direction "
                "in which the means of queries and keys move with position.",
            ),
        ),
        Term(
            "readout",
            (
                "The correlation of position with its best linear prediction from the vectors, fitted on the other "
                "shards: what can be read along the best of all directions. Without a signal it is 0 on average.",
            ),
        ),
        Term(
            "fixed share, concentration",
            (
                "How much of the energy of a head's queries or keys is one constant vector, which RoPE turns with "
                "position; and how far all tokens point the same way before the rotation. Where the fixed share is "
                "large, position is in the vectors because RoPE puts it there, whatever the token.",
            ),
        ),
        Term(
            "distance kernel, range, misfit",
            (
                "K(Δ), the score that the constant parts of queries and keys give to a key Δ tokens back: how much the "
                "head prefers one distance to another when content averages out. Its range is the largest less the "
                "smallest value; the misfit is the share of how the measured mean score varies with distance that K "
                "misses.",
            ),
        ),
        Term(
            "scores by distance",
            (
                "The share of the variance of a query's scores over keys that the octave of the distance explains, as "
                "a mean over sampled queries, the first four keys left out: what `position-dominated` should mean. "
                "Noise gives 0 on average.",
            ),
        ),
        Term(
            "first token, previous token, induction, effective keys",
            (
                "What a head's attention is on, at sampled queries of every document: the first key (a sink), the key "
                "one token back, keys after an earlier copy of the current token; and how many keys it is spread over "
                "(exp of its entropy).",
            ),
        ),
        Term(
            "η²",
            (
                "The share of the variance of queries or keys that lies between positions, whatever the path; r² is "
                "its part along a straight line on one axis. Taken across shards, so that noise counts for nothing.",
            ),
        ),
        Term(
            "rank",
            ("In how many directions queries or keys spread: the participation ratio `(tr S)² / tr S²`.",),
        ),
        Term(
            "nulls",
            (
                "What the numbers are held against: the same vectors with positions shuffled within each document, and "
                "the same architecture with random weights. A head is above the shuffled null where its correlation "
                "exceeds that of shuffled positions beyond the error of their difference.",
            ),
        ),
        Term(
            "eigengap",
            (
                "`(λ0 - λ1) / λ0`, how far PC0's variance is above PC1's. Near 0 the two directions can swap places "
                "from one sample to the next, and the numbers of PC0 are then not stable.",
            ),
        ),
        Term("category", ("What kind of head it is, from its PC0 correlations:", *_categories())),
        Term(
            "certainty",
            (
                "The probability of a head's category, given the standard errors of r_q and r_k and their covariance. "
                f"Below {CERTAIN:.0%} the category counts as undecided.",
            ),
        ),
        Term(
            "RoPE, NoPE",
            (
                "A RoPE layer rotates queries and keys by an angle that grows with position before they meet. A NoPE "
                "layer has no such rotation: what its queries and keys carry of position comes to them through the "
                "hidden state.",
            ),
        ),
        Term(
            "depth bin",
            (f"Layers in {DEPTH_BINS} equal steps from the first to the last, so that models of any depth compare.",),
        ),
        Term(
            "shard",
            ("A group of documents. Every number can be computed again with one shard left out.",),
        ),
        Term(
            "standard error",
            (
                "The number after ±: how much a value would vary with other documents of the same kind. Means are "
                "computed again with each shard left out (jackknife); for shares of heads, which jump at thresholds, "
                "the heads' correlations are moved jointly by as much as their errors, and no share has an error below "
                "that of one undecided head. A 95% interval is 2.36 of them wide to either side with 8 shards, 2.13 "
                "with 16 (Student's t). It says nothing about other models or training runs, and it is missing with "
                "fewer than two shards.",
            ),
        ),
        Term(
            "drift axis, separation axis",
            (
                "The plane of a head: along the drift axis a lies all covariance of its queries and keys with "
                "position, along the separation axis b the rest of the offset between their means.",
            ),
        ),
        Term(
            "bias strength",
            (
                "How much the mean score of a key grows with its position: the mean of the queries along the drift "
                "axis times the slope of the keys. Per token it shrinks when contexts grow; per context (times the "
                "tokens of a document) it says what changes from the first key to the last. Above 0, later keys score "
                "higher.",
            ),
        ),
        Term(
            "attention plasticity",
            (
                "Whether the query decides which of two earlier keys scores higher: `4p(1 - p)`, p being the share of "
                "queries for which the one wins. 1 where queries decide, 0 where the outcome is fixed. The drop is its "
                "value with queries in the first fifth of the context less that in the last.",
            ),
        ),
    )
