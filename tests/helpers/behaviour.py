"""What attention rows show, spelled out key by key."""

from collections import defaultdict
from typing import Any

import numpy as np


def octave(distance: int) -> int:
    """First distance of the octave: 0, 1, 2, 4, 8, ..."""
    return 0 if distance == 0 else 1 << (int(distance).bit_length() - 1)


def looked_at(weights: Any, tokens: Any, rows: Any) -> dict[str, float]:
    """Masses, effective keys and lifts of one head from its attention weights [queries, keys] over one document."""
    total: dict[str, float] = defaultdict(float)
    for t in rows:
        row = weights[t, : t + 1]
        seen = [j for j in range(t + 1) if row[j] > 0]
        for j in seen:
            total[f"mass {octave(t - j)}"] += row[j]
            total["mass_first"] += row[j] if j == 0 else 0
            total["mass_first4"] += row[j] if j < 4 else 0
        on_keys = row[seen] / row[seen].sum()
        total["effective_keys"] += float(np.exp(-(on_keys * np.log(on_keys)).sum()))
        total["mass_sink"] += 1 - row.sum()
        for name, back in (("induction", 1), ("duplicate", 0)):
            chosen = [j for j in seen if j < t and j >= back and tokens[j - back] == tokens[t]]
            if chosen:
                total[f"{name} rows"] += 1
                total[f"{name} mass"] += row[chosen].sum()
                total[f"{name} share"] += len(chosen) / len(seen)
    found = {
        name: value / len(rows) for name, value in total.items() if not name.startswith(("induction", "duplicate"))
    }
    for name in ("induction", "duplicate"):
        if total[f"{name} rows"]:
            found[f"mass_{name}"] = total[f"{name} mass"] / total[f"{name} rows"]
            found[f"lift_{name}"] = total[f"{name} mass"] / total[f"{name} share"]
    return found


def explained(scores: Any, seen: Any) -> float:
    """How much of the variance of one query's scores [keys] the octave of the distance explains, per degree of freedom;
    `seen` are the keys that count.
    """
    t = len(scores) - 1
    groups = defaultdict(list)
    for j in seen:
        groups[octave(t - j)].append(scores[j])
    values = np.concatenate([np.array(group) for group in groups.values()])
    within = sum(((np.array(group) - np.mean(group)) ** 2).sum() for group in groups.values())
    total = ((values - values.mean()) ** 2).sum()
    return float(1 - (within / (len(values) - len(groups))) / (total / (len(values) - 1)))
