"""docker/, tested without an engine: every file that it names exists, and its commands run one by one on this machine."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import tomllib
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from spade_coreason import AgentClient
from spade_coreason.exceptions import LoginError
from spade_coreason.xmpp import ServerEndpoint
from spade_coreason.xmpp.servers.process import find_free_ports
from tests.docs.pages import read_page
from tests.support.program import run_command, run_in_background
from tests.support.servers.clients import StockClient
from tests.support.servers.requirements import find_program, require
from tests.support.wait import TIMEOUT_S

ROOT = Path(__file__).parents[1]
DOCKER = ROOT / "docker"
DOCKERFILES = [DOCKER / "Dockerfile", DOCKER / "prosody" / "Dockerfile"]


def instructions(path: Path) -> list[tuple[str, str]]:
    text = re.sub(r"\\\n", " ", path.read_text())
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [(line.partition(" ")[0], line.partition(" ")[2].strip()) for line in lines]


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.parent.name)
def test_a_dockerfile_has_known_instructions_and_copies_what_is_there(path: Path) -> None:
    known = {"FROM", "ARG", "RUN", "COPY", "USER", "WORKDIR", "VOLUME", "HEALTHCHECK", "ENTRYPOINT", "CMD"}
    found = instructions(path)
    assert {name for name, _ in found} <= known
    assert found[0][0] == "FROM"
    for name, rest in found:
        if name == "COPY" and not rest.startswith("--from"):
            for source in rest.split()[:-1]:
                assert (ROOT / source).exists(), source


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.parent.name)
def test_nothing_runs_as_root(path: Path) -> None:
    users = [rest for name, rest in instructions(path) if name == "USER"]
    assert users
    assert users[-1] != "root"


def test_the_image_of_the_platform_is_slim_and_has_the_extras() -> None:
    found = instructions(DOCKER / "Dockerfile")
    assert all("-slim" in rest.split()[0] for name, rest in found if name == "FROM")
    [extras] = [rest.removeprefix("EXTRAS=").split(",") for name, rest in found if name == "ARG"]
    assert any(name == "RUN" and "pip install" in rest and '".[${EXTRAS}]"' in rest for name, rest in found)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert set(extras) == set(project["optional-dependencies"]) - {"dev", "docs", "local", "reload"}


def test_compose_names_files_volumes_and_services_that_are_there() -> None:
    compose = yaml.safe_load((DOCKER / "compose.yaml").read_text())
    for name, service in compose["services"].items():
        assert set(service) <= SERVICE_KEYS, name
        assert service["restart"] == "unless-stopped"
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))
        context = (DOCKER / service["build"]["context"]).resolve()
        assert (context / service["build"]["dockerfile"]).is_file(), name
        for volume in service["volumes"]:
            assert volume.split(":")[0] in compose["volumes"]
        for other in service.get("depends_on", {}):
            assert "healthcheck" in compose["services"][other]


SERVICE_KEYS = {
    *("build", "depends_on", "environment", "healthcheck", "hostname", "image", "networks", "ports", "restart"),
    *("stop_grace_period", "volumes"),
}


def test_compose_starts_with_two_commands() -> None:
    """The commands at its head: a password in the file that compose reads beside it, and the start."""
    text = (DOCKER / "compose.yaml").read_text()
    password, start = re.findall(r"^#   (.*)$", text, re.M)
    assert start == "docker compose -f docker/compose.yaml up --build --wait"
    command, _, file = password.partition(" > ")
    assert file == "docker/.env"
    assert file in (ROOT / ".gitignore").read_text().splitlines()
    written = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True).stdout
    assert re.fullmatch(r"AGENT_PASSWORD=[0-9a-f]{32}\n", written)
    assert set(re.findall(r"\$\{(\w+):\?", text)) == {"AGENT_PASSWORD"}


def test_compose_runs_the_image_that_the_environment_names() -> None:
    """The page builds an image on top of ours, and names it where compose reads it."""
    page = read_page(ROOT / "docs" / "how-to" / "docker.md")
    [dockerfile] = [block.text for block in page.blocks if block.language == "dockerfile"]
    [commands] = [block.text for block in page.blocks if "PLATFORM_IMAGE" in block.text]
    image = yaml.safe_load((DOCKER / "compose.yaml").read_text())["services"]["platform"]["image"]
    variable, default = re.fullmatch(r"\$\{(\w+):-(.*)\}", image).groups()  # type: ignore[union-attr]
    assert dockerfile.startswith(f"FROM {default}\n")
    build, name, start = commands.splitlines()
    tag = re.fullmatch(r"docker build -t (\S+) \.", build)
    assert tag is not None
    assert name == f'echo "{variable}={tag[1]}" >> docker/.env'
    assert start == "docker compose -f docker/compose.yaml up --no-build --wait"


@dataclass(frozen=True)
class Container:
    """The Prosody of compose, as a process of this machine."""

    directory: Path
    port: int
    environment: dict[str, str]
    host: str = "127.0.0.1"

    @property
    def ca_file(self) -> Path:
        return self.directory / "certs" / "localhost.crt"

    def prosodyctl(self, *arguments: str, stdin: str) -> subprocess.CompletedProcess[str]:
        """Run the command that `docker compose exec prosody prosodyctl …` runs."""
        command = ["prosodyctl", "--config", self.environment["CONFIG"], *arguments]
        return subprocess.run(
            command, input=stdin, env=self.environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )


@asynccontextmanager
async def prosody_of_compose(directory: Path, **environment: str) -> AsyncIterator[Container]:
    require("Prosody", find_program("prosody") is not None)
    port, http_port = find_free_ports(2)
    for name in ("certs", "data"):
        (directory / name).mkdir(exist_ok=True)
    container = Container(
        directory,
        port,
        {
            **os.environ,
            "PROSODY_DATA": str(directory / "data"),
            "CERTS": str(directory / "certs"),
            "C2S_PORT": str(port),
            "C2S_INTERFACE": "127.0.0.1",
            "HTTP_PORT": str(http_port),
            "UPLOAD_URL": f"http://127.0.0.1:{http_port}/",
            "CONFIG": str(DOCKER / "prosody" / "prosody.cfg.lua"),
            "RUN_AS_ROOT": "yes" if os.getuid() == 0 else "no",
            **environment,
        },
    )
    server = await asyncio.create_subprocess_exec(
        "sh",
        str(DOCKER / "prosody" / "start.sh"),
        env=container.environment,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    assert server.stdout is not None
    reading: asyncio.Task[bytes] | None = None
    try:
        async with asyncio.timeout(TIMEOUT_S):
            while b"Activated service 'c2s'" not in (line := await server.stdout.readline()):
                assert line, "Prosody ended"
        reading = asyncio.create_task(server.stdout.read())
        yield container
    finally:
        server.terminate()
        await server.wait()
        if reading is not None:
            await reading


def write_configuration(container: Container) -> None:
    """Write the platform's configuration for this machine, where the image has it."""
    text = (DOCKER / "platform.yaml").read_text()
    text = text.replace("host: prosody", "host: 127.0.0.1").replace("port: 5222", f"port: {container.port}")
    file = container.directory / "config" / "platform.yaml"
    file.parent.mkdir()
    file.write_text(text.replace("/certs/", f"{container.directory}/certs/"))


