"""The pictures of the documentation: how they are made, that they fit, and the warning about old ones."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
import termios
from dataclasses import asdict
from pathlib import Path
from xml.etree import ElementTree

import pytest
from pydantic import ValidationError

from benchmarks.speed import Measured
from tests.docs.pictures import manifest, page, plots
from tests.docs.pictures.play import HIDE, SHOW
from tests.docs.pictures.record import Event, edit
from tests.docs.pictures.scenario import ROOT, Step, find_scenarios, read_scenario
from tests.support.wait import TIMEOUT_S

ALL_BYTES, ANIMATED_BYTES, PAGE_BYTES = 2_000_000, 1_000_000, 100_000


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout with an agent, and a picture of it."""
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True, timeout=TIMEOUT_S)
    (tmp_path / "agents").mkdir()
    (tmp_path / "agents/notes.py").write_text("one")
    (tmp_path / "demo.svg").write_text("<svg/>")
    manifest.note(tmp_path, "demo.svg", ["agents"])
    return tmp_path


def test_a_new_picture_is_not_warned_of(checkout: Path) -> None:
    os.utime(checkout / "agents/notes.py", (0, 0))
    assert manifest.warn(checkout, ["demo.svg"]) == []


@pytest.mark.parametrize("change", ["edit", "add", "remove", "rename"])
def test_a_picture_that_is_older_than_what_it_shows_is_warned_of(checkout: Path, change: str) -> None:
    file = checkout / "agents/notes.py"
    match change:
        case "edit":
            file.write_text("two")
        case "add":
            (checkout / "agents/relay.py").write_text("")
        case "remove":
            file.unlink()
        case "rename":
            file.rename(checkout / "agents/memo.py")
    assert manifest.warn(checkout) == ["demo.svg is older than what it shows (agents). `make pictures` makes it anew."]
    manifest.note(checkout, "demo.svg", ["agents"])
    assert manifest.warn(checkout) == []


def test_missing_pictures_are_warned_of(checkout: Path) -> None:
    (checkout / "demo.svg").unlink()
    assert manifest.warn(checkout, ["other.svg"]) == [
        "demo.svg is missing. `make pictures` makes it.",
        "other.svg was never made. `make pictures` makes it.",
    ]


def test_the_check_warns_and_does_not_fail() -> None:
    command = [sys.executable, "-m", "tests.docs.pictures", "check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=4 * TIMEOUT_S)
    assert (done.returncode, done.stderr) == (0, "")
    assert all(
        re.fullmatch(r"warning: .*`make (bench-)?pictures` makes it( anew)?\.", line) for line in done.stdout.splitlines()
    )


def test_pictures_are_small_and_load_nothing_from_elsewhere() -> None:
    pictures = [*ROOT.glob("docs/assets/*.svg"), *ROOT.glob("examples/*/*.svg")]
    assert {"approval.svg", "demo.svg", "profanity.svg"} <= {picture.name for picture in pictures}
    sizes = [picture.stat().st_size for picture in pictures]
    assert max(sizes) <= ANIMATED_BYTES
    assert sum(sizes) <= ALL_BYTES
    for picture in pictures:
        text = picture.read_text(encoding="utf-8")
        ElementTree.fromstring(text)
        assert "viewBox=" in text.partition(">")[0], picture
        assert not re.search(r'(href|src)="(?!#)|url\((?!#)|@import|<script', text), picture


def test_pictures_of_the_page_are_small_and_a_page_shows_each() -> None:
    guide = (ROOT / "docs/how-to/chat-in-the-browser.md").read_text(encoding="utf-8")
    for picture in page.PICTURES:
        assert (ROOT / picture).stat().st_size <= PAGE_BYTES, picture
        assert f"](../assets/{Path(picture).name})" in guide
    assert [place for place in page.SHOWS if not (ROOT / place).exists()] == []


def test_each_scenario_can_be_read_and_shows_what_exists() -> None:
    for scenario in find_scenarios():
        assert scenario.directory.is_dir(), scenario.file
        assert [place for place in scenario.shows if not (ROOT / place).exists()] == [], scenario.file


@pytest.mark.parametrize("step", [{}, {"type": "ls", "key": "tab"}, {"key": "f13"}, {"type": "ls", "waits": "x"}])
def test_a_wrong_step_is_an_error(step: dict[str, str]) -> None:
    with pytest.raises(ValidationError):
        Step.model_validate(step)


def test_hidden_parts_and_long_waits_take_no_time() -> None:
    events = [
        Event(0.0, HIDE),
        Event(1.0, "secret"),
        Event(20.0, f"\x1b[2J$ {SHOW}"),
        Event(21.0, "ls\r\n"),
        Event(21.01, "file"),
        Event(80.0, "end"),
    ]
    assert edit(events) == [
        Event(0.0, "secret\x1b[2J$ "),
        Event(1.0, "ls\r\nfile"),
        Event(2.21, "end"),
        Event(6.21, "\x1b[?25l"),
    ]


def test_a_recording_begins_with_its_last_screen_and_stays_there_for_people_who_want_less_motion() -> None:
    moving = [ROOT / "docs/assets/approval.svg", ROOT / "docs/assets/demo.svg", *ROOT.glob("examples/*/recording.svg")]
    for picture in moving:
        text = picture.read_text(encoding="utf-8")
        [animation] = re.findall(r"\.\w+\{animation-delay:-[^}]*\}", text)
        settings = dict(setting.split(":", 1) for setting in animation.partition("{")[2].rstrip("}").split(";"))
        screens = re.findall(r"([\d.]+)%\{transform:([^}]*)\}", text)
        assert settings["transform"] == screens[-1][1], picture
        # A screen stays until the next one begins. The last that is seen began before the picture does.
        shown = float(settings["animation-delay"].strip("-s")) / float(settings["animation-duration"].strip("s")) * 100
        assert float(screens[-2][0]) <= shown < 100, picture
        assert re.search(r"@media \(prefers-reduced-motion:reduce\)\{\.\w+\{animation:none\}\}", text), picture


def play(tmp_path: Path, steps: str) -> tuple[str, str]:
    """Play a scenario on a terminal. Return what it showed, and why it failed."""
    scenario, log, home = tmp_path / "recording.yaml", tmp_path / "log", tmp_path / "home"
    scenario.write_text(f"title: a test\nsteps:\n{steps}")
    log.touch()
    home.mkdir()
    controller, terminal = pty.openpty()
    termios.tcsetwinsize(terminal, (24, 90))
    arguments = [str(scenario), str(tmp_path), str(home), str(log)]
    player = subprocess.Popen([sys.executable, "-m", "tests.docs.pictures.play", *arguments], cwd=ROOT, stdout=terminal)
    os.close(terminal)
    shown = b""
    try:
        while data := os.read(controller, 65536):
            shown += data
    except OSError:  # its end
        pass
    os.close(controller)
    assert player.wait(4 * TIMEOUT_S) == 0
    return shown.decode(), log.read_text()


def test_a_scenario_is_typed_into_a_real_shell(tmp_path: Path) -> None:
    steps = "- {hidden: true, type: 'X=42'}\n- {type: 'echo $((X * 2)); sleep 1000 & echo $! >pid', wait: '84', pause: 0}\n"
    shown, failure = play(tmp_path, steps)
    assert failure == ""
    visible = shown.rpartition(SHOW)[2]
    assert "X=42" not in visible
    assert re.search(r"echo \$\(\(X \* 2\)\).*\r\n.*84\r\n", visible, re.S)
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}").exists()


