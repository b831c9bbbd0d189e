"""systemd hears when a platform is ready, that its event loop runs, and when it stops: over a real notify socket."""

from __future__ import annotations

import os
import re
import signal
import tempfile
import threading
from pathlib import Path

import pytest

from spade_coreason.cli.service_manager import ServiceManager
from tests.support.notify_socket import open_notify_socket
from tests.support.program import run_command, run_in_background
from tests.support.wait import wait_until

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
