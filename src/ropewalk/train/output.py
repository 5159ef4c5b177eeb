"""The folder of a training: whose it is, and whether it holds the whole of it."""

from pathlib import Path

from ropewalk.fingerprint import fingerprint
from ropewalk.ownership import Owner
from ropewalk.progress import logger
from ropewalk.seals import LEDGER, Ledger
from ropewalk.train.recipe import Recipe
from ropewalk.train.state import check_identity

KIND = "training"
"""As what its folder is marked."""
RECORD = "losses.json"
HELDOUT = "heldout.jsonl"


def owner_of(settings: Recipe, recipe: Path | None) -> Owner:
    """As whose the folder of a training is marked: the recipe, from its file if it was read from one."""
    file = "" if recipe is None else str(Path(recipe).resolve())
    return Owner(KIND, settings.name, file, fingerprint(settings.model_dump(mode="json")))


def finish_output(output: Path, identity: dict[str, str]) -> None:
    """Write the digests of everything that a study of the training reads; last, as it says that all of it is there."""
    found = [path for folder in ("checkpoints", "tokenizer") for path in sorted((output / folder).rglob("*"))]
    names = [path.relative_to(output).as_posix() for path in found if path.is_file()]
    Ledger.of(output, [RECORD, HELDOUT, *names], identity).write(output)


def is_finished(output: Path, identity: dict[str, str]) -> bool:
    """Whether a folder holds a whole training, which must be this one, and all of it as it was written."""
    ledger = Ledger.read(output)
    if ledger is None:
        if (output / LEDGER).exists():
            logger.warning("%s is damaged: the training begins again", output / LEDGER)
        return False
    check_identity(output, dict(ledger.made_from), identity)
    for name, state in ledger.differs(output):
        logger.warning("%s is %s: the training begins again", output / name, state)
        return False
    return True
