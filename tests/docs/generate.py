"""Write the parts of the reference that come from the code: `python -m tests.docs.generate`.

A page holds the place of such a part: `<!-- generated: NAME -->`, and `<!-- end -->` after it. A test compares the parts with
the code.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from tests.docs import (
    cli_reference,
    errors_reference,
    events_reference,
    metrics_reference,
    operations_reference,
    settings_reference,
)
from tests.docs.pages import DOCS, ROOT

PARTS: dict[str, Callable[[], str]] = {
    "settings": settings_reference.to_markdown,
    "commands": cli_reference.to_markdown,
    "global options": cli_reference.global_options,
    "request": events_reference.request_markdown,
    "batch": events_reference.batch_markdown,
    "stanza": events_reference.stanza_markdown,
    "events": events_reference.to_markdown,
    "fragment": events_reference.fragment_markdown,
    "exceptions": errors_reference.exceptions_table,
    "codes": errors_reference.codes_table,
    "exit codes": errors_reference.exit_codes_table,
    "operations": operations_reference.to_markdown,
    "metrics": metrics_reference.to_markdown,
}
REFERENCE_YAML = ROOT / "config" / "reference.yaml"
_PART = re.compile(r"^<!-- generated: ([a-z ]+) -->\n.*?^<!-- end -->$", re.M | re.S)


def build_files() -> dict[Path, str]:
    """Return the files with generated parts, as they should be."""
    files = {REFERENCE_YAML: settings_reference.to_yaml()}
    for page in sorted((DOCS / "reference").glob("*.md")):
        text = page.read_text(encoding="utf-8")
        current = _PART.sub(lambda part: f"<!-- generated: {part[1]} -->\n\n{PARTS[part[1]]()}\n\n<!-- end -->", text)
        if _PART.search(text):
            files[page] = current
    return files


def main() -> None:
    """Write the files that are not current."""
    for path, text in build_files().items():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
            print(f"wrote {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
