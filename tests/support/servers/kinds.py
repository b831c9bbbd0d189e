"""Prosody and ejabberd by their names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from tests.support.servers import ejabberd, prosody
from tests.support.servers.requirements import require
from tests.support.servers.server import XmppServer

SERVER_KINDS = ("prosody", "ejabberd")

kinds_ejabberd_in_release = ("prosody", pytest.param("ejabberd", marks=pytest.mark.release))
"""The parameters of a fixture: `make test-servers` runs its tests on Prosody, and `make test-release` on ejabberd."""
on_both_servers = pytest.mark.parametrize("real_server", SERVER_KINDS, indirect=True)
"""Mark a test of a promise, or of what the servers do differently: `make test-servers` runs it on both."""

GetServer: TypeAlias = Callable[..., XmppServer]
"""A function that returns the running server of a kind with these options."""


def make_server(kind: str, directory: Path, **options: Any) -> XmppServer:
    """Make a server, to start with `with`. Without its program the test is skipped."""
    if kind == "prosody":
        require("Prosody", prosody.installed())
        return prosody.prosody(directory, **options)
    require("ejabberd", ejabberd.installed())
    return ejabberd.ejabberd(directory, **options)


@contextmanager
def start_on_demand(directories: pytest.TempPathFactory) -> Iterator[GetServer]:
    """Start each server at its first use, and stop them all at the end."""
    with ExitStack() as stack:

        @cache
        def get_server(kind: str, **options: Any) -> XmppServer:
            return stack.enter_context(make_server(kind, directories.mktemp(kind), **options))

        yield get_server
