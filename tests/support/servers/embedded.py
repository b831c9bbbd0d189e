"""The embedded server for tests: the same process that the package starts."""

from __future__ import annotations

import sys
from pathlib import Path

import spade_coreason.xmpp.servers
from spade_coreason.xmpp.servers.certificate import ensure_certificate
from spade_coreason.xmpp.servers.process import find_free_ports
from tests.support.servers.server import DOMAIN, XmppServer

PROGRAM = Path(spade_coreason.xmpp.servers.__file__).with_name("embedded_main.py")


def embedded(directory: Path) -> XmppServer:
    """Prepare a server in `directory` without starting it: `with embedded(tmp_path) as server: …`."""
    certs = directory / "certs"
    certificate = ensure_certificate(certs, (DOMAIN,))
    [port] = find_free_ports(1)
    return XmppServer(
        kind="embedded",
        port=port,
        directory=directory,
        certificate=certificate,
        command=(sys.executable, "-P", str(PROGRAM), str(certs), DOMAIN, str(port)),
    )
