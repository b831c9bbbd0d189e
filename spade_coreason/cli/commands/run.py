"""`spade-coreason run`"""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import yaml

from ...exceptions import ConfigError, CoReasonError
from ..account import PASSWORD_VARIABLE, data_option, password_of
from ..context import PROGRAM, command as define, run as run_work
from ..logging import quote_errors
from ..serve import serve
from ..settings import by_option, settings_of

if TYPE_CHECKING:
    from ...app import Platform
    from ...config import Settings

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_NAMES = {
    "agents[0]": "",  # the text names the account
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
@data_option
def command(agent: str, pairs: tuple[str, ...], jid: str | None, data: Path | None, **given: Any) -> None:
    """Run one agent without a configuration file.

    MODULE:ATTRIBUTE names a class, a function that makes the agent, or the agent itself. Without --host and --domain a
    server is started for it on this machine. Values of --option are read as YAML: 3 is a number, [a, b] a list.

    \b
      spade-coreason run weather:weather
      spade-coreason run agents.echo:EchoAgent --option delay_s=0.2
      spade-coreason run weather:weather --jid weather@example.org --password-file secret.txt
    """
    quote_errors()
    settings = _settings(agent, pairs, jid, data, given)
    options = ["--host", "--port", "--ca-file"]
    there = [f" {option} {shlex.quote(str(value))}" for option in options if (value := given[option[2:].replace("-", "_")])]
    try:
        run_work(serve(settings, lambda platform: _print(platform, data, "".join(there))))
    except CoReasonError as error:
        by_option(error, _NAMES)
        raise
    print("Stopped.")


def _settings(agent: str, pairs: tuple[str, ...], jid: str | None, data: Path | None, given: dict[str, Any]) -> Settings:
    domain, host = given["domain"], given["host"]
    address = jid or f"{name_of(agent) or 'agent'}@{domain or host or 'localhost'}"
    is_external = bool(host or domain) or ("@" in address and address.partition("@")[2].partition("/")[0] != "localhost")
    settings: dict[str, Any] = {"jid": address, "agent": agent, "options": dict(map(_option, pairs))}
    if given["manifest"] is not None:
        settings["manifest"] = str(given["manifest"].absolute())
    if is_external:
        settings |= {"password": _password(address, given), "register": given["register"]}
    elif given["password_env"] or given["password_file"]:
        settings["password"] = _password(address, given)
    server: dict[str, Any] = {"port": given["port"]}
    if is_external:
        ca_file = str(given["ca_file"].absolute()) if given["ca_file"] else None
        tls = {"verify": not given["no_verify"], "ca_file": ca_file}
        server |= {
            "mode": "external",
            "domain": domain or address.partition("@")[2].partition("/")[0],
            "host": host,
            "tls": tls,
        }
    else:
        server["mode"] = os.environ.get("SPADE_COREASON_SERVER__MODE") or "auto"
    return settings_of({"server": server, "agents": [settings]}, _NAMES, data)


def name_of(spec: str) -> str:
    """The name of an agent by its class or its variable: "echo" for `agents.echo:EchoAgent`."""
    name = spec.rpartition(":")[2].rpartition(".")[2]
    short = re.sub(r"_?agent$", "", name, flags=re.IGNORECASE) or name
    return short.lower()


def _option(pair: str) -> tuple[str, Any]:
    name, equals, text = pair.partition("=")
    if not equals or not name.strip():
        raise ConfigError(f"--option {pair}", "is no KEY=VALUE; write it like delay_s=0.2")
    try:
        return name.strip(), yaml.safe_load(text) if text else ""
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigError(f"--option {name.strip()}", "its value is no valid YAML; put it into quotes") from error


def _password(jid: str, given: dict[str, Any]) -> str:
    variable = given["password_env"]
    if variable is None:
        return password_of(jid, given["password_file"])
    if given["password_file"] is not None:
        raise ConfigError("--password-env", "there is --password-file too; keep one of the two")
    if password := os.environ.get(variable):
        return password
    raise ConfigError(f"--password-env {variable}", f"this variable is not set; set it to the password of {jid}")


def _print(platform: Platform, data: Path | None, there: str) -> None:
    """`there` are the options that say where an external server is."""
    [(jid, _)] = platform.agents_described
    where = platform.server_line
    if platform.server is not None:
        where = f"{platform.server.kind} server, {platform.server.host}:{platform.server.port}"
    print(f"{jid} is online ({where}).\nAsk it from another terminal:")
    account = "" if platform.server is not None else f" --jid YOU@DOMAIN{there}"
    place = f" --data {shlex.quote(str(data))}" if data is not None else ""
    print(f'  {PROGRAM} ask {jid} "Hello"{account}{place}', flush=True)
