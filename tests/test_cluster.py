"""docker/cluster/, tested without an engine: its files, and two real ejabberd nodes with the check for a partition."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
import yaml

from spade_coreason import AgentClient
from spade_coreason.app.supervision import make_worker_terms
from spade_coreason.config.loader import load_settings
from spade_coreason.xmpp import ServerEndpoint
from spade_coreason.xmpp.servers.certificate import ensure_certificate
from spade_coreason.xmpp.servers.process import find_free_ports
from tests.support.databases import execute
from tests.support.program import RunningCommand, run_in_background
from tests.support.servers.clients import StockClient
from tests.support.servers.postgres import Postgres
from tests.support.servers.requirements import find_program, require
from tests.support.wait import ANSWER_S, TIMEOUT_S, eventually, wait_until
from tests.test_docker import SERVICE_KEYS, instructions

ROOT = Path(__file__).parents[1]
CLUSTER = ROOT / "docker" / "cluster"
EJABBERD = CLUSTER / "ejabberd"
NAMES = ("first@127.0.0.1", "second@127.0.0.1")


wait_long = partial(wait_until, timeout_s=ANSWER_S)
"""On a busy machine each start of Erlang takes ten seconds."""


@dataclass
class Node:
    """A node of the cluster, as a process of this machine."""

    name: str
    other: str
    port: int
    environment: dict[str, str]
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Run what the container runs; return when the node is a part of the cluster."""
        log = Path(self.environment["HOME"], "log")
        with log.open("w") as output:
            self.process = subprocess.Popen(
                ["bash", f"{self.environment['HOME']}/start.sh"],
                user="ejabberd",
                group="ejabberd",
                extra_groups=(),
                cwd="/",
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        process = self.process
        try:
            wait_long(lambda: f"Node {self.name} runs." in log.read_text() or process.poll() is not None, "not started")
            assert process.poll() is None, "it ended"
        except AssertionError as error:
            raise AssertionError(f"{self.name}: {error}: {log.read_text()}") from error

    def check(self, timeout_s: float = TIMEOUT_S, restart: str = "no") -> tuple[int, str]:
        """Return the exit code and the text of the check for a partition."""
        done = subprocess.run(
            ["bash", f"{self.environment['HOME']}/check-node.sh", self.other],
            user="ejabberd",
            group="ejabberd",
            extra_groups=(),
            cwd="/",
            env={**self.environment, "TIMEOUT_S": str(timeout_s), "RESTART": restart},
            stdout=subprocess.PIPE,
            text=True,
            timeout=2 * ANSWER_S,
            check=False,
        )
        return done.returncode, done.stdout

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the server itself."""
        os.kill(int(Path(self.environment["SPOOL_DIR"], "ejabberd.pid").read_text()), number)

    def wait(self) -> None:
        """Wait for the end."""
        assert self.process is not None
        self.process.wait(ANSWER_S)

    @property
    def ca_file(self) -> Path:
        return Path(self.environment["CERTS"], "localhost.crt")


@contextmanager
def run_cluster() -> Iterator[tuple[Node, Node]]:
    ejabberdctl = find_program("ejabberdctl")
    require("ejabberd", ejabberdctl is not None)
    assert ejabberdctl is not None
    if os.geteuid() != 0:
        pytest.skip("Debian's ejabberdctl runs as root or as the user ejabberd only")
    # Not the directory of pytest, which the user ejabberd cannot read.
    with tempfile.TemporaryDirectory(prefix="cluster-") as base, ExitStack() as stack:
        directory = Path(base)
        (epmd_port, *ports) = find_free_ports(3)
        nodes = []
        for name, other, port in zip(NAMES, reversed(NAMES), ports, strict=True):
            home = directory / name.partition("@")[0]
            for part in ("spool", "logs"):
                (home / part).mkdir(parents=True)
            configuration = (EJABBERD / "ejabberd.yml").read_text()
            configuration = configuration.replace("port: 5222", f"port: {port}").replace("0.0.0.0", "127.0.0.1")
            (home / "ejabberd.yml").write_text(configuration.replace("/certs/", f"{directory}/certs/"))
            scripts = [EJABBERD / file for file in ("ejabberdctl.cfg", "start.sh", "check-node.sh")]
            for file in (*scripts, Path("/etc/ejabberd/inetrc")):
                if file.exists():
                    shutil.copy(file, home)
            environment = {
                **os.environ,
                "PATH": f"{os.environ['PATH']}{os.pathsep}{Path(ejabberdctl).parent}",
                "HOME": str(home),
                "CONFIG_DIR": str(home),
                "SPOOL_DIR": str(home / "spool"),
                "LOGS_DIR": str(home / "logs"),
                "CERTS": str(directory / "certs"),
                "NODE": name,
                "C2S_PORT": str(port),
                "COOKIE": "test",
                "DIST_INTERFACE": "127.0.0.1",
                "ERL_EPMD_ADDRESS": "127.0.0.1",
                "ERL_EPMD_PORT": str(epmd_port),
                "JOIN": NAMES[0] if name != NAMES[0] else "",
            }
            nodes.append(Node(name, other, port, environment))
        (directory / "certs").mkdir()
        subprocess.run(["chown", "-R", "ejabberd", base], check=True)
        stack.callback(_end_epmd, epmd_port)
        stack.callback(_kill_all, nodes)
        for node in nodes:
            node.start()
        first, second = nodes
        yield first, second


def _end_epmd(port: int) -> None:
    """End Erlang's port mapper. It refuses while it knows a node, and a killed one is known for a moment."""

    def has_ended() -> bool:
        done = subprocess.run(["epmd", "-port", str(port), "-kill"], capture_output=True, text=True, check=False)
        return "Killed" in done.stdout or "Cannot connect" in done.stdout + done.stderr

    wait_until(has_ended, "epmd goes on")


def _kill_all(nodes: list[Node]) -> None:
    for node in nodes:
        if node.process is not None and node.process.poll() is None:
            os.killpg(node.process.pid, signal.SIGKILL)
            node.process.wait()


@pytest.mark.servers
@pytest.mark.release
@pytest.mark.timeout(1200)
def test_the_check_finds_the_node_that_has_to_restart() -> None:
    with run_cluster() as (first, second):
        assert (first.check(), second.check()) == ((0, ""), (0, ""))

        # Frozen for longer than `net_ticktime`: the other one goes on.
        second.signal(signal.SIGSTOP)
        wait_long(lambda: "is away" in first.check(timeout_s=10)[1], "the first node has not noticed")
        assert second.check(timeout_s=10) == (1, "this node does not answer\n")

        # When it wakes, both run, and neither knows of the other.
        second.signal(signal.SIGCONT)
        wait_long(lambda: "has to restart" in first.check()[1], "there is no partition")
        assert first.check() == (0, "second@127.0.0.1 has lost this node, and has to restart\n")
        code, problem = second.check(restart="yes")
        assert (code, "has to restart" in problem) == (1, True)
        second.wait()
        assert first.check()[0] == 0
        second.start()
        assert (first.check(), second.check()) == ((0, ""), (0, ""))

        # Killed: the other one goes on, and the node comes back by itself.
        second.signal(signal.SIGKILL)
        second.wait()
        assert first.check() == (0, "second@127.0.0.1 is away; this node goes on\n")
        second.start()
        assert (first.check(), second.check()) == ((0, ""), (0, ""))


def test_a_node_whose_name_contains_that_of_the_other_is_not_taken_for_it(tmp_path: Path) -> None:
    answers = '#!/bin/sh\ncase "$*" in *connected_users_number) echo 1 ;; *) echo ejabberd@xmpp10 ;; esac\n'
    program = tmp_path / "ejabberdctl"
    program.write_text(answers)
    program.chmod(0o755)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "NODE": "ejabberd@xmpp10"}
    command = ["bash", str(EJABBERD / "check-node.sh"), "ejabberd@xmpp1"]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, timeout=TIMEOUT_S, check=False)
    assert (done.returncode, "has to restart" in done.stdout) == (1, True)


