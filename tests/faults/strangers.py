"""Results from strangers, who can write a right seal: nonsense in any file is a sentence, or is made again."""

import copy
import json
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from safetensors import safe_open
from safetensors.numpy import save

from faults.inputs import unkind
from faults.workshop import Budget, Tally, Workshop
from ropewalk.seals import BLANK, Ledger, read_sealed_json, seal, sealed_json
from ropewalk.yamlfile import dump_yaml, read_own

COMMANDS = (
    ("analyze", "results"),
    ("figures", "results"),
    ("report", "results"),
    ("head", "results", "--checkpoint", "first", "--layer", "1", "--head", "0"),
    ("export", "results", "out.npz", "--to", "npz", "--checkpoint", "first"),
    ("compare", "results"),
    ("verify", "results"),
    ("status", "results"),
)
ODD: tuple[Any, ...] = (
    *(None, True, 0, 3, -1, 0.5, 10**12, 10**300, 1e308, float("nan"), "", "x", "\x1b[2J\n", "../../x", "y" * 10**5),
    *([], ["a"], [[[]]], {}, {"a": 1}, {"a": [1]}),
)
CELLS: tuple[Any, ...] = ("x", "inf", "-inf", "1e308", "-7", "", "9" * 30, "0.5", "True", "\x1b[2J", "y" * 5000)
ARRAYS: tuple[Callable[[np.ndarray], Any], ...] = (
    lambda a: None,
    lambda a: a[None],
    lambda a: np.atleast_1d(a)[:-1],
    lambda a: np.atleast_1d(a)[:0],
    lambda a: np.concatenate([np.atleast_1d(a)] * 2, axis=-1),
    lambda a: np.float64(3),
    lambda a: a.astype(np.float16),
    lambda a: a.astype(np.uint8),
    lambda a: a.astype(bool),
    lambda a: a.astype(np.complex64),
    lambda a: np.full(a.shape, np.nan),
    lambda a: np.full(a.shape, -np.inf),
    lambda a: np.full(a.shape, 1e300),
    lambda a: -a,
    lambda a: a * 0,
)
"""What becomes of an array; None: it is gone."""
ROWS: tuple[Callable[[pd.DataFrame], pd.DataFrame], ...] = (
    lambda t: t[:0],
    lambda t: t[:1],
    lambda t: t[: len(t) // 2],
    lambda t: pd.concat([t, t]),
    lambda t: pd.concat([t, t[:1]]),
    lambda t: t.iloc[:, :0],
    lambda t: t.assign(checkpoint="other"),
)


def strangers(workshop: Workshop, budget: Budget, chance: random.Random) -> Tally:
    """Put nonsense into a file of a results folder, seal it, and run a command, over and over."""
    tally = Tally()
    kinds = {"shard": _shard, "table": _table, "record, manifest, note or ledger": _document}
    for _ in budget:
        folder, kind = workshop.trial(copy=True), chance.choice(sorted(kinds))
        what, words = kinds[kind](folder / "results", chance), chance.choice(COMMANDS)
        ended = workshop.command(folder, *words)
        tally.tried[f"{kind}: {'accepted or made again' if ended.code == 0 else 'refused'}"] += 1
        tally.wrong += [f"{what}, {words[0]}: {problem}" for problem in unkind(ended)]
        shutil.rmtree(folder)
    return tally


def _shard(results: Path, chance: random.Random) -> str:
    """Change an array of a shard, or what it says of itself."""
    path = chance.choice(sorted(results.glob("captures/first/shard-*.safetensors")))
    with safe_open(path, framework="numpy") as file:
        arrays, marks = {name: file.get_tensor(name) for name in file.keys()}, file.metadata()["ropewalk"]  # noqa: SIM118
    said = {**json.loads(marks), "seal": BLANK}
    if chance.random() < 0.1:
        what = chance.choice(sorted(said.keys() - {"seal"}))
        said[what] = chance.choice(ODD)
    else:
        what, change = chance.choice(sorted(arrays)), chance.choice(ARRAYS)
        with np.errstate(all="ignore"):
            changed = change(arrays.pop(what))
        if changed is not None:
            arrays[chance.choice((what, what, what, f"{what}x"))] = np.array(changed, order="C")
    path.write_bytes(seal(save(arrays, metadata={"ropewalk": json.dumps(said)})))
    return f"{path.name}: {what}"


def _table(results: Path, chance: random.Random) -> str:
    """Change cells, a column or the rows of a table, and make the ledger fit."""
    path = chance.choice(sorted([*results.glob("*.csv"), *results.glob("*.parquet")]))
    packed = path.suffix == ".parquet"
    table = pd.read_parquet(path) if packed else pd.read_csv(path, dtype=object, keep_default_na=False)
    what, column, cell = chance.random(), chance.choice(list(table)), chance.choice(CELLS)
    if what < 0.2:
        changed, told = table.drop(columns=column), f"no {column}"
    elif what < 0.4:
        changed, told = chance.choice(ROWS)(table), "rows"
    elif what < 0.7 or packed:
        changed, told = table.assign(**{column: cell}), f"{column} is {cell[:20]!r}"
    else:
        changed, told = table.copy(), f"a {column} is {cell[:20]!r}"
        changed.loc[chance.randrange(len(table)), column] = cell
    if packed:
        changed.to_parquet(path, index=False)
    else:
        changed.to_csv(path, index=False)
    ledger = Ledger.read(results)
    assert ledger is not None
    Ledger.of(results, ledger.files, ledger.made_from).write(results)
    return f"{path.name}: {told}"


def _document(results: Path, chance: random.Random) -> str:
    """Change a value anywhere in a sealed file of JSON or YAML."""
    path = chance.choice(sorted([*results.rglob("*.json"), results / "study.yaml"]))
    plain = path.suffix == ".yaml"
    data = read_own(path.read_text(encoding="utf-8")) if plain else read_sealed_json(path)
    if data is None:  # one without a seal, such as a layout
        data = json.loads(path.read_bytes())
    data = {name: value for name, value in copy.deepcopy(data).items() if name != "seal"}
    *inner, last = chance.choice(list(_places(data)))
    target: Any = data
    for key in inner:
        target = target[key]
    target[last] = chance.choice(ODD)
    path.write_bytes(seal(dump_yaml({"seal": BLANK, **data}).encode()) if plain else sealed_json(data))
    return f"{path.relative_to(results)}: {[*inner, last]} = {str(target[last])[:30]!r}"


def _places(data: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where values stand in nested data."""
    for key in data if isinstance(data, dict) else range(len(data)) if isinstance(data, list) else ():
        yield (*above, key)
        yield from _places(data[key], (*above, key))
