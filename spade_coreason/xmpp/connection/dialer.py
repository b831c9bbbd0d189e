"""One attempt to reach a server: all its addresses, one after another, until one of them serves."""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from itertools import chain, zip_longest

from .endpoint import ServerEndpoint
from .errors import NO_ADDRESS, NO_SERVICE, Problem, explain, no_answer
from .resolver import Address, Target, find_targets

SILENCE_S = 2.0
"""The longest wait for an address that does not answer, while others are left."""
_STAGGER_S = 0.25  # RFC 8305, section 5
_MAX_ADDRESSES = 16
_MAX_LISTED = 8


@dataclass(frozen=True, slots=True)
class Dialed:
    """A TCP connection to one address of a server. `is_last` is True if no other address is left."""

    sock: socket.socket
    address: Address
    target: Target
    is_last: bool

    def __str__(self) -> str:
        return _describe_place(self.target, self.address)


@dataclass(frozen=True, slots=True)
class _Failure:
    place: str
    problem: Problem


@dataclass(slots=True)
class Dialer:
    """The way to a server within one attempt. `domain` is that of the JID (RFC 6120 3.2)."""

    endpoint: ServerEndpoint
    domain: str
    first: Target | None = None
    """The host to try before all others: the server of the last session named it."""
    failures: list[_Failure] = field(default_factory=list)
    """The addresses that were tried in vain, and why each failed."""
    _targets: deque[Target] = field(default_factory=deque)
    _addresses: list[Address] = field(default_factory=list)
    """The addresses of the current target that are left."""
    _redirect: str = ""
    """The host to which the server has sent us, and who did so."""
    _current: str = ""

    async def dial(self) -> AsyncGenerator[Dialed]:
        """Yield connections to the server's addresses, best first. Ask for the next one if one does not serve.

        The caller closes the socket. Close the generator when a connection serves.
        """
        try:
            async with asyncio.timeout(SILENCE_S):
                self._targets += await find_targets(self.domain, self.endpoint.host, self.endpoint.port, self.endpoint.resolver)
        except TimeoutError:
            self._targets.append(Target(self.domain))
        if self.first is not None:
            self._targets.appendleft(self.first)
        if not self._targets:
            self.failures.append(_Failure(self.domain, NO_SERVICE))
        while self._targets:
            target = self._targets.popleft()
            self._current = str(target)
            self._addresses = await self._find_addresses(target)
            while self._addresses:
                sock = await self._race(target, self._addresses)
                if sock is not None:
                    yield sock

    def record_failure(self, dialed: Dialed, problem: Problem) -> None:
        """Record why a connection does not serve."""
        self.failures.append(_Failure(str(dialed), problem))

    def follow_redirect(self, dialed: Dialed, target: Target) -> bool:
        """Try `target` next, to which a verified server has sent us. Return False if one redirect was followed already."""
        if self._redirect:
            return False
        self._redirect = f"redirected by {dialed} to {target}"
        self._addresses.clear()  # they belong to the host that sends us away
        self._targets.appendleft(target)
        return True

    def record_timeout(self) -> None:
        """Record that the time of the attempt has passed."""
        self.failures.append(_Failure(self._current, no_answer(self.endpoint.timeout_s)))

    @property
    def is_transient(self) -> bool:
        """True if a later attempt may succeed without any correction. One address suffices."""
        return any(failure.problem.is_transient for failure in self.failures)

    def describe(self) -> tuple[str, str]:
        """Return the address that could not be reached, and what was wrong with each address tried, with the remedies."""
        prefix = f"{self._redirect}; " if self._redirect else ""
        if len(self.failures) == 1:
            [failure] = self.failures
            return failure.place, f"{prefix}{failure.problem}"
        reasons = [f"{failure.place}: {failure.problem.text}" for failure in self.failures]
        if len(reasons) > _MAX_LISTED:
            reasons[_MAX_LISTED:] = [f"and {len(reasons) - _MAX_LISTED} more addresses"]
        remedies = dict.fromkeys(failure.problem.remedy for failure in self.failures if failure.problem.remedy)
        return self.endpoint.address(self.domain), prefix + "; ".join([", ".join(reasons), *remedies])

    async def _find_addresses(self, target: Target) -> list[Address]:
        limit_s = SILENCE_S if self._targets else None
        try:
            async with asyncio.timeout(limit_s):
                found = await self.endpoint.resolver.find_addresses(target)
        except socket.gaierror as error:
            problem = explain(error) if error.errno == socket.EAI_AGAIN else NO_ADDRESS
        except UnicodeError:  # a name that the DNS cannot have; SRV records are not checked by anybody
            problem = NO_ADDRESS
        except TimeoutError:
            problem = no_answer(SILENCE_S)
        else:
            families: dict[int, list[Address]] = {}
            for address in found:
                families.setdefault(address.family, []).append(address)
            mixed = chain.from_iterable(zip_longest(*families.values()))  # RFC 8305, section 4
            return [address for address in mixed if address is not None][:_MAX_ADDRESSES]
        self.failures.append(_Failure(str(target), problem))
        return []

    async def _race(self, target: Target, addresses: list[Address]) -> Dialed | None:
        """Connect to the first address that answers, and remove from `addresses` those that need no further try.

        An address gets a head start of a quarter of a second over the next one (RFC 8305).
        """
        waiting = deque(addresses)
        racing: dict[asyncio.Task[socket.socket], Address] = {}
        try:
            while waiting or racing:
                if waiting:
                    address = waiting.popleft()
                    self._current = _describe_place(target, address)
                    limit_s = SILENCE_S if waiting or self._targets else None
                    racing[asyncio.create_task(_connect(address, limit_s))] = address
                done, _ = await asyncio.wait(
                    racing, timeout=_STAGGER_S if waiting else None, return_when=asyncio.FIRST_COMPLETED
                )
                for task in done:
                    address = racing[task]
                    addresses.remove(address)
                    error = task.exception()
                    if error is None:
                        del racing[task]
                        self._current = _describe_place(target, address)
                        return Dialed(task.result(), address, target, not addresses and not self._targets)
                    del racing[task]
                    is_silent = isinstance(error, TimeoutError) and not error.errno  # with a number it is the system's
                    problem = no_answer(SILENCE_S) if is_silent else explain(error)
                    self.failures.append(_Failure(_describe_place(target, address), problem))
            return None
        finally:
            for task in racing:
                task.cancel()
            for result in await asyncio.gather(*racing, return_exceptions=True):
                if isinstance(result, socket.socket):
                    result.close()


async def _connect(address: Address, limit_s: float | None) -> socket.socket:
    sock = socket.socket(address.family, socket.SOCK_STREAM)
    sock.setblocking(False)
    try:
        async with asyncio.timeout(limit_s):
            await asyncio.get_running_loop().sock_connect(sock, address.sockaddr)
    except BaseException:
        sock.close()
        raise
    return sock


def _describe_place(target: Target, address: Address) -> str:
    ip = address.sockaddr[0]
    return str(address) if ip == target.host else f"{target} ({ip})"
