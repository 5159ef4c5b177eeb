"""From a text to token ids, with a tokenizer that may come from a stranger."""

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from ropewalk.errors import RopewalkError
from ropewalk.reading import named
from ropewalk.text import one_line

CHARACTERS_PER_TOKEN = 12
"""More than any tokenizer averages: so much text is tried first, and the whole only if it was not enough."""
MOST_CHARACTERS = 100
"""That a tokenizer may make of one, as a mean over a text: the longest ligature of Unicode is 18."""
PIECE = 1000
"""Characters that are looked at together."""

Tokens = NDArray[np.int32]
Made = TypeVar("Made")


def encode(tokenizer: Any, text: str, length: int, special_tokens: bool = True) -> Tokens:
    """Token ids of a text; only as much of a long text as `length` tokens need is read."""
    head = text[: CHARACTERS_PER_TOKEN * length + 1000]
    for piece in (head, text):
        _check_growth(tokenizer, piece)
        ids = _ids(tokenizer, piece, special_tokens)
        # The cut may have split a word, so its last few tokens do not count.
        if len(piece) == len(text) or len(ids) >= length + 16:
            break
    return ids


def _check_growth(tokenizer: Any, text: str) -> None:
    """Stop at a tokenizer that makes many times the text of a text, before that fills the memory.

    Nothing but a normalizer can; most have none.
    """
    normalizer = getattr(getattr(tokenizer, "backend_tokenizer", None), "normalizer", None)
    start, size, made = 0, 1, 0
    while normalizer is not None and start < len(text):
        made += len(_read_text(tokenizer, partial(normalizer.normalize_str, text[start : start + size])))
        start, size = start + size, min(2 * size, PIECE)
        if made > MOST_CHARACTERS * (start + 10):
            raise RopewalkError(
                f"the tokenizer{_at(tokenizer)} makes {made:,} characters of the first {min(start, len(text)):,} of a "
                f"text, and {MOST_CHARACTERS} of each are the most: name another as `tokenizer`"
            )


def _ids(tokenizer: Any, text: str, special_tokens: bool) -> Tokens:
    """What a tokenizer makes of a text."""
    return _read_text(
        tokenizer,
        lambda: np.asarray(
            tokenizer(text, add_special_tokens=special_tokens, verbose=False)["input_ids"], dtype=np.int32
        ),
    )


def _read_text(tokenizer: Any, read: Callable[[], Made]) -> Made:
    """What a tokenizer makes of a text, or a sentence: it may load and still be damaged."""
    try:
        return read()
    # Each library fails in its own way, that in Rust by a panic, which is no Exception; nothing of this project runs
    # in here.
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt | SystemExit | MemoryError):
            raise
        raise RopewalkError(
            f"the tokenizer{_at(tokenizer)} does not read text ({one_line(error, 200)}): fetch it again, or name "
            "another as `tokenizer`"
        ) from error


def _at(tokenizer: Any) -> str:
    where = getattr(tokenizer, "name_or_path", "")
    return f" at {named(where)}" if where else ""
