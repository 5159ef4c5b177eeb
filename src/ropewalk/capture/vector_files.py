"""One file of vectors, `data.parquet` of a head: checked before it is believed, and streamed."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ropewalk.errors import RopewalkError
from ropewalk.reading import START, named, not_text, open_regular, unreadable
from ropewalk.text import cut, some

REQUIRED = ("position", "example_id", "vector")
OPTIONAL = ("sliding_window",)
ROWS = 4096
BUFFER = 1 << 20
"""Rows and bytes read at once: what bounds the memory, whatever the size of a file."""
LONGEST_VECTOR = 4096
"""Numbers of a vector, several times those of any model: sums grow with the square of it."""
LARGEST = float(np.finfo(np.float32).max)
"""What a model can compute: squares and fourth powers of larger numbers do not fit into sums."""
LONGEST_WINDOW = 2**31
AGAIN = "capture this head again"


def check_file(path: Path) -> None:
    """Find what is wrong with a file without reading its rows: whether it can be opened, its columns, their types."""
    file = _open(path)
    rows = file.metadata.num_rows
    leaf = next(i for i in range(len(file.schema.names)) if file.schema.column(i).path.split(".")[0] == "vector")
    values = sum(file.metadata.row_group(i).column(leaf).num_values for i in range(file.metadata.num_row_groups))
    if rows and values / rows > LONGEST_VECTOR:
        raise RopewalkError(
            f"{named(path)} holds vectors of {values // rows:,} numbers, and {LONGEST_VECTOR:,} are the most: {AGAIN}"
        )


def batches(path: Path, columns: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    """Columns of a file as arrays, a few thousand rows at a time: vectors [rows, d] and positions as float64."""
    file = _open(path)
    names = file.schema_arrow.names
    try:
        for batch in file.iter_batches(batch_size=ROWS, columns=[column for column in columns if column in names]):
            if batch.num_rows:
                yield {name: READERS[name](path, batch.column(name)) for name in batch.schema.names}
    except (pa.ArrowException, OSError, ValueError, MemoryError) as error:
        raise _refused(path, error) from error


def _open(path: Path) -> pq.ParquetFile:
    try:
        with open_regular(path) as file:
            other = not_text(file.read(START))
        if other and "compressed" in other:
            raise RopewalkError(f"{named(path)} {other}")
        # A buffer makes the reader stream a column; without one it loads whole row groups, which may be the whole file.
        opened = pq.ParquetFile(path, buffer_size=BUFFER, pre_buffer=False, page_checksum_verification=True)
        schema = opened.schema_arrow
    except (pa.ArrowException, OSError, ValueError, MemoryError) as error:
        raise _refused(path, error) from error
    names = schema.names
    for column in REQUIRED:
        if column not in names:
            raise RopewalkError(
                f"{named(path)} has no column {column!r} (it has: {cut(some(names, 10), 200)}): {AGAIN}"
            )
    for column in (*REQUIRED, *OPTIONAL):
        if names.count(column) > 1:
            raise RopewalkError(f"{named(path)} has the column {column!r} {names.count(column)} times: {AGAIN}")
        if column in names:
            _check_type(path, column, schema.field(column).type)
    return opened


def _refused(path: Path, error: BaseException) -> RopewalkError:
    if isinstance(error, OSError) and (error.errno is not None or error.strerror is not None):
        return unreadable(path, error, "mend it, or leave its head out of capture.pairs")
    return RopewalkError(f"{named(path)} is not a Parquet file that can be read: fetch it again")


def _check_type(path: Path, column: str, kind: Any) -> None:
    shown = cut(str(kind), 80)
    if column == "vector" and not (_is_list(kind) and _is_number(kind.value_type)):
        raise RopewalkError(f"{named(path)} holds {shown} in the column 'vector', not lists of numbers: {AGAIN}")
    if column == "position" and not _is_number(kind):
        raise RopewalkError(f"{named(path)} holds {shown} or missing values in the column 'position': {AGAIN}")
    if column == "example_id" and not (_is_number(kind) or _is_text(kind)):
        raise RopewalkError(
            f"{named(path)} holds {shown} or missing values in the column 'example_id', where whole numbers or text "
            f"belong: {AGAIN}"
        )
    if column == "sliding_window" and not (_is_number(kind) or pa.types.is_null(kind)):
        raise RopewalkError(f"{named(path)} holds {shown} in the column 'sliding_window', not numbers: {AGAIN}")


def _vectors(path: Path, column: Any) -> Any:
    lengths = pc.unique(pc.list_value_length(column)).to_pylist()
    if len(lengths) != 1 or not lengths[0]:
        raise RopewalkError(
            f"{named(path)} holds vectors of different lengths: every vector of a head must have head_dim numbers"
        )
    if lengths[0] > LONGEST_VECTOR:
        raise RopewalkError(
            f"{named(path)} holds vectors of {lengths[0]:,} numbers, and {LONGEST_VECTOR:,} are the most: {AGAIN}"
        )
    # Larger numbers of another type become infinite, which is said below.
    with np.errstate(over="ignore", invalid="ignore"):
        values = column.flatten().to_numpy(zero_copy_only=False).astype(np.float64).reshape(len(column), -1)
    _check_finite(path, "vector", values)
    if np.abs(values).max() > LARGEST:
        raise RopewalkError(
            f"{named(path)} holds numbers beyond {LARGEST:.1e} in the column 'vector', which no model computes: {AGAIN}"
        )
    return values


def _positions(path: Path, column: Any) -> Any:
    values = column.to_numpy(zero_copy_only=False).astype(np.float64)
    _check_finite(path, "position", values)
    broken = values[values % 1 != 0]
    if len(broken):
        raise RopewalkError(f"{named(path)} holds position {broken[0]:g}, which is not a whole number: {AGAIN}")
    return values


def _ids(path: Path, column: Any) -> Any:
    """Ids as whole numbers or as text: what is sorted, and written down, as it stands."""
    if column.null_count:
        raise RopewalkError(f"{named(path)} holds {column.type} or missing values in the column 'example_id': {AGAIN}")
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    values = column.to_numpy(zero_copy_only=False)
    if pa.types.is_floating(column.type):
        values = values.astype(np.float64)
        if not (np.isfinite(values).all() and (values % 1 == 0).all() and (np.abs(values) < 2**53).all()):
            raise RopewalkError(f"{named(path)} holds numbers that are not whole in the column 'example_id': {AGAIN}")
        values = values.astype(np.int64)
    return values


def _windows(path: Path, column: Any) -> Any:
    values = np.array([math.nan if value is None else float(value) for value in column.to_pylist()])
    known = values[~np.isnan(values)]
    if not np.isfinite(known).all() or (known >= LONGEST_WINDOW).any():
        raise RopewalkError(f"{named(path)} holds a sliding_window that is longer than any document: {AGAIN}")
    return values


READERS = {"vector": _vectors, "position": _positions, "example_id": _ids, "sliding_window": _windows}
"""By column: how it becomes an array, or a sentence on what it holds instead."""


def _check_finite(path: Path, name: str, values: Any) -> None:
    if not np.isfinite(values).all():
        raise RopewalkError(f"{named(path)} holds NaN or infinite numbers in the column {name!r}: {AGAIN}")


def _is_list(kind: Any) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _is_number(kind: Any) -> bool:
    return bool(pa.types.is_floating(kind) or pa.types.is_integer(kind))


def _is_text(kind: Any) -> bool:
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))
