"""Data that is wrong: corpora, datasets of vectors, results folders, tables, and what is typed at the command line."""

import bz2
import gzip
import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from faults.bad_studies import ODD, mutated
from faults.case import STUDY, Case, Edit, study_data, write_study

MUTATIONS = 40
GRID = "checkpoint,phase,step,layer,head,k_head,rope,pc,explained_variance,r_q,r_k\n"


def corpora(chance: random.Random) -> Iterator[Case]:
    """Files of texts that cannot be read, or hold something else."""
    words = " ".join(str(number % 50 + 3) for number in range(60))
    line = json.dumps({"text": words}) + "\n"
    contents: dict[str, bytes] = {
        "empty": b"",
        "white": b" \n\t\n",
        "not UTF-8": b"\xff\xfe\xfa" * 50,
        "Latin-1": "über ".encode("latin-1") * 50,
        "UTF-16": words.encode("utf-16"),
        "UTF-32": words.encode("utf-32"),
        "NUL": b"1 2 \0 3" * 20,
        "gzip": gzip.compress(words.encode(), mtime=0),
        "bzip2": bz2.compress(words.encode()),
        "short": b"3 4 5",
        "one word": b"x" * 100_000,
        "controls": b"\x1b[2J 3 4 5 " * 50,
        "surrogates": "\ud800 ".encode("utf-8", "surrogatepass") * 50,
        "a line": words.encode(),
        "JSON": line.encode(),
        "JSON cut": line.encode()[:-10],
        "a list": b"[1, 2]\n",
        "null": b"null\n",
        "another column": b'{"body": "1 2"}\n',
        "a number": b'{"text": 3}\n',
        "no text": b'{"text": null}\n',
        "half a character": b'{"text": "\\ud800"}\n',
        "a double key": b'{"text": "1", "text": "2"}\n',
        "depth": b"[" * 100_000 + b"\n",
        "a long number": b'{"text": ' + b"9" * 10_000 + b"}\n",
        "not UTF-8 in the second line": line.encode() + b'{"text": "\xff"}\n',
        "Parquet's ends": b"PAR1" + b"\xff" * 50 + b"PAR1",
    }
    for source in ("files", "jsonl", "parquet"):
        for name, content in contents.items():
            yield Case(f"{source}: {name}", _corpus(source, content), late=True)
        for number in range(MUTATIONS):
            base = words.encode() if source == "files" else line.encode() * 4
            data = mutated(_parquet(words) if source == "parquet" else base, chance)
            yield Case(f"{source}: mutated {number}", _corpus(source, data), late=True)
    for target in ("nowhere", "0.txt", "/dev/zero", "/dev/null", "/proc/self/mem", "."):
        yield Case(f"a link to {target}", _linked(target), late=True)
    yield Case("a pipe", lambda folder: ((folder / "texts/0.txt").unlink(), os.mkfifo(folder / "texts/0.txt")))
    for pattern in ("/**", "/dev/*", "/proc/**/*", "[", "texts", "texts/*.none", "**", "~/x", "", "a\0b", "x" * 5000):
        yield Case(f"paths: {pattern[:40]!r}", _paths(pattern), late=True)


def vectors(chance: random.Random) -> Iterator[Case]:
    """Datasets of vectors with damaged layouts, columns and names."""
    layer = {"layer": 0, "query_heads": 1, "key_heads": 1, "head_dim": 8, "rope": True, "rotary": 1.0, "window": None}
    for key in layer:
        for value in ODD:
            try:
                text = json.dumps({"layers": [layer | {key: value}], "depth": 2, "model_type": "x"})
            except TypeError:
                continue
            yield Case(f"layout.{key} = {repr(value)[:60]}", _layout(text.encode()), late=True)
    for content in (b"", b"{", b"[]", b"null", b"{}", b'{"layers": 3}', b"\xff", b"[" * 100_000):
        yield Case(f"layout is {content[:20]!r}", _layout(content), late=True)
    many = {"layers": [layer | {"query_heads": 10**8}], "depth": 1, "model_type": "x"}
    yield Case("a layout of 10^8 heads", _layout(json.dumps(many).encode()))
    yield Case("a layout of 10^6 layers", _layout(json.dumps({"layers": [layer] * 10**6, "depth": 10**6}).encode()))
    for name, change in _columns().items():
        yield Case(f"columns: {name}", _rewritten(change), late=True)
    for name in (
        "l99999999h00q",
        "l00h99999999k",
        "l" + "9" * 200 + "h00q",
        "l0h0q",
        "l00h00x",
        "l-1h00q",
        "lh",
        "l00h00q2",
    ):
        yield Case(f"a folder {name[:40]}", _vectors(lambda folder, name=name: _copied(folder, name)), late=True)
    for number in range(MUTATIONS):
        change = random.Random(chance.random())
        yield Case(f"mutated {number}", _vectors(lambda folder, change=change: _mutated(folder, change)), late=True)
    for target in ("nowhere", "/dev/zero", "data.parquet", "/proc/self/mem"):
        yield Case(f"a link to {target}", _vectors(lambda folder, target=target: _relinked(folder, target)), late=True)
    yield Case("no keys", _vectors(lambda folder: shutil.rmtree(folder / "vectors/l00h00k")), late=True)
    for field in ("depth", "key_heads", "nope_layers", "context"):
        for value in ODD:
            yield Case(f"{field} = {repr(value)[:60]}", _vectors(lambda _: None, **{field: value}), late=True)


