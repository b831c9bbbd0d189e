"""The command `spade-coreason run`."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import yaml

from ...domain.texts.enumeration import join_names
from ...exceptions import ConfigError, CoReasonError, DataDirectoryInUseError, LoginError
from ..account import PASSWORD_VARIABLE, data_option, read_password
from ..context import PROGRAM, define_command as define
from ..logging import show_tracebacks
from ..reload import reload_option, run_or_reload
from ..settings import build_settings, place_at_option, with_page
from ..terminal.console import print_line

if TYPE_CHECKING:
    from ...app import Platform
    from ...config import Settings

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_AGENT = "MODULE:ATTRIBUTE"
_links = set[asyncio.Task[None]]()
"""The tasks that print a link. An event loop does not keep them."""
_OPTION_BY_KEY = {
    "server.domain": "--domain",
    "server.host": "--host",
    "server.mode": "SPADE_COREASON_SERVER__MODE",
    "server.port": "--port",
    "server.tls.ca_file": "--ca-file",
    "server.tls.verify": "--no-verify",
}


@define("run")
@click.argument("agents", metavar=f"{_AGENT}...", nargs=-1, required=True)
@click.option("--jid", help="The address of the agent.  [default: the name of the attribute, at the server's domain]")
@click.option(
    "--option", "pairs", metavar="KEY=VALUE", multiple=True, help="An argument for the agent's constructor; repeatable."
)
@click.option("--manifest", type=_FILE, metavar="FILE", help="The agent's manifest (YAML or JSON).")
@click.option("--host", help="The host of an existing XMPP server.  [default: a local server is started]")
@click.option(
    "--port", type=click.IntRange(1, 65535), help="The port of the server.  [default: 5222, or any free port for a local one]"
)
@click.option("--domain", help="The domain of the existing server.  [default: the domain of --jid, else --host]")
@click.option(
    "--password-env", metavar="VAR", help=f"The environment variable with the agents' password.  [default: {PASSWORD_VARIABLE}]"
)
@click.option("--password-file", type=_FILE, metavar="FILE", help="A file with the agents' password.")
@click.option("--register", is_flag=True, help="Register accounts that do not exist on the existing server.")
@click.option(
    "--ca-file", type=_FILE, metavar="FILE", help="A PEM file with the authority that signed the server's certificate."
)
@click.option("--no-verify", is_flag=True, help="Do not verify the server's certificate.")
@reload_option
@data_option
def command(
    agents: tuple[str, ...], pairs: tuple[str, ...], jid: str | None, data: Path | None, is_reloading: bool, **values: Any
) -> None:
    """Run agents without a configuration file.

    MODULE:ATTRIBUTE names a class, a function that makes the agent, or the agent itself. Without --host and --domain, a local
    server is started. Values of --option are read as YAML: 3 is a number, [a, b] is a list.

    Several agents share one server, and can ask each other. --jid, --option and --manifest work with a single agent only.

    \b
      spade-coreason run weather:weather
      spade-coreason run weather:weather --reload
      spade-coreason run weather:weather bakery:Bakery
      spade-coreason run spade_coreason.agents.echo:EchoAgent --option delay_s=0.2
      spade-coreason run weather:weather --jid weather@example.org --password-file secret.txt
    """
    show_tracebacks()
    settings = _build_settings(agents, pairs, jid, data, values)
    if settings.server.is_local and (settings := with_page(settings)).web is not None and is_reloading:
        os.environ["SPADE_COREASON_WEB__PORT"] = str(settings.web.port)  # the same for all children
    options = ["--host", "--port", "--ca-file"]
    server_options = [
        f" {option} {shlex.quote(str(value))}" for option in options if (value := values[option[2:].replace("-", "_")])
    ]
    try:
        run_or_reload(
            settings,
            lambda platform: _print_started(platform, data, "".join(server_options)),
            is_reloading=is_reloading,
            files=[] if values["manifest"] is None else [values["manifest"]],
        )
    except DataDirectoryInUseError as error:
        place_at_option(error, {})
        if error.key == "data_dir":
            raise ConfigError(error.place, _describe_running(error, agents, data)) from None
        raise
    except LoginError as error:
        error.place = ""  # the message names the account
        raise
    except CoReasonError as error:
        place_at_option(error, _option_by_key(agents))
        raise


def _build_settings(
    specs: tuple[str, ...], pairs: tuple[str, ...], jid: str | None, data: Path | None, values: dict[str, Any]
) -> Settings:
    if len(specs) > 1:
        for option, value in (("--jid", jid), ("--option", pairs), ("--manifest", values["manifest"])):
            if value:
                problem = (
                    f"works with one agent only, and you named {len(specs)}; use a configuration file instead: {PROGRAM} init"
                )
                raise ConfigError(option, problem)
    domain, host = values["domain"], values["host"]
    addresses = [jid or f"{default_agent_name(spec) or 'agent'}@{domain or host or 'localhost'}" for spec in specs]
    for number, address in enumerate(addresses):
        if (first := addresses.index(address)) < number:
            problem = (
                f"would get the same address as {specs[first]}: {address}; name them in a configuration file: {PROGRAM} init"
            )
            raise ConfigError(specs[number], problem)
    is_external = bool(host or domain) or ("@" in addresses[0] and _domain_of(addresses[0]) != "localhost")
    if not is_external:
        _refuse_server_options(values)
    agents: list[dict[str, Any]] = [{"jid": address, "agent": spec} for address, spec in zip(addresses, specs, strict=True)]
    agents[0]["options"] = dict(map(_parse_option, pairs))
    if values["manifest"] is not None:
        agents[0]["manifest"] = str(values["manifest"].absolute())
    if is_external:
        password = _read_password(addresses, values)
        for agent in agents:
            agent |= {"password": password, "register": values["register"]}
    elif values["password_env"] or values["password_file"]:
        password = _read_password(addresses, values)
        for agent in agents:
            agent["password"] = password
    server: dict[str, Any] = {"port": values["port"]}
    if is_external:
        ca_file = str(values["ca_file"].absolute()) if values["ca_file"] else None
        tls = {"verify": not values["no_verify"], "ca_file": ca_file}
        server |= {"mode": "external", "domain": domain or _domain_of(addresses[0]), "host": host, "tls": tls}
    else:
        server["mode"] = os.environ.get("SPADE_COREASON_SERVER__MODE") or "auto"
    return build_settings({"server": server, "agents": agents}, _option_by_key(specs), data)


def _refuse_server_options(values: dict[str, Any]) -> None:
    """Raise ConfigError if there is an option that only an existing server could obey."""
    for option in ("--register", "--ca-file", "--no-verify"):
        if values[option[2:].replace("-", "_")]:
            raise ConfigError(option, "needs --host or --domain; a local server is started without them")


def _domain_of(address: str) -> str:
    return address.partition("@")[2].partition("/")[0]


def _option_by_key(specs: tuple[str, ...]) -> dict[str, str]:
    """Return what a person has written for each setting; one of several agents is named by itself."""
    options = dict(_OPTION_BY_KEY)
    for number, spec in enumerate(specs):
        key, is_alone = f"agents[{number}]", len(specs) == 1
        options |= {
            key: "",  # the message names the account
            f"{key}.agent": _AGENT if is_alone else spec,
            f"{key}.jid": "--jid" if is_alone else spec,
            f"{key}.manifest": "--manifest",
            f"{key}.password": "--password-file",
        }
    return options


def _describe_running(error: DataDirectoryInUseError, specs: tuple[str, ...], data: Path | None) -> str:
    """Say how agents get to a platform that runs already: in one command with its agents, or in its configuration."""
    from ...config import read_run_file

    running = read_run_file(error.directory)
    owner = f"process {error.pid}" if error.pid else "another process"
    if running is None or any(not agent["agent"] for agent in running.agents):
        remedy = "stop it first"
    elif running.configuration is None:
        together = [agent["agent"] for agent in running.agents]
        together += [spec for spec in specs if spec not in together]
        place = [] if data is None else ["--data", str(data)]
        remedy = f"stop it, and run all agents together: {PROGRAM} run {shlex.join([*together, *place])}"
    else:
        remedy = f"add {join_names(specs)} to `agents` in {running.configuration}, and restart the platform"
    return f"{error.directory}: in use by {owner}; {remedy}; or name another directory (--data DIR)"


def default_agent_name(spec: str) -> str:
    """Derive the name of an agent from its class or variable: "echo" from `spade_coreason.agents.echo:EchoAgent`."""
    name = spec.rpartition(":")[2].rpartition(".")[2]
    short = re.sub(r"_?agent$", "", name, flags=re.IGNORECASE) or name
    return short.lower()


def _parse_option(pair: str) -> tuple[str, Any]:
    name, equals, text = pair.partition("=")
    if not equals or not name.strip():
        raise ConfigError(f"--option {pair}", "is not KEY=VALUE; write it like delay_s=0.2")
    try:
        return name.strip(), yaml.safe_load(text) if text else ""
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigError(f"--option {name.strip()}", "the value is not valid YAML; quote it") from error


def _read_password(jids: list[str], values: dict[str, Any]) -> str:
    variable = values["password_env"]
    names = join_names(jids)
    if variable is None:
        return read_password(names, values["password_file"])
    if values["password_file"] is not None:
        raise ConfigError("--password-env", "conflicts with --password-file; use one of them")
    if password := os.environ.get(variable):
        return password
    raise ConfigError(f"--password-env {variable}", f"the variable is not set; set it to the password of {names}")


def _print_started(platform: Platform, data: Path | None, server_options: str) -> None:
    """Print which agents are online, and a command that asks one. `server_options` are the options of an external server."""
    jids = [jid for jid, _ in platform.agent_descriptions]
    where = platform.server_description
    if platform.server is not None:
        where = f"{platform.server.kind} server, {platform.server.host}:{platform.server.port}"
    are_online, it = ("is online", "it") if len(jids) == 1 else ("are online", "one of them")
    print_line(f"{join_names(jids)} {are_online} ({where}).")
    print_line(f"Ask {it} from another terminal:")
    account = "" if platform.server is not None else f" --jid YOU@DOMAIN{server_options}"
    place = f" --data {shlex.quote(str(data))}" if data is not None else ""
    print_line(f'  {PROGRAM} ask {jids[0]} "Hello"{account}{place}')
    if platform.web_status is not None and platform.guest is not None and sys.stdout.isatty():
        _links.add(asyncio.create_task(_print_link(platform, platform.guest[0], place)))


async def _print_link(platform: Platform, guest: str, place: str) -> None:
    print_line("Or chat in the browser:")
    print_line(f"  {await platform.make_login(guest)}")
    print_line(f"  It works once, for two minutes; `{PROGRAM} web{place}` prints another.")