@dataclass(frozen=True)
class Balancer:
    """The address that clients use."""

    port: int
    ca_file: Path
    host: str = "127.0.0.1"


@contextmanager
def run_balancer(directory: Path, nodes: tuple[Node, Node]) -> Iterator[Balancer]:
    [port] = find_free_ports(1)
    with subprocess.Popen(configure_balancer(directory, port, (nodes[0].port, nodes[1].port))) as process:
        try:
            yield Balancer(port, nodes[0].ca_file)
        finally:
            process.terminate()


@pytest.mark.release
@pytest.mark.timeout(1200)
async def test_agents_answer_while_a_node_and_a_worker_fail(postgres: Postgres, tmp_path: Path) -> None:
    configure_balancer(tmp_path, 5222, (5223, 5224))  # it skips the test if that is impossible
    with run_cluster() as nodes, run_balancer(tmp_path, nodes) as balancer, ExitStack() as workers:
        text = (CLUSTER / "platform.yaml").read_text()
        text = (
            text.replace("notes:NotesAgent", "echo:EchoAgent")
            .replace("host: balancer", "host: 127.0.0.1")
            .replace("port: 5222", f"port: {balancer.port}")
        )
        (tmp_path / "platform.yaml").write_text(text.replace("/certs/localhost.crt", str(balancer.ca_file)))
        environment = {"AGENT_PASSWORD": "a password", "DATABASE_URL": (url := postgres.url())}

        def start_worker() -> RunningCommand:
            errors = ("the lease could not be renewed", "cannot")  # a busy machine
            run = run_in_background("up", "-c", "platform.yaml", cwd=tmp_path, until="Ready", env=environment, may_log=errors)
            return workers.enter_context(run)

        def count_owners() -> int:
            return len(execute(url, "SELECT DISTINCT worker FROM leases WHERE worker IS NOT NULL"))

        async def ask_both(text: str) -> None:
            async with StockClient(jid, password, balancer) as phone:
                for agent in ("echo@localhost", "notes@localhost"):
                    phone.send(text, agent)
                    # An answer that was not acknowledged comes again.
                    while True:
                        answer = await phone.answer(ANSWER_S)
                        if (answer["body"], answer["from"].bare) == (text, agent):
                            break

        jid, password = "visitor@localhost", "another password"
        first = await asyncio.to_thread(start_worker)
        await asyncio.to_thread(start_worker)
        await eventually(lambda: count_owners() == 2)
        endpoint = ServerEndpoint(balancer.host, balancer.port, ca_file=balancer.ca_file)
        async with AgentClient(jid, password, endpoint, register=True):
            pass
        await ask_both("tea")
        for node in nodes:
            node.signal(signal.SIGKILL)
            await asyncio.to_thread(node.wait)
            await ask_both(f"without {node.name}")
            await asyncio.to_thread(node.start)
        first.process.kill()
        await ask_both("water")
        assert count_owners() == 1


