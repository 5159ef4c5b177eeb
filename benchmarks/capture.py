"""What capturing costs: the plain forward pass, this project, and what people would use instead, on SmolLM2-135M.

Contenders have a process each, with its model loaded and one document run, and take turns. Of each: wall time as a
ratio to that of the plain pass of the same round, the most resident memory above that of the loaded model, and the
bytes it leaves on disk.

    python benchmarks/capture.py [--tokens 2048] [--documents 1 4 16] [--rounds 5] [--only plain moments]
"""

import argparse
import multiprocessing
from collections.abc import Mapping, Sequence
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

from contenders import MODEL, random_documents
from measuring import OFTEN, Run, Series, alternate, columns, keep, resident, run, shares
from peers import CONTENDERS
from ropewalk.text import one_line, size, table

PLAIN, KEPT, MOMENTS = "plain", "kept", "moments"


def serve(end: Connection, key: str, length: int) -> None:
    """Prepare a contender, then run as many documents as are asked for, until the pipe is closed."""
    contender = CONTENDERS[key]()
    try:
        contender.prepare(MODEL)
        contender.take(random_documents(1, length))
        contender.run()
        contender.clear()
        # What torch and libraries set up with the first document is none of the capture's.
        base = resident()
        end.send({"name": contender.name, "keeps": contender.keeps})
        while True:
            documents, is_profiled = end.recv()
            contender.take(random_documents(documents, length))
            answer = shares(contender.run, contender.steps) if is_profiled else run(contender.run, base)
            written = contender.written
            contender.clear()
            end.send((answer, written))
    except EOFError:
        return
    except Exception as error:
        # A peer that cannot do it is reported as such, with what it says.
        end.send(RuntimeError(f"{type(error).__name__}: {one_line(error)}"))


class Racer:
    """A contender in its own process."""

    def __init__(self, key: str, length: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._end, theirs = context.Pipe()
        self._process = context.Process(target=serve, args=(theirs, key, length), daemon=True)
        self._process.start()
        theirs.close()
        self.facts: dict[str, Any] = self._answer()

    def run(self, documents: int) -> Run:
        """Run some documents once; the bytes written are kept among the facts."""
        self._end.send((documents, False))
        measured, self.facts["written"] = self._answer()
        assert isinstance(measured, Run)
        return measured

    def profile(self, documents: int) -> dict[str, float]:
        """Shares of its steps in the time of one more run."""
        self._end.send((documents, True))
        found, _ = self._answer()
        assert isinstance(found, dict)
        return found

    def close(self) -> None:
        """Let the process go."""
        self._end.close()
        self._process.join()

    def _answer(self) -> Any:
        try:
            answer = self._end.recv()
        except EOFError:
            self._process.join()
            raise RuntimeError(f"its process ended with exit code {self._process.exitcode}") from None
        if isinstance(answer, Exception):
            raise answer
        return answer


def start(keys: Sequence[str], length: int) -> tuple[dict[str, Racer], dict[str, str]]:
    """Contenders that have run one document, and what those said that could not."""
    racers: dict[str, Racer] = {}
    failed: dict[str, str] = {}
    for key in keys:
        try:
            racers[key] = Racer(key, length)
        except RuntimeError as error:
            failed[key] = str(error)
    return racers, failed


def race(racers: Mapping[str, Racer], documents: int, rounds: int) -> dict[str, Any]:
    """Numbers of all contenders over some documents."""
    found = alternate({key: partial(racer.run, documents) for key, racer in racers.items()}, rounds, warmups=0)
    return {key: {**racers[key].facts, **columns(runs)} for key, runs in found.items()}


def lines(found: dict[str, Any]) -> list[str]:
    """A table of what was measured over some documents."""
    plain = Series(tuple(found[PLAIN]["seconds"]))
    rows = []
    for one in found.values():
        series, peaks = Series(tuple(one["seconds"])), Series(tuple(one["peaks"]))
        ratio = series.over(plain)
        rows.append(
            [
                one["name"],
                f"{series.median:.2f} s",
                f"{ratio.median:.3f} ({ratio.least:.3f} to {ratio.most:.3f})",
                size(peaks.median),
                size(one["written"]),
            ]
        )
    headers = ("", "wall time", "/ plain, round by round", "memory above model", "on disk")
    return table(headers, rows, right=range(1, 5))


def main() -> None:
    """Measure, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--documents", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--rounds", type=int, default=5, help=f"{OFTEN} times as many of one document")
    parser.add_argument("--only", nargs="+", choices=list(CONTENDERS), default=list(CONTENDERS))
    options = parser.parse_args()
    racers, failed = start(list(dict.fromkeys([PLAIN, *options.only])), options.tokens)
    for key, message in failed.items():
        print(f"{key} could not: {message}")
    measured: dict[str, Any] = {}
    facts = {"tokens": options.tokens, "failed": failed}
    for documents in options.documents:
        rounds = options.rounds * OFTEN if documents == 1 else options.rounds
        measured[str(documents)] = race(racers, documents, rounds)
        print(f"SmolLM2-135M, {documents} x {options.tokens:,} tokens, float32, {rounds} rounds")
        print("\n".join(f"  {line}" for line in lines(measured[str(documents)])), flush=True)
        # After each, so that hours are not lost with the last one.
        keep("capture", {**facts, "documents": measured})
        # What keeping memory does to the plain pass is the same for any number of documents.
        if KEPT in racers:
            racers.pop(KEPT).close()
    if MOMENTS in racers:
        steps = racers[MOMENTS].profile(options.documents[0])
        print("of moments, by a profiler: " + ", ".join(f"{step} {share:.1%}" for step, share in steps.items()))
        keep("capture", {**facts, "documents": measured, "steps": steps})
    for racer in racers.values():
        racer.close()


if __name__ == "__main__":
    main()
