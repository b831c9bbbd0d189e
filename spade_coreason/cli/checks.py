"""Checks of the command `check`: settings, installation, storage, agents, accounts and the features of the server."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ..config import find_approver_problem, read_run_file
from ..domain.environment.loopback import is_loopback
from ..domain.jid import bare_jid
from ..exceptions import (
    ConfigError,
    ConnectError,
    CoReasonError,
    DatabaseEmptyError,
    LoginError,
    ModelError,
    ServerError,
    StoreError,
)
from . import errors
from .dry_run import HasApprovers, HasCard, HasMCPServers, HasModels, build_unstarted_agent
from .settings import sqlite_file

if TYPE_CHECKING:
    from ..config import AgentSettings, Settings
    from ..xmpp import ServerEndpoint

# Server features that agents use: namespace and its name in the report. Registration (XEP-0077) is left out: servers announce
# it also where they refuse it.
FEATURE_NAMES = {
    "urn:xmpp:carbons:2": "carbons",
    "urn:xmpp:mam:2": "archive",
    "urn:xmpp:blocking": "blocking",
    "urn:xmpp:ping": "ping",
    "http://jabber.org/protocol/commands": "commands",
    "vcard-temp": "vCards",
    "msgoffline": "offline messages",
    "http://jabber.org/protocol/muc": "rooms",
    "urn:xmpp:http:upload:0": "files",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report. `exit_code` is the exit code of the command if the verdict is bad."""

    subject: str
    verdict: Literal["good", "note", "bad"]
    text: str
    exit_code: int = 0


def error_finding(subject: str, error: CoReasonError) -> Finding:
    """Convert an error to a finding."""
    return Finding(subject, "bad", _error_text(error), errors.exit_code(error))


def _error_text(error: CoReasonError) -> str:
    """Describe an error in one line, without the account that the finding names already."""
    text = errors.format_error(error)
    return text.replace(f"{error.jid}: ", "", 1) if isinstance(error, ConnectError) else text


async def check_settings(settings: Settings) -> list[Finding]:
    """Check everything, in the order in which it would fail at a start."""
    configured = Finding("configuration", "good" if settings.agents else "note", _describe_settings(settings))
    findings = [configured, *_check_installation(), *[found async for found in _check_storage(settings)]]
    findings += [*_check_embedder(settings), *[found async for found in _check_agents(settings)]]
    findings += [found async for found in _check_web(settings)]
    findings += [found async for found in _check_metrics(settings)]
    findings += (
        _check_local_server(settings) if settings.server.is_local else [found async for found in _check_accounts(settings)]
    )
    return findings


def _describe_settings(settings: Settings) -> str:
    count = len(settings.agents)
    if not count:
        return f"no agents are configured; add one under {settings.place('agents')}"
    return f"{count} agent{'' if count == 1 else 's'}, server mode {settings.server.mode}, data in {settings.data_dir}"


def _check_installation() -> Iterator[Finding]:
    """Check SPADE and slixmpp.

    SPADE's build of slixmpp and the distribution `slixmpp` install the same package: the one unpacked last wins.
    """
    spade = installed_version("spade")
    yield Finding(
        "spade", "good" if spade else "bad", spade or "is not installed; run: pip install spade-coreason", 0 if spade else 2
    )
    problem = slixmpp_problem(installed_version("slixmpp"), installed_version("slixmpp-multiplatform"))
    if problem:
        yield Finding("slixmpp", "bad", problem, 2)
    else:
        yield Finding(
            "slixmpp", "good", f"slixmpp-multiplatform {installed_version('slixmpp-multiplatform')}, as SPADE requires"
        )


