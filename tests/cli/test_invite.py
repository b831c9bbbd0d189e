"""`invite`: the URI of an agent, and a QR code that a real decoder reads."""

from __future__ import annotations

import json
import re
from contextlib import closing
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import numpy.typing as npt
import pytest
import zxingcpp
from PIL import Image

from spade_coreason.domain.texts.xmpp_uri import format_contact_uri
from tests.cli.conftest import Invoke
from tests.support.program import run_command
from tests.support.terminal import Terminal

CONFIGURATION = """
server: {mode: external, domain: example.org}
agents:
  - {jid: weather@example.org, agent: "weather:weather", password: "${NO_SUCH_VARIABLE}"}
  - {jid: echo@example.org, agent: "spade_coreason.agents.echo:EchoAgent", password: "${NO_SUCH_VARIABLE}"}
  - {jid: twin@example.org, agent: "weather:weather", password: "${NO_SUCH_VARIABLE}"}
  - {jid: twin@example.net, agent: "weather:weather", password: "${NO_SUCH_VARIABLE}"}
"""
URI = "xmpp:weather@example.org?roster"
SCALE = 6
"""Pixels of a module of a picture that is made here."""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "platform.yaml").write_text(CONFIGURATION)
    return tmp_path


def decode(picture: npt.NDArray[np.uint8] | Image.Image, *, inverts: bool = False) -> str:
    """Decode the only QR code of a picture, as a scanner does. Without `inverts` it has to be dark on light."""
    [code] = zxingcpp.read_barcodes(picture, try_invert=inverts)
    return str(code.text)


def draw(rows: list[list[bool]]) -> npt.NDArray[np.uint8]:
    """Draw modules, True is dark, on a grey ground."""
    code = np.where(np.array(rows), 0, 255).astype(np.uint8)
    return np.pad(code.repeat(SCALE, 0).repeat(SCALE, 1), SCALE, constant_values=128)


def read_terminal(screen: str, foreground: int, background: int) -> list[list[bool]]:
    """Turn the blocks on a terminal with these colours, 0 is black, into modules: True is dark. Leave out other lines."""
    rows: list[list[bool]] = []
    for line in screen.replace("\r", "").split("\n"):
        lit, ground = foreground, background
        upper: list[bool] = []
        lower: list[bool] = []
        for sequence, colours, character in re.findall(r"(\x1b\[([\d;]+)m)|([ ▀▄█])", line):
            if sequence:
                lit, ground = {"38;5;231;48;5;16": (255, 0), "0": (foreground, background)}[colours]
            else:
                upper.append((lit if character in "▀█" else ground) < 128)
                lower.append((lit if character in "▄█" else ground) < 128)
        if re.search("[▀▄█]", line):
            rows += [upper, lower]
    return rows


def read_svg(file: Path) -> list[list[bool]]:
    """Read the modules of an SVG, whose path has a horizontal stroke for each run of dark modules."""
    root = ElementTree.parse(file).getroot()
    [path] = root.iter("{http://www.w3.org/2000/svg}path")
    scale = re.search(r"\d+", path.attrib["transform"])
    assert scale is not None
    side = int(root.attrib["width"]) // int(scale[0])
    rows = [[False] * side for _ in range(side)]
    x = y = 0.0
    for kind, numbers in re.findall(r"([Mmh])([^Mmhz]*)", path.attrib["d"]):
        first, *rest = (float(number) for number in re.findall(r"-?[\d.]+", numbers))
        match kind:
            case "M":
                x, y = first, rest[0]
            case "m":
                x, y = x + first, y + rest[0]
            case "h":
                for column in range(int(x), int(x + first)):
                    rows[int(y)][column] = True
                x += first
    return rows


@pytest.mark.parametrize(
    ("jid", "uri"),
    [
        ("weather@example.org", URI),
        ("weather@example.org/agent", URI),
        ("a.b-c_d~e@example.org", "xmpp:a.b-c_d~e@example.org?roster"),
        ("we;a?t#h%r@example.org", "xmpp:we%3Ba%3Ft%23h%25r@example.org?roster"),
        ("día+1=2@exämple.org", "xmpp:d%C3%ADa%2B1%3D2@ex%C3%A4mple.org?roster"),
        ("weather@[::1]", "xmpp:weather@[::1]?roster"),
    ],
)
def test_odd_characters_of_a_jid_are_percent_encoded(jid: str, uri: str) -> None:
    assert format_contact_uri(jid) == uri


def test_the_name_of_the_contact_cannot_add_anything_else_to_the_uri() -> None:
    assert format_contact_uri("a@example.org", "Sun & rain;x=1") == "xmpp:a@example.org?roster;name=Sun%20%26%20rain%3Bx%3D1"


@pytest.mark.parametrize("agent", ["weather", "Weather", "weather@example.org", "Weather@Example.org/agent"])
def test_through_a_pipe_there_is_only_the_uri_and_no_password_is_needed(project: Path, agent: str) -> None:
    done = run_command("invite", agent, cwd=project)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{URI}\n", "")


