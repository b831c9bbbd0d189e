"""What a page of the documentation needs before its first command: a server of one's own, a database, or a model."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from spade_coreason.xmpp.servers.process import find_free_ports
from tests.support.servers import ejabberd as ejabberd_server, postgres as postgres_server, prosody as prosody_server
from tests.support.servers.requirements import require
from tests.support.servers.server import XmppServer
from tests.support.warm import WarmProcess

_DOMAIN = "example.org"


@contextmanager
def own_prosody(directory: Path, *users: str) -> Iterator[Mapping[str, str]]:
    """A Prosody that serves example.org, with an account for each of `users`; see `_environment`."""
    require("Prosody", prosody_server.installed())
    with prosody_server.prosody(directory, other_domain=_DOMAIN) as server:
        yield _environment(server, users)


@contextmanager
def own_ejabberd(directory: Path, *users: str) -> Iterator[Mapping[str, str]]:
    """An ejabberd that serves example.org, with an account for each of `users`; see `_environment`."""
    require("ejabberd", ejabberd_server.installed())
    with ejabberd_server.ejabberd(directory, other_domain=_DOMAIN) as server:
        yield _environment(server, users)


@contextmanager
def postgresql(directory: Path) -> Iterator[Mapping[str, str]]:
    """A PostgreSQL; `DATABASE_URL` has the URL of a schema in it."""
    require("PostgreSQL", postgres_server.installed())
    with postgres_server.postgres() as database:
        yield {"DATABASE_URL": database.url()}


@contextmanager
def own_prosody_and_postgresql(directory: Path, *users: str) -> Iterator[Mapping[str, str]]:
    """Both, for workers."""
    with own_prosody(directory, *users) as server, postgresql(directory) as database:
        yield {**server, **database}


@contextmanager
def scripted_model(directory: Path) -> Iterator[Mapping[str, str]]:
    """A script that plays a language model; `OPENAI_BASE_URL` and `OPENAI_MODEL` name it."""
    command = [sys.executable, "-m", "tests.support.script_server"]
    with WarmProcess[str](command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None
            yield dict(word.split("=", 1) for word in process.stdout.readline().split())
        finally:
            process.terminate()


@contextmanager
def web(directory: Path) -> Iterator[Mapping[str, str]]:
    """A free port for the HTTP server, in place of that of the configuration; `URL` is its address."""
    [port] = find_free_ports(1)
    yield {"SPADE_COREASON_WEB__PORT": str(port), "URL": f"http://127.0.0.1:{port}"}


@contextmanager
def metrics(directory: Path) -> Iterator[Mapping[str, str]]:
    """A free port for the metrics, in place of that of the configuration; `METRICS` is its address."""
    address = f"127.0.0.1:{find_free_ports(1)[0]}"
    yield {"SPADE_COREASON_METRICS__LISTEN": address, "METRICS": address}


def _environment(server: XmppServer, users: tuple[str, ...]) -> dict[str, str]:
    """Return the place of a server as settings, and the password of each account as `NAME_PASSWORD`."""
    environment = {
        "SPADE_COREASON_SERVER__HOST": server.host,
        "SPADE_COREASON_SERVER__PORT": str(server.port),
        "SPADE_COREASON_SERVER__TLS__CA_FILE": str(server.ca_file),
        "XMPP_HOST": server.host,
        "XMPP_PORT": str(server.port),
        "XMPP_CA_FILE": str(server.ca_file),
    }
    for user in users:
        _, environment[f"{user.upper()}_PASSWORD"] = asyncio.run(server.account(user, domain=_DOMAIN))
    return environment


SETUPS: dict[str, Callable[..., AbstractContextManager[Mapping[str, str]]]] = {
    setup.__name__: setup
    for setup in (own_prosody, own_ejabberd, postgresql, own_prosody_and_postgresql, scripted_model, web, metrics)
}
