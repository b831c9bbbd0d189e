"""The list of pictures with what each shows, and the check whether that has changed since.

`docs/assets/pictures.json` has a digest of each file and folder that a picture shows, as they were when it was made. Neither
times of files nor the history of the repository count.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from .project import list_files

MANIFEST = "docs/assets/pictures.json"


def note(root: Path, picture: str, shows: Sequence[str]) -> None:
    """Write down that a picture shows these files and folders as they are now."""
    file = root / MANIFEST
    noted = _read(root) | {picture: {"shows": {place: _digest(root, place) for place in shows}}}
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(dict(sorted(noted.items())), indent=2) + "\n", encoding="utf-8")


def warn(root: Path, planned: Sequence[str] = ()) -> list[str]:
    """Return a line for each picture that is older than what it shows, that is missing, or that was never made."""
    if not (root / ".git").exists():
        return []
    lines = []
    noted = _read(root)
    for picture, entry in noted.items():
        changed = [place for place, digest in entry["shows"].items() if _digest(root, place) != digest]
        if not (root / picture).is_file():
            lines.append(f"{picture} is missing. `make pictures` makes it.")
        elif changed:
            lines.append(f"{picture} is older than what it shows ({', '.join(changed)}). `{remedy(picture)}` makes it anew.")
    lines += [f"{picture} was never made. `make pictures` makes it." for picture in planned if picture not in noted]
    return lines


def remedy(picture: str) -> str:
    """Return the command that makes a picture."""
    return "make bench-pictures" if picture.startswith("docs/assets/benchmark") else "make pictures"


def _read(root: Path) -> dict[str, dict[str, dict[str, str]]]:
    file = root / MANIFEST
    noted: dict[str, dict[str, dict[str, str]]] = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    return noted


def _digest(root: Path, place: str) -> str:
    """Digest the names and contents of all files of a place but pictures."""
    digest = hashlib.sha256()
    for file in list_files(root, [place]):
        if file.suffix != ".svg":
            content = hashlib.sha256(file.read_bytes()).hexdigest()
            digest.update(f"{file.relative_to(root).as_posix()} {content}\n".encode())
    return digest.hexdigest()[:16]