def installed_version(distribution: str) -> str | None:
    """Return the version of a distribution; None if it is not installed."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def slixmpp_problem(plain_version: str | None, multiplatform_version: str | None) -> str | None:
    """Describe what is wrong with these versions of `slixmpp` and `slixmpp-multiplatform`, and the remedy; None if nothing."""
    if plain_version is None and multiplatform_version is not None:
        return None
    wanted = f"slixmpp-multiplatform=={multiplatform_version}" if multiplatform_version else "slixmpp-multiplatform"
    remedy = f"pip uninstall -y slixmpp slixmpp-multiplatform && pip install --force-reinstall --no-deps {wanted}"
    if multiplatform_version is None:
        return f"slixmpp-multiplatform, which SPADE needs, is not installed; run: {remedy}"
    versions = f"slixmpp {plain_version} and slixmpp-multiplatform {multiplatform_version}"
    return f"{versions} have overwritten each other's files; run: {remedy}"


async def _check_storage(settings: Settings) -> AsyncIterator[Finding]:
    from ..app import find_directory_problems
    from ..storage import open_database, review_server

    directory = settings.data_dir
    running = read_run_file(directory)
    if running is not None:
        yield Finding(
            "data directory",
            "note",
            f"in use by a running platform (process {running.pid}); `spade-coreason status` shows its state",
        )
    elif not _is_writable(directory):
        yield Finding(
            "data directory", "bad", f"{directory}: this user has no write permission; grant it, or name another directory", 2
        )
        return
    for problem in find_directory_problems(settings):
        yield Finding("data directory", "note", problem)
    memories = settings.storage.memory_dir
    if not _is_writable(memories):
        yield Finding(
            "memory_dir", "bad", f"{memories}: this user has no write permission; grant it, or name another directory", 2
        )
    file = sqlite_file(settings)
    if file is not None and not _file_exists(file):
        return

    try:
        if (risk := await review_server(settings.storage.url)) is not None:
            yield Finding("database", "note", risk)
        database = await open_database(settings.storage.url, is_read_only=True)
    except DatabaseEmptyError:
        yield Finding("database", "good", "reachable and empty; the first start creates its tables")
    except StoreError as error:
        yield Finding("database", "bad", str(error) if file else f"{error}; check the database server and storage.url", 2)
    else:
        await database.close()


def _is_writable(directory: Path) -> bool:
    """Return True if the directory can be written, or created."""
    existing = next(path for path in (directory, *directory.absolute().parents) if path.exists())
    return existing.is_dir() and os.access(existing, os.R_OK | os.W_OK | os.X_OK)


def _file_exists(file: Path) -> bool:
    return file.exists()


def _check_embedder(settings: Settings) -> Iterator[Finding]:
    """Check whether the embedder can be built. Its server is not asked."""
    from ..app import build_embedder

    try:
        build_embedder(settings)
    except ConfigError as error:
        yield error_finding("knowledge", error)


async def _check_agents(settings: Settings) -> AsyncIterator[Finding]:
    from ..app import build_summariser, build_token_counter

    for number, agent in enumerate(settings.agents):
        jid = bare_jid(agent.jid)
        try:
            built = build_unstarted_agent(settings, number)
            place = settings.place(f"agents[{number}]")
            build_token_counter(settings.memory_of(agent), settings.project, f"{place}.memory.tokenizer")
            build_summariser(settings.memory_of(agent))
        except CoReasonError as error:
            yield error_finding(jid, error)
            continue
        metadata = built.manifest.metadata
        awaits_card = isinstance(built, HasCard) and built.awaits_card
        shown = f"{metadata.name}; its card is read at the start" if awaits_card else f"{metadata.name} {metadata.version}"
        yield Finding(jid, "good", f"{agent.agent} ({shown})")
        group = built.approvers if isinstance(built, HasApprovers) else None
        if group is not None and (mistake := find_approver_problem(settings, agent, group)) is not None:
            yield error_finding(jid, ConfigError(f"{place}.options.approvals.approvers", mistake))
        if isinstance(built, HasModels):
            for problem in await built.examine_models():
                # A server that is offline now, or a model that it does not list, may work when a person asks.
                is_certain = not (isinstance(problem, ModelError) and problem.is_transient)
                yield error_finding(jid, problem) if is_certain else Finding(jid, "note", str(problem))
        if isinstance(built, HasMCPServers):
            _, problems = await built.examine_mcp_servers()
            for problem in problems:
                yield error_finding(jid, problem) if isinstance(problem, ConfigError) else Finding(jid, "note", str(problem))


async def _check_web(settings: Settings) -> AsyncIterator[Finding]:
    """Check the address of the HTTP server. Its certificate and its packages are checked with the settings."""
    if settings.web is None:
        return
    from ..app import find_used_doors
    from ..doors import check_address

    if read_run_file(settings.data_dir) is None:  # else the running platform uses it
        try:
            await check_address(settings.web)
        except ServerError as error:
            error.place = settings.place("web")
            yield error_finding("doors", error)
            return
    doors = ", ".join(find_used_doors(settings))
    if not doors:
        yield Finding("doors", "note", f"{settings.web.public_url}: no agent lists doors; add them: doors: [openai]")
    else:
        yield Finding("doors", "good", f"{settings.web.public_url} ({doors})")


async def _check_metrics(settings: Settings) -> AsyncIterator[Finding]:
    """Check the address of the metrics. Their package is checked with the settings."""
    if settings.metrics is None:
        return
    from ..app import check_metrics_address

    if read_run_file(settings.data_dir) is None:  # else the running platform uses it
        try:
            await check_metrics_address(settings.metrics)
        except ServerError as error:
            error.place = settings.place("metrics.listen")
            yield error_finding("metrics", error)
            return
    host, _ = settings.metrics.address
    if is_loopback(host):
        yield Finding("metrics", "good", settings.metrics.url)
    else:
        problem = "all who reach this address can read the JIDs of the agents and their numbers"
        yield Finding("metrics", "note", f"{settings.metrics.url}: {problem}; let your firewall admit Prometheus alone")


def _check_local_server(settings: Settings) -> Iterator[Finding]:
    from ..xmpp import require_free_port, select_server

    mode, port = settings.server.mode, settings.server.port
    if mode == "external":
        return
    try:
        key = "server.mode"
        choice = select_server(mode)
        key = "server.port"
        if port is not None and read_run_file(settings.data_dir) is None:  # else the running platform uses it
            require_free_port(port)
    except ServerError as error:
        error.place = settings.place(key)
        yield error_finding("server", error)
        return
    yield Finding(
        "server", "note" if choice.notice else "good", choice.notice or f"a local {choice.kind} server would be started"
    )


async def _check_accounts(settings: Settings) -> AsyncIterator[Finding]:
    """Log in with each account, then describe the server."""
    from ..xmpp import ServerEndpoint

    server = settings.server
    tls = server.tls
    endpoint = ServerEndpoint(server.host, server.port, tls.verify, tls.ca_file, requires_tls=tls.required)
    description: Finding | None = None
    for number, agent in enumerate(settings.agents):
        try:
            found = await _log_in(agent, endpoint)
        except LoginError as error:
            if not agent.register_account:
                error.place_at_password(settings.place(f"agents[{number}].password"), is_registering=False)
                yield error_finding(bare_jid(agent.jid), error)
                continue
            text = "refuses the login; if the account does not exist, the start creates it (register: true)"
            yield Finding(bare_jid(agent.jid), "note", f"{error.address} {text}")
        except CoReasonError as error:
            yield error_finding(bare_jid(agent.jid), error)
            break  # the other accounts would time out too
        else:
            yield Finding(bare_jid(agent.jid), "good", "logs in")
            description = description or found
    if description is not None:
        yield description


async def _log_in(agent: AgentSettings, endpoint: ServerEndpoint) -> Finding:
    """Log in, and describe the server: how it was reached, and what it offers. Raise ConnectError or LoginError."""
    from ..xmpp import probe

    password = agent.password.get_secret_value() if agent.password is not None else ""
    security, has_management, features = await probe(agent.jid, password, endpoint)
    known = [name for feature, name in FEATURE_NAMES.items() if feature in features]
    management = "stream management" if has_management else "no stream management (a cut connection can lose messages)"
    text = f"{security}: {', '.join([management, *known])}"
    return Finding("server", "note", f"{text}; {security.problem}") if security.problem else Finding("server", "good", text)
