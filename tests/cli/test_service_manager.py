"""systemd hears when a platform is ready, that its event loop runs, and when it stops: over a real notify socket."""

from __future__ import annotations

import os
import re
import signal
import socket
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from spade_coreason.cli.service_manager import ServiceManager
from tests.support.program import run_command, run_in_background
from tests.support.wait import TIMEOUT_S, wait_until

WATCHDOG_S = 0.2
BLOCKING_AGENT = '''\
import time
from pathlib import Path


class Blocking:
    """Blocks the event loop until a file exists."""

    def __init__(self, manifest): self.manifest = manifest

    async def assist(self, request, session, response):
        Path("blocked").touch()
        while not Path("go").exists():
            time.sleep(0.01)
        await response.markdown("done")
'''


class NotifySocket:
    """The socket of a service manager; a path, or a name without a file as `@name`."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(f"\0{address[1:]}" if address.startswith("@") else address)

    def receive(self, timeout_s: float = TIMEOUT_S) -> str:
        """Return the next notice. Raise TimeoutError."""
        self._socket.settimeout(timeout_s)
        return self._socket.recv(4096).decode()

    def drain(self) -> None:
        """Drop what has arrived."""
        self._socket.settimeout(0)
        try:
            while True:
                self._socket.recv(4096)
        except BlockingIOError:
            pass

    def close(self) -> None:
        self._socket.close()


@contextmanager
def open_notify_socket(address: str = "") -> Iterator[NotifySocket]:
    with tempfile.TemporaryDirectory() as directory:  # a short path: that of a socket has at most 107 bytes
        notices = NotifySocket(address or f"{directory}/notify")
        try:
            yield notices
        finally:
            notices.close()


def test_systemd_hears_of_the_start_the_loop_and_the_stop(tmp_path: Path) -> None:
    (tmp_path / "blocking.py").write_text(BLOCKING_AGENT)
    (tmp_path / "platform.yaml").write_text("agents:\n  - {jid: b@localhost, agent: 'blocking:Blocking'}\n")
    with open_notify_socket() as notices:
        environment = {"NOTIFY_SOCKET": notices.address, "WATCHDOG_USEC": str(round(2 * WATCHDOG_S * 1_000_000))}
        with run_in_background("up", "-c", "platform.yaml", cwd=tmp_path, until="Ready", env=environment) as up:
            assert [notices.receive() for _ in range(3)] == ["READY=1", "WATCHDOG=1", "WATCHDOG=1"]
            asking = threading.Thread(target=lambda: up.run_command("ask", "b@localhost", "hello"))
            asking.start()
            try:
                wait_until((tmp_path / "blocked").exists, "the agent was not asked")
                notices.drain()
                with pytest.raises(TimeoutError):
                    notices.receive(4 * WATCHDOG_S)
            finally:
                (tmp_path / "go").touch()
                asking.join()
            assert notices.receive() == "WATCHDOG=1"
            notices.drain()
            assert up.stop(signal.SIGTERM)[0] == 0
            received = ""
            while received != "STOPPING=1":
                received = notices.receive()


def test_a_start_that_fails_is_never_reported_as_ready(tmp_path: Path) -> None:
    (tmp_path / "platform.yaml").write_text("agents:\n  - {jid: b@localhost, agent: 'nowhere:Nothing'}\n")
    with open_notify_socket() as notices:
        done = run_command("up", "-c", "platform.yaml", cwd=tmp_path, env={"NOTIFY_SOCKET": notices.address})
        assert done.returncode == 2
        with pytest.raises(BlockingIOError):
            notices.receive(0)


def test_a_child_process_does_not_speak_for_the_service() -> None:
    environment = {"NOTIFY_SOCKET": "/run/notify", "WATCHDOG_USEC": "1000000", "WATCHDOG_PID": "1", "HOME": "/"}
    ServiceManager(environment)
    assert environment == {"HOME": "/"}


async def test_the_watchdog_of_another_process_is_not_fed() -> None:
    with open_notify_socket(f"@spade-coreason-{os.getpid()}") as notices:
        for pid, expected in ((os.getpid(), ["READY=1", "WATCHDOG=1"]), (os.getpid() + 1, ["READY=1"])):
            manager = ServiceManager({"NOTIFY_SOCKET": notices.address, "WATCHDOG_USEC": "60000000", "WATCHDOG_PID": str(pid)})
            manager.report_ready()
            manager.close()
            assert [notices.receive() for _ in expected] == expected
            with pytest.raises(BlockingIOError):
                notices.receive(0)


async def test_a_service_manager_that_is_away_is_only_logged(caplog: pytest.LogCaptureFixture) -> None:
    with tempfile.TemporaryDirectory() as directory:
        ServiceManager({"NOTIFY_SOCKET": f"{directory}/nothing"}).report_ready()
    assert re.search("systemd cannot be told READY=1: .*No such file", caplog.text)
