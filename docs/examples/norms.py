"""A statistic of one's own: how long a head's queries and keys are, on average and by how much that varies."""

import numpy as np
import torch

import ropewalk


@ropewalk.register("norms")
class Norms(ropewalk.Statistic):
    """Mean and spread of the lengths of queries and keys."""

    columns = {
        "norm_q": "mean length of the head's queries",
        "norm_k": "mean length of the keys that the head reads",
        "spread_q": "standard deviation of the length of queries over tokens, as a share of the mean",
    }

    def observe(self, seen):
        """Sums over documents and tokens: arrays of queries have heads first, arrays of keys key heads."""
        q, k = (torch.linalg.vector_norm(x, dim=3, dtype=torch.float64) for x in (seen.query, seen.key))
        tokens = torch.tensor(float(q.shape[0] * q.shape[2]))
        return {"n": tokens, "q.sum": q.sum((0, 2)), "q.square": (q * q).sum((0, 2)), "k.sum": k.sum((0, 2))}

    def values(self, sums, heads, scope):
        """One number per query head; `key_index` says which key head it reads."""
        mean_q, mean_k = sums["q.sum"] / sums["n"], sums["k.sum"] / sums["n"]
        variance = np.maximum(sums["q.square"] / sums["n"] - mean_q**2, 0)
        return {"norm_q": mean_q, "norm_k": mean_k[heads.key_index], "spread_q": np.sqrt(variance) / mean_q}