def folders(_: random.Random) -> Iterator[Case]:
    """Folders to write to that are somebody else's, elsewhere, or cannot be written to."""
    own = {"study.yaml": "mine: yes", "qk.csv": "a,b\n1,2\n", "report.html": "<p>mine", "notes.txt": "x"}
    for name, text in own.items():
        yield Case(f"a foreign {name}", _foreign(name, text))
    for path in ("figures/01_position_signal/figure.png", "captures/first/manifest.json", "tokens/x.bin"):
        yield Case(f"a foreign {path}", _foreign(path, "mine"))
    for value in (
        ".",
        "..",
        "texts",
        "model",
        "/",
        "/tmp",
        "../elsewhere",
        STUDY,
        f"{STUDY}/x",
        "x" * 300,
        "a\0b",
        "~",
        "texts/0.txt",
    ):
        yield Case(f"results: {value[:40]}", _results(value))
        if "\0" not in value:  # which no system lets anybody type
            # What a shell hands on is a name like any other.
            words, writes = ("capture", STUDY, "--results", value), ("~",) if value == "~" else ()
            yield Case(f"--results {value[:40]}", lambda _: None, words, writes=writes)
    for target in ("nowhere", "results", "texts", "/proc", "/dev/null"):
        linked = lambda folder, target=target: (folder / "results").symlink_to(target)  # noqa: E731
        # Where the user's own link leads, a new folder is made; what stands there is not touched.
        yield Case(f"a link to {target}", linked, late=target == "/proc", writes=("texts/bad/",))
    yield Case("a file", lambda folder: (folder / "results").write_text("mine"))
    yield Case("a pipe", lambda folder: os.mkfifo(folder / "results"))
    yield Case("a mark that is damaged", _foreign("ropewalk.json", "{"))
    yield Case("a mark of another study", _marked)
    yield Case("a mark that is a folder", lambda folder: (folder / "results/bad/ropewalk.json").mkdir(parents=True))
    for words in (("verify", "texts"), ("verify", "nowhere"), ("verify", "texts", "--repair"), ("analyze", "texts")):
        yield Case(" ".join(words), lambda _: None, words)
    for command in ("figures", "report", "compare"):
        for value in ("texts", "nowhere", STUDY, "texts/0.txt", ".", "/dev/null", "/dev/zero", "model/config.json"):
            yield Case(f"{command} {value}", lambda _: None, (command, value))
    for name in ("qk.csv", "heads.csv", "study.yaml", "seals.json", "replicates.parquet"):
        for command in ("figures", "report", "analyze"):
            yield Case(
                f"{command} beside a {name} of nothing",
                _foreign(name, ""),
                (command, "results/bad"),
                writes=("results",),
            )


