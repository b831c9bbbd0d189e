"""What the kernel says of a process group: who is in it, when one ends, and what it listens on. Linux only."""

from __future__ import annotations

import asyncio
import ipaddress
import os
import select
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

LISTENING = "0A"
UNCONNECTED = "07"
"""The state of a UDP socket that takes datagrams from anyone."""


async def ended(pid: int, timeout_s: float) -> bool:
    """Whether the process ends in time; it need not be a child of ours."""
    return await asyncio.to_thread(_ended, pid, timeout_s)


def group(leader: int) -> list[int]:
    """The living processes of the group, zombies not counted."""
    members = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it ended while we looked
            fields = path.read_text().rpartition(")")[2].split()
            if int(fields[2]) == leader and fields[0] != "Z":
                members.append(int(path.parent.name))
    return members


def listens_on(leader: int) -> set[tuple[str, int]]:
    """Address and port of every socket, TCP or UDP, by which anyone could reach the group."""
    inodes = {inode for pid in group(leader) for inode in _sockets(pid)}
    found = set()
    for protocol, open_state in (("tcp", LISTENING), ("tcp6", LISTENING), ("udp", UNCONNECTED), ("udp6", UNCONNECTED)):
        for line in Path(f"/proc/net/{protocol}").read_text().splitlines()[1:]:
            _, local, _, state, _, _, _, _, _, inode, *_ = line.split()
            if state == open_state and inode in inodes:
                address, port = local.split(":")
                found.add((_address(address), int(port, 16)))
    return found


def _ended(pid: int, timeout_s: float) -> bool:
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], timeout_s)[0])
    finally:
        os.close(descriptor)


def _sockets(pid: int) -> Iterator[str]:
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):
            target = os.readlink(path)
            if target.startswith("socket:["):
                yield target[len("socket:[") : -1]


def _address(text: str) -> str:
    """The kernel writes addresses as 32-bit words in the machine's byte order."""
    words = [bytes.fromhex(text[at : at + 8])[::-1] for at in range(0, len(text), 8)]
    return str(ipaddress.ip_address(b"".join(words)))
