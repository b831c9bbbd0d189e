"""A pgbouncer for tests, in front of a PostgreSQL: a private one on a free loopback port."""

from __future__ import annotations

import os
import socket
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import quote

from sqlalchemy import make_url

from tests.support.servers.postgres import PASSWORD, Postgres, unprivileged
from tests.support.servers.requirements import find_program


def installed() -> bool:
    """Return True if pgbouncer is installed."""
    return _program() is not None


@contextmanager
def pgbouncer(postgres: Postgres, url: str, pool_mode: str) -> Iterator[str]:
    """Start a pooler for the user of a URL of `postgres`; yield the same URL at the pooler."""
    program = _program()
    assert program is not None
    parsed = make_url(url)
    with tempfile.TemporaryDirectory(prefix="pgbouncer-") as name, closing(socket.create_server(("127.0.0.1", 0))) as taken:
        directory, port = Path(name), taken.getsockname()[1]
        taken.close()
        (directory / "users").write_text(f'"{parsed.username}" "{PASSWORD}"\n')
        (directory / "ini").write_text(
            f"""
            [databases]
            {parsed.database} = host={postgres.host} port={postgres.port}
            [pgbouncer]
            listen_addr = 127.0.0.1
            listen_port = {port}
            unix_socket_dir =
            auth_type = md5
            auth_file = {directory}/users
            pool_mode = {pool_mode}
            """.replace("            ", "")
        )
        os.chmod(directory, 0o755)  # it drops root, as PostgreSQL does
        log = (directory / "log").open("wb")
        process = subprocess.Popen([*unprivileged(), program, str(directory / "ini")], stdout=log, stderr=log)
        try:
            for _ in range(600):
                with closing(socket.socket()) as trial:
                    if trial.connect_ex(("127.0.0.1", port)) == 0:
                        break
                assert process.poll() is None, (directory / "log").read_text()
                threading.Event().wait(0.02)
            yield str(parsed.set(port=port).render_as_string(hide_password=False)).replace(PASSWORD, quote(PASSWORD, safe=""))
        finally:
            process.kill()
            process.wait()
            log.close()


def _program() -> str | None:
    return find_program("pgbouncer")