def tables(chance: random.Random) -> Iterator[Case]:
    """Tables from elsewhere that are drawn: rows and values that make no sense."""
    row = "a,p,1,0,0,0,True,0,0.5,0.5,0.5\n"
    names = ("NA", "null", "nan", "None", "", "x\ny", "ü" * 300)
    named = "".join(row.replace("a,", f'"{name}",', 1) for name in names)
    contents: dict[str, bytes] = {
        "empty": b"",
        "no rows": GRID.encode(),
        "no columns": b"\n\n\n",
        "not UTF-8": GRID.encode() + b"\xff,p,1,0,0,0,True,0,0.5,0.5,0.5\n",
        "too few": GRID.encode() + b"a,p\n",
        "too many": GRID.encode() + row.encode().replace(b"\n", b",1,2,3\n"),
        "a double row": (GRID + row + row).encode(),
        "text for numbers": (GRID + row.replace("0.5", "x")).encode(),
        "no numbers": (GRID + row.replace("0.5", "")).encode(),
        "infinite": (GRID + row.replace("0.5", "inf")).encode(),
        "beyond one": (GRID + row.replace("0.5", "7")).encode(),
        "negative layers": (GRID + row.replace(",0,0,0,", ",-1,-1,-1,")).encode(),
        "huge layers": (GRID + row.replace(",0,0,0,", ",100000000,0,0,")).encode(),
        "huge heads": (GRID + row.replace(",0,0,0,", ",0,100000000,0,")).encode(),
        "steps out of order": (GRID + row.replace(",1,", ",9,") + row.replace("a,", "b,")).encode(),
        "names of all kinds": (GRID + named).encode(),
        "markup": (GRID + row.replace("a,p", '"<script>alert(1)</script>","<b>"')).encode(),
        "quotes that stay open": (GRID + '"' + row).encode(),
        "NUL": (GRID + row).encode().replace(b"a,p", b"a\0,p"),
        "gzip": gzip.compress((GRID + row).encode(), mtime=0),
        "a picture": b"\x89PNG\r\n\x1a\n" + bytes(range(256)),
    }
    for command in ("figures", "report", "compare"):
        for name, content in contents.items():
            yield Case(f"{command}: {name}", _table(content), (command, "table/qk.csv"), writes=("table",))
    for number in range(MUTATIONS):
        rows = "".join(row.replace(",0,0,0,", f",{layer},{head},0,") for layer in range(3) for head in range(2))
        data = mutated((GRID + rows).encode(), chance)
        yield Case(f"mutated {number}", _table(data), ("compare", "table/qk.csv"), writes=("table",))


def arguments(_: random.Random) -> Iterator[Case]:
    """Words of the command line that are wrong."""
    odd = ("", " ", "-1", "x", "9" * 40, "../..", "/dev/null", "a\nb", "\x1b[2J", "x" * 5000)
    for option in ("--checkpoint", "--shard"):
        for value in odd:
            yield Case(f"{option} {value[:30]!r}", lambda _: None, ("capture", STUDY, option, value), late=True)
    for command in ("inspect", "doctor"):
        for value in (*odd, "texts", STUDY, "tokenizer"):
            yield Case(f"{command} {value[:30]!r}", lambda _: None, (command, value))
        for option in ("--revision", "--gguf-file", "--dtype"):
            for value in odd:
                yield Case(f"{command} {option} {value[:30]!r}", lambda _: None, (command, "model", option, value))
    for value in (*odd, STUDY, "texts", "nowhere.yaml"):
        yield Case(f"train {value[:30]!r}", lambda _: None, ("train", value))
    for value in (".", "texts", STUDY, "/dev/null", "x" * 300):
        yield Case(f"train --output {value[:30]}", lambda _: None, ("train", "--output", value))
    for value in odd:
        yield Case(
            f"train --device {value[:30]!r}", lambda _: None, ("train", "--output", "results", "--device", value)
        )
        yield Case(
            f"compare --published {value[:30]!r}", _table(GRID.encode()), ("compare", "table", "--published", value)
        )
        yield Case(f"figures --axis {value[:30]!r}", _table(GRID.encode()), ("figures", "table", "--axis", value))
        yield Case(f"--plugin {value[:30]!r}", lambda _: None, ("--plugin", value, "capture", STUDY))
        yield Case(f"checkpoints {value[:30]!r}", lambda _: None, ("checkpoints", value))
    yield Case("checkpoints --output study.yaml", lambda _: None, ("checkpoints", "a/b", "--output", STUDY))
    yield Case("an unknown command", lambda _: None, ("runn", STUDY))
    yield Case("an unknown option", lambda _: None, ("run", STUDY, "--fast"))


def _parquet(text: str) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"text": [text] * 4}), sink)
    return bytes(sink.getvalue())


def _corpus(source: str, content: bytes) -> Edit:
    def edit(folder: Path) -> None:
        name = {"files": "0.txt", "jsonl": "0.jsonl", "parquet": "0.parquet"}[source]
        (folder / "texts" / name).write_bytes(content)
        write_study(folder, study_data() | {"corpus": {"source": source, "paths": [f"texts/*{Path(name).suffix}"]}})

    return edit


def _paths(pattern: str) -> Edit:
    return lambda folder: write_study(folder, study_data() | {"corpus": {"source": "files", "paths": [pattern]}})