def test_compose_names_files_volumes_and_services_that_are_there() -> None:
    text = (CLUSTER / "compose.yaml").read_text()
    compose = yaml.safe_load(text)
    services = compose["services"]
    for name, service in services.items():
        assert set(service) <= SERVICE_KEYS, name
        assert service["restart"] == "unless-stopped"
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))
        if "build" in service:
            context = (CLUSTER / service["build"]["context"]).resolve()
            assert context == ROOT
            assert (context / service["build"]["dockerfile"]).is_file(), name
        for volume in service["volumes"]:
            source = volume.split(":")[0]
            assert (CLUSTER / source).is_file() if source.startswith("./") else source in compose["volumes"], volume
        needed = service.get("depends_on", {})
        for other in needed:
            assert other in services
            assert isinstance(needed, list) or "healthcheck" in services[other]
    for one, other in (("ejabberd1", "ejabberd2"), ("ejabberd2", "ejabberd1")):
        service = services[one]
        assert service["environment"]["NODE"] == f"ejabberd@{service['hostname']}" == f"ejabberd@{one}"
        assert service["healthcheck"]["test"][-1] == f"ejabberd@{other}"
    assert services["worker1"]["environment"] == services["worker2"]["environment"]
    own = [{volume for volume in services[name]["volumes"] if not volume.startswith(("./", "certs"))} for name in WORKERS]
    assert not set.intersection(*own)
    # The first of the commands at its head makes all secrets, where compose reads them.
    secrets = set(re.findall(r"\$\{(\w+):\?", text))
    command = re.findall(r"^#   (.*)$", text, re.M)[0]
    assert secrets == set(re.findall(r"[A-Z_]{8,}", command))
    assert command.endswith("> docker/cluster/.env")
    assert "docker/cluster/.env" in (ROOT / ".gitignore").read_text().splitlines()


