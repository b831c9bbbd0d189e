"""Process groups as the kernel reports them: members, ends and listening sockets. Linux only."""

from __future__ import annotations

import asyncio
import ipaddress
import os
import select
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from tests.support.wait import TIMEOUT_S

LISTENING = "0A"
UNCONNECTED = "07"
"""The state of a UDP socket that accepts datagrams from any address."""


async def wait_until_ended(pid: int, timeout_s: float) -> bool:
    """Return True if the process ends in time; it need not be a child of ours."""
    return await asyncio.to_thread(has_ended, pid, timeout_s)


def has_ended(pid: int, timeout_s: float) -> bool:
    """Block until the process ends, as `wait_until_ended`."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], timeout_s)[0])
    finally:
        os.close(descriptor)


def group_members(leader: int) -> list[int]:
    """List the living processes of the group, without zombies."""
    members = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # the process has just ended
            fields = path.read_text().rpartition(")")[2].split()
            if int(fields[2]) == leader and fields[0] != "Z":
                members.append(int(path.parent.name))
    return members


def remaining_members(leader: int) -> list[int]:
    """Wait until the group has ended, and return the processes that have not. A killed process takes a moment to end."""
    deadline = time.monotonic() + TIMEOUT_S
    while (members := group_members(leader)) and time.monotonic() < deadline:
        time.sleep(0.01)
    return members


def listening_addresses(leader: int) -> set[tuple[str, int]]:
    """Return address and port of every TCP or UDP socket that could reach the group."""
    inodes = {inode for pid in group_members(leader) for inode in _sockets(pid)}
    found = set()
    for protocol, open_state in (("tcp", LISTENING), ("tcp6", LISTENING), ("udp", UNCONNECTED), ("udp6", UNCONNECTED)):
        for line in Path(f"/proc/net/{protocol}").read_text().splitlines()[1:]:
            _, local, _, state, _, _, _, _, _, inode, *_ = line.split()
            if state == open_state and inode in inodes:
                address, port = local.split(":")
                found.add((_address(address), int(port, 16)))
    return found


def _sockets(pid: int) -> Iterator[str]:
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):
            target = os.readlink(path)
            if target.startswith("socket:["):
                yield target[len("socket:[") : -1]


def _address(text: str) -> str:
    """Decode an address, which the kernel writes as 32-bit words in the machine's byte order."""
    words = [bytes.fromhex(text[at : at + 8])[::-1] for at in range(0, len(text), 8)]
    return str(ipaddress.ip_address(b"".join(words)))