def _linked(target: str) -> Edit:
    def edit(folder: Path) -> None:
        (folder / "texts/0.txt").unlink()
        (folder / "texts/0.txt").symlink_to(target)

    return edit


def _vectors(change: Callable[[Path], object], **fields: Any) -> Edit:
    def edit(folder: Path) -> None:
        change(folder)
        checkpoint = {"source": "./vectors", "name": "saved", "context": 32, **fields}
        write_study(folder, study_data() | {"checkpoints": [checkpoint]})

    return edit


def _layout(content: bytes) -> Edit:
    return _vectors(lambda folder: (folder / "vectors/layout.json").write_bytes(content))


def _rewritten(change: Callable[[Any], Any]) -> Edit:
    def edit(folder: Path) -> None:
        import pyarrow.parquet as pq

        path = folder / "vectors/l00h00q/data.parquet"
        pq.write_table(change(pq.read_table(path)), path)

    return _vectors(edit)


def _columns() -> dict[str, Callable[[Any], Any]]:
    import pyarrow as pa

    def column(name: str, values: Any) -> Callable[[Any], Any]:
        return lambda table: table.set_column(table.column_names.index(name), name, pa.array(values))

    rows = 128
    changes: dict[str, Callable[[Any], Any]] = {
        "no rows": lambda table: table.slice(0, 0),
        "one row": lambda table: table.slice(0, 1),
        "ids as text": column("example_id", [str(number // 32) for number in range(rows)]),
        "ids missing": column("example_id", [None] * rows),
        "ids as lists": column("example_id", [[1]] * rows),
        "ids as numbers with parts": column("example_id", [number / 3 for number in range(rows)]),
        "ids too large": column("example_id", [2**62 + number // 32 for number in range(rows)]),
        "positions as text": column("position", ["x"] * rows),
        "positions below 0": column("position", [-1] * rows),
        "positions beyond the context": column("position", [10**9] * rows),
        "positions of halves": column("position", [number / 2 for number in range(rows)]),
        "positions all the same": column("position", [3] * rows),
        "positions NaN": column("position", [float("nan")] * rows),
        "vectors of text": column("vector", [["x"] * 8] * rows),
        "vectors of nothing": column("vector", [[]] * rows),
        "vectors of other lengths": column("vector", [[1.0] * (1 + number % 3) for number in range(rows)]),
        "vectors of another length": column("vector", [[1.0, 2.0]] * rows),
        "vectors missing": column("vector", [None] * rows),
        "vectors with holes": column("vector", [[1.0, None] * 4] * rows),
        "vectors of NaN": column("vector", [[float("nan")] * 8] * rows),
        "vectors without end": column("vector", [[float("inf")] * 8] * rows),
        "vectors too large to square": column("vector", [[1e300 * (1 + number)] * 8 for number in range(rows)]),
        "vectors all the same": column("vector", [[1.0] * 8] * rows),
        "vectors of vectors": column("vector", [[[1.0]] * 8] * rows),
        "windows of text": column("sliding_window", ["x"] * rows),
        "windows that differ": column("sliding_window", list(range(rows))),
        "windows below 0": column("sliding_window", [-5] * rows),
    }
    for name in ("bucket", "example_id", "position", "vector", "sliding_window"):
        changes[f"no {name}"] = lambda table, name=name: table.drop_columns([name])
        changes[f"{name} twice"] = lambda table, name=name: table.append_column(name, table.column(name))
    return changes


def _copied(folder: Path, name: str) -> None:
    shutil.copytree(folder / "vectors/l00h00q", folder / "vectors" / name)


def _mutated(folder: Path, chance: random.Random) -> None:
    path = folder / "vectors/l00h00q/data.parquet"
    path.write_bytes(mutated(path.read_bytes(), chance))


def _relinked(folder: Path, target: str) -> None:
    path = folder / "vectors/l00h00q/data.parquet"
    path.unlink()
    path.symlink_to(target)


def _foreign(name: str, text: str) -> Edit:
    def edit(folder: Path) -> None:
        path = folder / "results/bad" / name
        path.parent.mkdir(parents=True)
        path.write_text(text)

    return edit


def _results(value: str) -> Edit:
    return lambda folder: write_study(folder, study_data() | {"results": value})


def _marked(folder: Path) -> None:
    from ropewalk.ownership import Owner, claim

    claim(folder / "results/bad", Owner("study", "other", "", "0"))


def _table(content: bytes) -> Edit:
    def edit(folder: Path) -> None:
        (folder / "table").mkdir()
        (folder / "table/qk.csv").write_bytes(content)

    return edit