def test_a_text_that_does_not_appear_fails_with_what_appeared_instead(tmp_path: Path) -> None:
    _, failure = play(tmp_path, "- {type: echo one two, wait: [two, one], timeout: 0.5}\n")
    assert failure.startswith("two … one does not appear within 0.5 s, but:")
    assert "one two" in failure


def test_the_benchmarks_are_drawn_from_the_figures_of_a_run(tmp_path: Path) -> None:
    (tmp_path / "docs/assets").mkdir(parents=True)
    raw = Measured(5000, 1.0, 100, 1.0, 0.5, 1.0, 1.0)
    hosted = Measured(4250, 0.85, 143, 1.43, 0.9, 1.75, 2.0)
    measured = {"slixmpp": asdict(raw), "SPADE": asdict(raw), "hosted": asdict(hosted)}
    figures = {
        "made": {"date": "2030-01-02", "commit": "abc"},
        "machine": {"cpu": "A <fast> one", "cores": 2, "python": "3.11.2"},
        "speed": {"prosody": {"measured": measured, "rounds": {"hosted": []}}},
        "memory": {"add_us": {"a turn": {"100": 30.0, "100000": 40.0}}, "peer_us": 32000.0},
        "recall": {"by_words_ms": 1.0},
    }
    (tmp_path / "run.json").write_text(json.dumps(figures))
    plots.keep(tmp_path / "run.json", tmp_path)
    assert "rounds" not in (tmp_path / plots.FIGURES).read_text()
    assert plots.draw_all(tmp_path) == [plots.SPEED, plots.MEMORY]
    speed, memory = (list(ElementTree.parse(tmp_path / name).getroot().itertext()) for name in (plots.SPEED, plots.MEMORY))
    assert {"0.85", "1.43", "1.75", "spade_coreason, Prosody", "SPADE, Prosody"} <= set(speed)
    assert "2030-01-02, commit abc, 2 cores of A <fast> one, Python 3.11.2" in speed
    assert {"a turn", "800"} <= set(memory)


def test_a_scenario_beside_an_example_becomes_a_picture_beside_it(tmp_path: Path) -> None:
    file = tmp_path / "recording.yaml"
    file.write_text("title: an example\nsteps: [{type: ls}]\n")
    scenario = read_scenario(file)
    assert scenario.picture == tmp_path / "recording.svg"
    assert scenario.directory == tmp_path