WORKERS = ("worker1", "worker2")


def test_the_image_of_a_node_has_its_files_and_no_root() -> None:
    found = instructions(EJABBERD / "Dockerfile")
    assert [rest for name, rest in found if name == "USER"] == ["ejabberd"]
    copied = {word for name, rest in found if name == "COPY" for word in rest.split()[:-1]}
    assert copied == {f"docker/cluster/ejabberd/{path.name}" for path in EJABBERD.iterdir()} - {
        "docker/cluster/ejabberd/Dockerfile"
    }


def test_the_workers_of_compose_have_a_configuration(tmp_path: Path) -> None:
    services = yaml.safe_load((CLUSTER / "compose.yaml").read_text())["services"]
    environment = {name: re.sub(r"\$\{.*?\}", "secret", text) for name, text in services["worker1"]["environment"].items()}
    text = (CLUSTER / "platform.yaml").read_text()
    certificate = ensure_certificate(tmp_path, ["localhost"]).certificate
    (tmp_path / "platform.yaml").write_text(text.replace("/certs/localhost.crt", str(certificate)))
    settings = load_settings(tmp_path / "platform.yaml", tmp_path, environment)
    assert settings.server.host in services
    assert make_worker_terms(settings) is not None


@pytest.mark.servers
def test_nginx_accepts_the_balancer(tmp_path: Path) -> None:
    command = configure_balancer(tmp_path, 5222, (5223, 5224))
    done = subprocess.run([*command, "-t"], capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stderr


def configure_balancer(directory: Path, port: int, nodes: tuple[int, int]) -> list[str]:
    """Write the configuration of the balancer for this machine, and return the command that runs nginx with it."""
    require("nginx", find_program("nginx") is not None)
    version = subprocess.run(["nginx", "-V"], capture_output=True, text=True, check=True).stderr
    module = Path(os.environ.get("NGINX_STREAM_MODULE", "/usr/lib/nginx/modules/ngx_stream_module.so"))
    is_static = re.search(r"--with-stream(?= |$)", version) is not None
    require("nginx's module stream", is_static or module.exists())
    text = (CLUSTER / "nginx.conf").read_text().replace("listen 5222", f"listen 127.0.0.1:{port}")
    for number, node in enumerate(nodes, 1):
        text = text.replace(f"ejabberd{number}:5222", f"127.0.0.1:{node}")
    head = "" if is_static else f"load_module {module};\n"
    (directory / "nginx.conf").write_text(f"{head}daemon off;\nmaster_process off;\npid {directory}/nginx.pid;\n{text}")
    return ["nginx", "-p", str(directory), "-c", str(directory / "nginx.conf")]
