"""The command `spade-coreason run`."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import yaml

from ...exceptions import ConfigError, CoReasonError
from ..account import PASSWORD_VARIABLE, data_option, read_password
from ..context import PROGRAM, define_command as define
from ..logging import quote_errors
from ..reload import reload_option, run_or_reload
from ..settings import build_settings, place_at_option

if TYPE_CHECKING:
    from ...app import Platform
    from ...config import Settings

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_OPTION_BY_KEY = {
    "agents[0]": "",  # the message names the account
    "agents[0].agent": "MODULE:ATTRIBUTE",
    "agents[0].jid": "--jid",
    "agents[0].manifest": "--manifest",
    "agents[0].password": "--password-file",
    "server.domain": "--domain",
    "server.host": "--host",
    "server.mode": "SPADE_COREASON_SERVER__MODE",
    "server.port": "--port",
    "server.tls.ca_file": "--ca-file",
    "server.tls.verify": "--no-verify",
}


@define("run")
@click.argument("agent", metavar="MODULE:ATTRIBUTE")
@click.option("--jid", help="The agent's address.  [default: the attribute's name, at the server's domain]")
@click.option("--option", "pairs", metavar="KEY=VALUE", multiple=True, help="An argument for the constructor; repeatable.")
@click.option("--manifest", type=_FILE, metavar="FILE", help="The agent's manifest, YAML or JSON.")
@click.option("--host", help="An XMPP server that runs already.  [default: a local one is started]")
@click.option("--port", type=click.IntRange(1, 65535), help="The port of that server, or of the local one.")
@click.option("--domain", help="The domain of that server, if it is not its host or the JID's.")
@click.option("--password-env", metavar="VAR", help=f"The variable with the password.  [default: {PASSWORD_VARIABLE}]")
@click.option("--password-file", type=_FILE, metavar="FILE", help="A file with the password.")
@click.option("--register", is_flag=True, help="Make the account on that server if it is not there.")
@click.option("--ca-file", type=_FILE, metavar="FILE", help="The authority that signed the server's certificate.")
@click.option("--no-verify", is_flag=True, help="Do not verify the server's certificate.")
@reload_option
@data_option
def command(agent: str, pairs: tuple[str, ...], jid: str | None, data: Path | None, is_reloading: bool, **values: Any) -> None:
    """Run one agent without a configuration file.

    MODULE:ATTRIBUTE names a class, a function that makes the agent, or the agent itself. Without --host and --domain a
    server is started for it on this machine. Values of --option are read as YAML: 3 is a number, [a, b] a list.

    \b
      spade-coreason run weather:weather
      spade-coreason run weather:weather --reload
      spade-coreason run agents.echo:EchoAgent --option delay_s=0.2
      spade-coreason run weather:weather --jid weather@example.org --password-file secret.txt
    """
    quote_errors()
    settings = _build_settings(agent, pairs, jid, data, values)
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
    except CoReasonError as error:
        place_at_option(error, _OPTION_BY_KEY)
        raise


def _build_settings(agent: str, pairs: tuple[str, ...], jid: str | None, data: Path | None, values: dict[str, Any]) -> Settings:
    domain, host = values["domain"], values["host"]
    address = jid or f"{default_agent_name(agent) or 'agent'}@{domain or host or 'localhost'}"
    is_external = bool(host or domain) or ("@" in address and address.partition("@")[2].partition("/")[0] != "localhost")
    settings: dict[str, Any] = {"jid": address, "agent": agent, "options": dict(map(_parse_option, pairs))}
    if values["manifest"] is not None:
        settings["manifest"] = str(values["manifest"].absolute())
    if is_external:
        settings |= {"password": _read_password(address, values), "register": values["register"]}
    elif values["password_env"] or values["password_file"]:
        settings["password"] = _read_password(address, values)
    server: dict[str, Any] = {"port": values["port"]}
    if is_external:
        ca_file = str(values["ca_file"].absolute()) if values["ca_file"] else None
        tls = {"verify": not values["no_verify"], "ca_file": ca_file}
        server |= {
            "mode": "external",
            "domain": domain or address.partition("@")[2].partition("/")[0],
            "host": host,
            "tls": tls,
        }
    else:
        server["mode"] = os.environ.get("SPADE_COREASON_SERVER__MODE") or "auto"
    return build_settings({"server": server, "agents": [settings]}, _OPTION_BY_KEY, data)


def default_agent_name(spec: str) -> str:
    """Derive the name of an agent from its class or variable: "echo" from `agents.echo:EchoAgent`."""
    name = spec.rpartition(":")[2].rpartition(".")[2]
    short = re.sub(r"_?agent$", "", name, flags=re.IGNORECASE) or name
    return short.lower()


def _parse_option(pair: str) -> tuple[str, Any]:
    name, equals, text = pair.partition("=")
    if not equals or not name.strip():
        raise ConfigError(f"--option {pair}", "is no KEY=VALUE; write it like delay_s=0.2")
    try:
        return name.strip(), yaml.safe_load(text) if text else ""
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigError(f"--option {name.strip()}", "its value is no valid YAML; put it into quotes") from error


def _read_password(jid: str, values: dict[str, Any]) -> str:
    variable = values["password_env"]
    if variable is None:
        return read_password(jid, values["password_file"])
    if values["password_file"] is not None:
        raise ConfigError("--password-env", "there is --password-file too; keep one of the two")
    if password := os.environ.get(variable):
        return password
    raise ConfigError(f"--password-env {variable}", f"this variable is not set; set it to the password of {jid}")


def _print_started(platform: Platform, data: Path | None, server_options: str) -> None:
    """Print that the agent is online, and a command that asks it. `server_options` are the options of an external server."""
    [(jid, _)] = platform.agent_descriptions
    where = platform.server_description
    if platform.server is not None:
        where = f"{platform.server.kind} server, {platform.server.host}:{platform.server.port}"
    print(f"{jid} is online ({where}).\nAsk it from another terminal:")
    account = "" if platform.server is not None else f" --jid YOU@DOMAIN{server_options}"
    place = f" --data {shlex.quote(str(data))}" if data is not None else ""
    print(f'  {PROGRAM} ask {jid} "Hello"{account}{place}', flush=True)