@pytest.mark.parametrize(("foreground", "background"), [(255, 0), (0, 255)], ids=["dark", "light"])
@pytest.mark.parametrize("agent", ["weather@example.org", "we;a?t#h%r@exämple.net", f"{'x' * 200}@example.com"])
def test_the_code_on_a_dark_and_on_a_light_terminal_is_read(
    project: Path, agent: str, foreground: int, background: int
) -> None:
    with closing(Terminal("invite", agent, cwd=project, env={"NO_COLOR": ""})) as terminal:
        assert terminal.wait_for_end() == 0
        uri, *_ = terminal.screen.splitlines()
        assert uri == format_contact_uri(agent)
        assert decode(draw(read_terminal(terminal.screen, foreground, background))) == uri
        assert terminal.screen.splitlines()[-1].startswith("Scan it with ")


def test_without_colours_the_code_is_read_on_a_dark_terminal_and_inverted_on_a_light_one(project: Path) -> None:
    with closing(Terminal("invite", "weather", cwd=project, env={"NO_COLOR": "1"})) as terminal:
        assert terminal.wait_for_end() == 0
        assert "\x1b" not in terminal.screen
        assert decode(draw(read_terminal(terminal.screen, 255, 0))) == URI
        assert decode(draw(read_terminal(terminal.screen, 0, 255)), inverts=True) == URI


@pytest.mark.parametrize(
    ("columns", "env", "problem"),
    [
        (30, {}, "warning: the terminal is too narrow for the QR code, which has 37 columns"),
        (
            100,
            {"PYTHONIOENCODING": "latin-1"},
            "warning: the terminal cannot show the QR code, because its encoding is not UTF-8",
        ),
    ],
    ids=["narrow", "latin-1"],
)
def test_a_terminal_that_cannot_show_the_code_gets_the_uri_and_the_remedy(
    project: Path, columns: int, env: dict[str, str], problem: str
) -> None:
    with closing(Terminal("invite", "weather", cwd=project, env=env, columns=columns)) as terminal:
        assert terminal.wait_for_end() == 0
        uri, warning = terminal.screen.splitlines()
    assert uri == URI
    assert warning.startswith(problem)
    assert warning.endswith("--png FILE")


def test_the_pictures_are_read(project: Path) -> None:
    done = run_command("invite", "weather", "--name", "Wetter ☀", "--png", "a.png", "--svg", "a.svg", cwd=project)
    uri = "xmpp:weather@example.org?roster;name=Wetter%20%E2%98%80"
    assert (done.returncode, done.stdout) == (0, f"{uri}\n")
    with Image.open(project / "a.png") as picture:
        assert decode(picture) == uri
    assert decode(draw(read_svg(project / "a.svg"))) == uri


def test_programs_get_json(project: Path) -> None:
    done = run_command("invite", "weather", "--json", cwd=project)
    assert json.loads(done.stdout) == {"jid": "weather@example.org", "uri": URI, "is_local": False}


@pytest.mark.parametrize("domain", ["localhost", "agents.localhost", "127.0.0.1", "[::1]"])
def test_it_says_that_no_phone_reaches_this_machine(invoke: Invoke, domain: str) -> None:
    result = invoke("invite", f"weather@{domain}")
    assert (result.exit_code, result.stdout) == (0, f"xmpp:weather@{domain}?roster\n")
    assert result.stderr.startswith(f"warning: {domain} is this machine only, and no phone reaches it; put the agent on ")
    assert json.loads(invoke("invite", f"weather@{domain}", "--json").stdout)["is_local"]


def test_the_agents_are_those_of_the_running_platform(invoke_beside_platform: Invoke) -> None:
    assert invoke_beside_platform("invite", "echo").stdout == "xmpp:echo@localhost?roster\n"
    result = invoke_beside_platform("invite", "moddy")
    assert result.exit_code == 2
    assert 'no agent "moddy"; did you mean moody@localhost? the agents are echo@localhost, notes@localhost, ' in result.stderr


@pytest.mark.parametrize(
    ("agent", "problem"),
    [
        (
            "wether",
            'error: AGENT: there is no agent "wether"; did you mean weather@example.org? the agents are weather@',
        ),
        (
            "wether@example.org",
            'error: AGENT: there is no agent "wether@example.org"; did you mean weather@example.org? ',
        ),
        ("zzz", 'error: AGENT: there is no agent "zzz"; the agents are weather@example.org, echo@example.org, '),
        ("twin", 'error: AGENT: "twin" may be twin@example.org or twin@example.net; write the whole JID'),
        ("a b@example.org", "error: AGENT: 'a b@example.org' is not a JID: ' ' is not allowed before the @; "),
    ],
)
def test_an_agent_that_is_not_there_is_one_line(project: Path, agent: str, problem: str) -> None:
    done = run_command("invite", agent, cwd=project)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(problem)
    assert done.stderr.count("\n") == 1


def test_a_name_alone_needs_a_platform_or_a_configuration(invoke: Invoke) -> None:
    result = invoke("invite", "weather")
    assert (result.exit_code, result.stdout) == (2, "")
    assert 'no agents are known here, so "weather" is not enough; start the platform' in result.stderr


def test_a_picture_that_cannot_be_written_is_one_line(project: Path) -> None:
    done = run_command("invite", "weather", "--png", "missing/a.png", cwd=project)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", "error: missing/a.png: No such file or directory\n")
    done = run_command("invite", "weather", "--name", "x" * 3000, "--svg", "a.svg", cwd=project)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "error: 3037 characters are too many for a QR code; choose a shorter name\n"
