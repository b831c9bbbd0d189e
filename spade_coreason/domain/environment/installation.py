"""The installation of the package, as messages about a missing extra name it."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from urllib.parse import unquote, urlsplit

_DISTRIBUTION = "spade-coreason"
_PLACEHOLDER = Path("/path/to/the/checkout")


def install_hint(extra: str) -> str:
    """Return the command that installs an extra, quoted for a shell: `pip install '/path/to/the/checkout[llm]'`.

    The path is that of the directory from which the package was installed. If it was installed otherwise, or the directory is
    gone, the path is the placeholder above.
    """
    return f"pip install {shlex.quote(f'{_find_checkout() or _PLACEHOLDER}[{extra}]')}"


def _find_checkout() -> Path | None:
    """Return the directory from which the package was installed, editable or not (PEP 610). None if there is none."""
    from importlib.metadata import PackageNotFoundError, distribution  # here, because it takes long to import

    try:
        origin = json.loads(distribution(_DISTRIBUTION).read_text("direct_url.json") or "{}")
        url = urlsplit(origin["url"])
    except (PackageNotFoundError, OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    path = Path(unquote(url.path))
    return path if "dir_info" in origin and url.scheme == "file" and path.is_dir() else None
