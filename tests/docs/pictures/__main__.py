"""`python -m tests.docs.pictures`: make pictures, and check if they are older than what they show.

record [SCENARIO …]    play scenarios, by default all, and draw them
page                   take those of the page in the browser
draw [FIGURES]         draw the benchmarks; FIGURES is a new file of `python -m benchmarks --json`
check                  warn of pictures that are older than what they show
"""

from __future__ import annotations

import sys
from pathlib import Path

from . import manifest, plots
from .record import RecordingError, record
from .scenario import ROOT, Scenario, find_scenarios, read_scenario

_PLOTTED = (plots.FIGURES, "tests/docs/pictures/plots.py")


def main(arguments: list[str]) -> int:
    """Do what the command line says."""
    match arguments:
        case ["record", *names]:
            return _record([read_scenario(Path(name)) for name in names] or find_scenarios())
        case ["page"]:
            from . import page  # the checks need no browser

            page.take()
            for picture in page.PICTURES:
                _finish(picture, page.SHOWS)
            return 0
        case ["draw", *names]:
            for name in names:
                plots.keep(Path(name), ROOT)
            if (ROOT / plots.FIGURES).exists():
                for picture in plots.draw_all(ROOT):
                    _finish(picture, _PLOTTED)
            return 0
        case ["check"]:
            for line in manifest.warn(ROOT, [_place(scenario.picture) for scenario in find_scenarios()]):
                print(f"warning: {line}")
            return 0
    print(__doc__, file=sys.stderr)
    return 2


def _record(scenarios: list[Scenario]) -> int:
    try:
        for scenario in scenarios:
            _finish(_place(record(scenario)), scenario.shows)
    except RecordingError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _finish(picture: str, shows: list[str] | tuple[str, ...]) -> None:
    manifest.note(ROOT, picture, shows)
    print(f"{picture}: {(ROOT / picture).stat().st_size:,} bytes", flush=True)


def _place(picture: Path) -> str:
    return picture.relative_to(ROOT).as_posix()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