@pytest.mark.servers
@pytest.mark.release
async def test_the_platform_of_compose_runs_on_the_prosody_of_compose(tmp_path: Path) -> None:
    dockerfile = dict(instructions(DOCKER / "Dockerfile"))
    health = json.loads(dockerfile["HEALTHCHECK"].partition("CMD ")[2])
    assert health[0] == json.loads(dockerfile["ENTRYPOINT"])[0] == "spade-coreason"
    environment = {"AGENT_PASSWORD": "a password"}
    async with prosody_of_compose(tmp_path) as container:
        write_configuration(container)

        async def run(*command: str) -> subprocess.CompletedProcess[str]:
            return await asyncio.to_thread(run_command, *command, cwd=tmp_path, env=environment)

        assert (await run(*health[1:])).returncode == 4
        with run_in_background(*json.loads(dockerfile["CMD"]), cwd=tmp_path, env=environment, until="Ready") as up:
            assert (await run(*health[1:])).returncode == 0
            checked = await run("check")
            assert checked.returncode == 0, checked.stdout
            assert {"stream management", "carbons", "archive", "offline messages", "rooms", "files"} <= set(
                checked.stdout.partition(f"127.0.0.1:{container.port}, ")[2].splitlines()[0].partition(": ")[2].split(", ")
            )

            # A person's account, as docs/how-to/docker.md makes it, and a question.
            added = container.prosodyctl("adduser", "me@localhost", stdin="secret\nsecret\n")
            assert added.returncode == 0, added.stdout
            person = {"SPADE_COREASON_PASSWORD": "secret"}
            asked = await asyncio.to_thread(
                run_command, "ask", "echo@localhost", "hi", "--jid", "me@localhost", cwd=tmp_path, env=person
            )
            assert (asked.returncode, asked.stdout) == (0, "hi\n"), asked.stderr

            account = ("visitor@localhost", "another password")
            client = AgentClient(
                *account, ServerEndpoint("127.0.0.1", container.port, ca_file=container.ca_file), register=True
            )
            async with client:
                assert (await client.ask("notes@localhost", "I like tea")).text
            async with StockClient(*account, container) as phone:
                [link] = set(re.findall(r"http://127\.0\.0\.1\S+\.json", await phone.ask("/export", "notes@localhost")))
            exported = await asyncio.to_thread(lambda: urllib.request.urlopen(link, timeout=TIMEOUT_S).read())
            assert b"I like tea" in exported
            rooms = json.loads((await run("status", "--json")).stdout)["agents"][0]["rooms"]
            assert rooms == {"lounge@rooms.localhost": "joined"}
            code, _, err = await asyncio.to_thread(up.stop)
            assert (code, err) == (0, "")


@pytest.mark.servers
@pytest.mark.release
async def test_the_prosody_of_compose_can_be_closed_to_new_accounts(tmp_path: Path) -> None:
    async with prosody_of_compose(tmp_path, ALLOW_REGISTRATION="no") as container:
        account = ("visitor@localhost", "another password")
        client = AgentClient(*account, ServerEndpoint("127.0.0.1", container.port, ca_file=container.ca_file), register=True)
        with pytest.raises(LoginError, match="the server does not accept registrations"):
            async with client:
                pass


@pytest.mark.servers
@pytest.mark.release
async def test_the_certificate_of_compose_is_made_anew_before_it_ends(tmp_path: Path) -> None:
    certificate = tmp_path / "certs" / "localhost.crt"

    def make_short_one() -> None:
        key = tmp_path / "certs" / "localhost.key"
        options = (
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:prime256v1",
            "-nodes",
            "-days",
            "10",
            "-subj",
            "/CN=localhost",
        )
        files = ("-keyout", str(key), "-out", str(certificate))
        subprocess.run(["openssl", "req", "-x509", *options, *files], capture_output=True, check=True, timeout=TIMEOUT_S)

    async with prosody_of_compose(tmp_path):
        first = certificate.read_bytes()
    async with prosody_of_compose(tmp_path):
        assert certificate.read_bytes() == first
    make_short_one()
    short = certificate.read_bytes()
    async with prosody_of_compose(tmp_path):
        assert certificate.read_bytes() not in (first, short)
