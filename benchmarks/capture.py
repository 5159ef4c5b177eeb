"""What capturing costs: the plain forward pass, this project, and what people would use instead, on SmolLM2-135M.

Contenders have a process each, with its model loaded, and take turns. Of each: wall time as a ratio to that of the
plain pass of the same round, the most resident memory above that of the loaded model, and the bytes it leaves on disk.

    python benchmarks/capture.py [--tokens 2048] [--documents 1 4 16] [--rounds 5] [--only plain moments]
"""

import argparse
import multiprocessing
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

from contenders import MODEL, random_documents
from measuring import Series, alternate, keep, peak_above, seconds
from peers import CONTENDERS
from ropewalk.text import one_line, size, table

PLAIN = "plain"


def serve(end: Connection, key: str, documents: int, length: int) -> None:
    """Prepare a contender, then do what is asked for until the pipe is closed: `time`, or `weigh`."""
    contender = CONTENDERS[key]()
    try:
        contender.prepare(MODEL, random_documents(documents, length))
        end.send({"name": contender.name, "keeps": contender.keeps})
        while True:
            asked = end.recv()
            taken = seconds(contender.run) if asked == "time" else peak_above(contender.run)
            answer = taken if asked == "time" else {"peak": taken, "written": contender.written}
            contender.clear()
            end.send(answer)
    except EOFError:
        return
    except Exception as error:
        # A peer that cannot do it is reported as such, with what it says.
        end.send(RuntimeError(f"{type(error).__name__}: {one_line(error)}"))


class Racer:
    """A contender in its own process."""

    def __init__(self, key: str, documents: int, length: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._end, theirs = context.Pipe()
        self._process = context.Process(target=serve, args=(theirs, key, documents, length), daemon=True)
        self._process.start()
        theirs.close()
        self.facts: dict[str, Any] = self._answer()

    def time(self) -> float:
        """Seconds of one run."""
        self._end.send("time")
        return float(self._answer())

    def weigh(self) -> dict[str, int]:
        """Peak memory and bytes written of one run."""
        self._end.send("weigh")
        found: dict[str, int] = self._answer()
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


def race(keys: Sequence[str], documents: int, length: int, rounds: int) -> tuple[dict[str, Any], dict[str, str]]:
    """Numbers of all contenders over some documents, and what those said that could not do it."""
    racers: dict[str, Racer] = {}
    failed: dict[str, str] = {}
    for key in keys:
        try:
            racers[key] = Racer(key, documents, length)
            weighed = racers[key].weigh()
            racers[key].facts |= weighed
        except RuntimeError as error:
            failed[key] = str(error)
            racers.pop(key, None)
    # The run that was weighed has warmed everything up.
    found = alternate({key: racer.time for key, racer in racers.items()}, rounds, warmups=0)
    for racer in racers.values():
        racer.close()
    return {key: {**racers[key].facts, "seconds": list(series.values)} for key, series in found.items()}, failed


def lines(found: dict[str, Any]) -> list[str]:
    """A table of what was measured over some documents."""
    plain = Series(tuple(found[PLAIN]["seconds"]))
    rows = []
    for one in found.values():
        series = Series(tuple(one["seconds"]))
        ratio = series.over(plain)
        rows.append(
            [
                one["name"],
                f"{series.median:.2f} s",
                f"{ratio.median:.3f} ({ratio.least:.3f} to {ratio.most:.3f})",
                size(one["peak"]),
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
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="+", choices=list(CONTENDERS), default=list(CONTENDERS))
    options = parser.parse_args()
    keys = list(dict.fromkeys([PLAIN, *options.only]))
    measured: dict[str, Any] = {}
    for documents in options.documents:
        found, failed = race(keys, documents, options.tokens, options.rounds)
        measured[str(documents)] = {"found": found, "failed": failed}
        print(f"SmolLM2-135M, {documents} x {options.tokens:,} tokens, float32, {options.rounds} rounds")
        print("\n".join(f"  {line}" for line in lines(found)))
        for key, message in failed.items():
            print(f"  {key} could not: {message}")
        # After each, so that hours are not lost with the last one.
        keep("capture", {"tokens": options.tokens, "rounds": options.rounds, "documents": measured})


if __name__ == "__main__":
    main()
