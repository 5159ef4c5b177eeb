"""What a user waits for: help, the import, the first line of a run, and the whole built-in study.

Commands take turns in processes of their own, beside a Python that does nothing.

    python benchmarks/start.py [--rounds 5] [--demos 5]
"""

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from measuring import Series, alternate, keep, seconds

COMMAND = [str(Path(sys.executable).parent / "ropewalk")]
"""The command line, of the environment that runs this."""


def running(*command: str) -> Callable[[], float]:
    """A timer of a command, from its start to its end."""
    return lambda: seconds(lambda: subprocess.run(command, check=True, capture_output=True))


def first_line() -> float:
    """Seconds from starting the built-in study to its first line; it is stopped then."""
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        with subprocess.Popen(
            [*COMMAND, "demo", "--results", folder], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL
        ) as process:
            assert process.stderr is not None
            line = process.stderr.readline()
            found = time.perf_counter() - start
            process.kill()
        assert line, "the study said nothing"
    return found


def demo() -> float:
    """Seconds of the whole built-in study: capture, tables, figures, report."""
    with tempfile.TemporaryDirectory() as folder:
        taken = running(*COMMAND, "demo", "--results", folder)()
        assert (Path(folder) / "report.html").is_file()
    return taken


def main() -> None:
    """Measure, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--demos", type=int, default=5, help="runs of the built-in study")
    options = parser.parse_args()
    found = alternate(
        {
            "python -c pass": running(sys.executable, "-c", "pass"),
            "ropewalk --help": running(*COMMAND, "--help"),
            "ropewalk run --help": running(*COMMAND, "run", "--help"),
            "import ropewalk": running(sys.executable, "-c", "import ropewalk"),
            "first line of a run": first_line,
        },
        options.rounds,
    )
    found |= alternate({"ropewalk demo": demo}, options.demos, warmups=0)
    for name, values in found.items():
        series = Series(tuple(values))
        print(f"  {name:<22} {series.median:7.2f} s  ({series.least:.2f} to {series.most:.2f})")
    keep("start", found)


if __name__ == "__main__":
    main()
