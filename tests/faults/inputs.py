"""Inputs that are wrong in every way: one sentence each, nothing destroyed, and a dry run finds what a run would."""

import random
import shutil
from pathlib import Path

from faults.bad_data import arguments, corpora, folders, tables, vectors
from faults.bad_models import ggufs, models, tokenizers
from faults.bad_studies import fields, texts
from faults.case import Case, furnish, runs_study
from faults.workshop import Budget, Ended, Tally, Workshop, contents, in_child
from ropewalk.errors import IncompleteError, RopewalkError

FAMILIES = {
    "study files": texts,
    "fields of studies": fields,
    "models": models,
    "GGUF files": ggufs,
    "tokenizers": tokenizers,
    "corpora": corpora,
    "vectors": vectors,
    "results folders": folders,
    "tables": tables,
    "arguments": arguments,
}
RESULTS = "results"
"""Where a study may write, if it is accepted."""
LONGEST_LINE = 1200
MOST_LINES = 25
MOST_MEMORY = 4_000_000_000
"""Bytes that a refusal may take at the most, the program itself included."""


def inputs(workshop: Workshop, budget: Budget, chance: random.Random) -> Tally:
    """Try wrong inputs of every family, in random order."""
    tally = Tally()
    template = workshop.home / "template"
    assert in_child(lambda: furnish(template), workshop.home).code == 0
    cases = [(family, case) for family, listed in FAMILIES.items() for case in listed(chance)]
    chance.shuffle(cases)
    for _, (family, case) in zip(budget, cases, strict=False):
        outcome, problems = _try(workshop, template, case)
        tally.tried[f"{family}: {outcome}"] += 1
        tally.wrong += [f"{family}, {case.name}: {problem}" for problem in problems]
    return tally


def _try(workshop: Workshop, template: Path, case: Case) -> tuple[str, list[str]]:
    """One case in a folder of its own: how it ended, and what should not have been."""
    folder = workshop.trial()
    shutil.copytree(template, folder, dirs_exist_ok=True, symlinks=True)
    case.edit(folder)
    before = _everything(folder)
    problems: list[str] = []
    if runs_study(case.words):
        planned = workshop.command(folder, *case.words, "--dry-run")
        problems += [f"dry run: {problem}" for problem in unkind(planned)]
        if _everything(folder) != before:
            problems.append("the dry run wrote something")
        ended = workshop.command(folder, *case.words)
        if planned.code == 0 and ended.code != 0 and not case.late:
            problems.append(f"the dry run does not find it: {ended.said[-300:]}")
        if planned.code != 0 and ended.code == 0:
            problems.append(f"the dry run refuses what runs: {planned.said[-300:]}")
        if planned.code != 0 and _everything(folder) != before:
            problems.append("it is refused, and something was written")
    else:
        ended = workshop.command(folder, *case.words)
    problems += unkind(ended)
    problems += _destroyed(folder, before, case)
    shutil.rmtree(folder)
    return ("accepted" if ended.code == 0 else "refused"), problems


def unkind(ended: Ended) -> list[str]:
    """What is wrong with how a command ended: it must be well, or with a sentence."""
    if ended.code == 0:
        return []
    if ended.is_traceback:
        return [f"traceback: {ended.said.splitlines()[-1][:300]}"]
    if ended.code not in (RopewalkError.exit_code, IncompleteError.exit_code):
        return [f"ended with {ended.code}: {ended.said[-300:]}"]
    problems = []
    lines = ended.said.splitlines()
    if not any(line.startswith(("ropewalk: ", "Error: ")) for line in lines):
        problems.append(f"no sentence: {ended.said[-300:]!r}")
    if len(lines) > MOST_LINES or any(len(line) > LONGEST_LINE for line in lines):
        problems.append(f"the message is too long: {len(ended.said):,} characters: {ended.said[:200]!r}")
    if not all(line.isprintable() for line in lines):
        problems.append(f"the message steers the terminal: {ended.said[:300]!r}")
    if ended.memory > MOST_MEMORY:
        problems.append(f"it took {ended.memory / 1e9:.1f} GB")
    return problems


def _destroyed(folder: Path, before: dict[str, str], case: Case) -> list[str]:
    """Files that were changed or removed, and files that were made where none belong."""
    after = _everything(folder)
    changed = sorted(name for name, digest in before.items() if after.get(name) != digest)
    added = sorted(name for name in after.keys() - before.keys() if not name.startswith((RESULTS, *case.writes)))
    lost = [name for name in changed if not name.startswith(case.writes)]
    return [f"{name} was changed" for name in lost[:3]] + [f"{name} was written" for name in added[:3]]


def _everything(folder: Path) -> dict[str, str]:
    """All files, links and folders below a folder, but for the logs of commands."""
    found = {name: digest for name, digest in contents(folder).items() if not name.startswith("log-")}
    for path in folder.rglob("*"):
        if path.is_symlink():
            found[path.relative_to(folder).as_posix()] = f"link to {path.readlink()}"
    return found
