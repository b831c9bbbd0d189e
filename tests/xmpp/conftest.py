"""Servers for the tests of this directory, beside those of the whole suite."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.servers import prosody as prosody_server
from tests.support.servers.federation import federate, find_s2s_addresses
from tests.support.servers.kinds import GetServer, kinds_ejabberd_in_release
from tests.support.servers.requirements import require
from tests.support.servers.server import XmppServer

MAX_UPLOAD_BYTES = 200_000


@pytest.fixture(scope="session", params=kinds_ejabberd_in_release)
def upload_server(request: pytest.FixtureRequest, get_server: GetServer) -> XmppServer:
    """A server that keeps files of at most 200,000 bytes."""
    return get_server(request.param, max_upload_bytes=MAX_UPLOAD_BYTES)


@pytest.fixture(scope="session")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[XmppServer, XmppServer]]:
    """Two Prosody servers that federate: those of `WEST` and `EAST`."""
    require("Prosody", prosody_server.installed())
    west, east = federate(tmp_path_factory.mktemp("federation"), *find_s2s_addresses())
    with west, east:
        yield west, east
