"""Text for people: tables, sizes, counts and names, in one style wherever they are printed."""

import hashlib
import re
import unicodedata
from collections.abc import Collection, Iterable, Sequence

ELLIPSIS = "…"
LONGEST_SLUG = 80
"""Characters of a name as a folder's name: with what is put around it, any file system takes it."""
DEVICES = r"con|prn|aux|nul|com\d|lpt\d"
"""Names that Windows keeps for devices, whatever follows a dot."""

LONGEST_NAME = 100
"""Characters of a name in a list of names; more would make the list a page."""

JOINERS = "\u200c\u200d"
"""Invisible characters that some scripts cannot be written without."""

_PLAIN = re.compile(r"[ -~]*")


def printable(text: str, newlines: bool = False) -> str:
    r"""A text that comes from elsewhere, as it may stand on a terminal, in a log or in a comment: one line of letters.

    Characters that steer (escape sequences, carriage returns, marks that turn the direction of writing), break a line
    or cannot be written are shown as escapes, such as \x1b; newlines too, unless they are allowed.
    """
    if _PLAIN.fullmatch(text):
        return text
    return "".join(
        one if (newlines and one == "\n") or not is_control(one) else one.encode("unicode_escape").decode()
        for one in text
    )


def is_control(one: str) -> bool:
    """Whether a character is none that is seen: it steers, breaks a line, or is half of another."""
    category = unicodedata.category(one)
    return category in ("Cc", "Cs", "Zl", "Zp") or (category == "Cf" and one not in JOINERS)


def table(
    headers: Sequence[str], rows: Iterable[Sequence[str]], *, right: Collection[int] = (), unused: str | None = None
) -> list[str]:
    """Lines of a text table; columns are two spaces apart and as wide as their widest cell.

    `right` numbers the columns that are aligned to the right. A row that is shorter than the headers ends in a cell
    that runs on to the right and widens no column. Where `unused` is given, a column that holds nothing else is left
    out (the first one stays). Cells may come from anywhere: see `printable`.
    """
    body = [[printable(" ".join(cell.split())) for cell in row] for row in rows]
    kept = [
        column
        for column in range(len(headers))
        if column == 0 or unused is None or any(row[column] != unused for row in body if column < len(row))
    ]
    grid = [list(headers), *body]
    aligned = [len(row) if len(row) == len(headers) else len(row) - 1 for row in grid]
    widths = {
        column: max(len(row[column]) for row, end in zip(grid, aligned, strict=True) if column < end) for column in kept
    }
    lines = []
    for row, end in zip(grid, aligned, strict=True):
        cells = [
            row[column].rjust(widths[column]) if column in right and column < end else row[column].ljust(widths[column])
            for column in kept
            if column < len(row)
        ]
        lines.append("  ".join(cells).rstrip())
    return lines


def size(number: float) -> str:
    """A number of bytes, in units of a thousand: `512 B`, `1.5 KB`, `3.2 GB`."""
    if round(number) < 1000:
        return f"{number:.0f} B"
    for unit in ("KB", "MB", "GB"):
        number /= 1000
        # What rounds to 1000.0 belongs to the next unit.
        if round(number, 1) < 1000:
            return f"{number:.1f} {unit}"
    return f"{number / 1000:,.1f} TB"


def count(number: int, noun: str) -> str:
    """A number and what it counts: `1 branch`, `2 branches`, `1,200 tokens`, `0 families`."""
    if number == 1:
        return f"1 {noun}"
    if re.search(r"(s|x|sh|ch)$", noun):
        plural = f"{noun}es"
    elif re.search(r"[^aeiou]y$", noun):
        plural = f"{noun[:-1]}ies"
    else:
        plural = f"{noun}s"
    return f"{number:,} {plural}"


def some(names: Iterable[object], limit: int = 3) -> str:
    """The first few of `names` and how many there are besides: `a, b, c and 5 more`."""
    listed = [cut(printable(str(name)), LONGEST_NAME) for name in names]
    rest = len(listed) - limit
    return ", ".join(listed[:limit]) + (f" and {rest:,} more" if rest > 0 else "")


def spans(numbers: Iterable[int]) -> str:
    """Numbers in ascending order, neighbours together: `0-3, 7`."""
    found: list[list[int]] = []
    for number in numbers:
        if found and number == found[-1][-1] + 1:
            found[-1].append(number)
        else:
            found.append([number])
    return ", ".join(f"{one[0]}-{one[-1]}" if len(one) > 1 else str(one[0]) for one in found)


def cut(text: str, limit: int) -> str:
    """A text of at most `limit` characters: a longer one loses its middle, since both of its ends tell what it is."""
    if len(text) <= limit:
        return text
    end = limit // 3
    return f"{text[: limit - end - len(ELLIPSIS)].rstrip()}{ELLIPSIS}{text[len(text) - end :].lstrip()}"


def one_line(error: object, limit: int = 300) -> str:
    """What an exception (or any text) says, as one line without its full stop; the exception's name if it is silent."""
    # Of a text without end the ends are enough, before every word of it is looked at.
    text = cut(str(error), 100 * limit)
    return cut(printable(" ".join(text.split())), limit).rstrip(".") or type(error).__name__


def install_extra(name: str) -> str:
    """How to install one of the package's extras: by its name, or from a clone, whose constraints name the torch."""
    return f"pip install 'ropewalk[{name}]' (in a clone: pip install -c constraints.txt -e '.[{name}]')"


def simplified(name: str, keep: str = "._-") -> str:
    """A name in which whatever is not an ASCII letter, a digit or one of `keep` became `_`: not unique."""
    return re.sub(rf"[^A-Za-z0-9{re.escape(keep)}]+", "_", name)


def slug(name: str) -> str:
    """A name as a file's or a folder's name on any system: the same one for the same name only.

    A name of at most 80 ASCII letters, digits, `.`, `_` and `-` stays as it is. One that loses something, or that some
    system keeps for itself, ends in `-` and eight digits of its SHA-256.
    """
    kept = simplified(name)
    stem = kept.strip(".")
    reserved = re.fullmatch(DEVICES, stem.split(".")[0], re.IGNORECASE)
    if kept == name and len(name) <= LONGEST_SLUG and not reserved and name == name.rstrip(".") != "":
        return name
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    stem = f"_{stem}" if reserved else stem
    return f"{stem[: LONGEST_SLUG - 9] or '_'}-{digest}"
