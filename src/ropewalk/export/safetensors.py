"""Statistics as one safetensors file: our own format, sealed."""

from pathlib import Path

from safetensors.numpy import save

from ropewalk.export.arrays import ENTRY, Precision, check_target, header, statistics_arrays
from ropewalk.export.formats import Format
from ropewalk.export.source import Source
from ropewalk.files import write_bytes
from ropewalk.seals import seal

SUFFIX = ".safetensors"


def write(source: Source, path: Path, options: Precision) -> list[Path]:
    """Write the file; it must not be there yet."""
    check_target(path, SUFFIX)
    arrays = statistics_arrays(source, options.dtype)
    write_bytes(path, seal(save(arrays, metadata={ENTRY: header(source, options.dtype)})))
    return [path]


FORMAT = Format("safetensors", "means, covariances and frame sums, one file", Precision, write)
