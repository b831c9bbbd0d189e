"""The command `spade-coreason invite`."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ...config import read_run_file
from ...domain.callers import refuse_caller
from ...domain.environment.loopback import is_loopback
from ...domain.jid import bare_jid, jid_domain, local_part, parse_jid
from ...domain.texts.enumeration import join_names
from ...domain.texts.xmpp_uri import format_contact_uri
from ...exceptions import ConfigError
from ...operations.host import describe_agents
from ..account import data_option, find_running_directory
from ..completion import complete_agents
from ..context import current_options, define_command as define, json_option
from ..settings import config_option, load_storage_settings_quietly
from ..terminal.console import (
    check_encoding,
    has_colours,
    is_unicode,
    print_cleaned,
    print_json,
    print_line,
    terminal_width,
    warn,
)
from ..terminal.qr_code import QUIET_ZONE, build_qr_code, draw_qr_code

if TYPE_CHECKING:
    import segno

_PICTURE = click.Path(dir_okay=False, path_type=Path)
_PIXELS_OF_A_MODULE = 10
_HINT = "Scan it with Conversations, Cheogram or Monal: it adds the agent as a contact."


@define("invite")
@click.argument("agent", shell_complete=complete_agents)
@click.option("--name", help="The name of the new contact.  [default: none, so that the client takes the agent's own]")
@click.option("--png", type=_PICTURE, metavar="FILE", help="Write the QR code to this file, as PNG.")
@click.option("--svg", type=_PICTURE, metavar="FILE", help="Write the QR code to this file, as SVG.")
@json_option("Print the JID and the URI as JSON.")
@config_option("config/platform.yaml, if there is one")
@data_option
def command(
    agent: str, name: str | None, png: Path | None, svg: Path | None, as_json: bool, file: Path | None, data: Path | None
) -> None:
    """Print the address of an agent as a URI and a QR code, to add it from a phone.

    AGENT is the agent's JID, or the part before the @. The agents are those of the running platform (see -c and --data), else
    those of the configuration; no password is needed. A client that opens the URI, such as xmpp:weather@example.org?roster,
    offers to add the agent as a contact. The answers of a contact grow while they are written.

    The QR code is drawn on a terminal only; a pipe gets the URI alone, in one line. It is drawn black on white, and with
    NO_COLOR in the colours of a dark terminal. With --png or --svg it is in the file instead. An existing file is replaced.

    \b
      spade-coreason invite weather
      spade-coreason invite weather@example.org --png weather.png
    """
    check_encoding(agent, "AGENT")
    jid = _resolve_agent(agent, _known_agents(file, data))
    uri = format_contact_uri(jid, check_encoding(name, "--name") if name else None)
    is_local = is_loopback(jid_domain(jid))
    if png is not None:
        build_qr_code(uri).save(str(png), kind="png", scale=_PIXELS_OF_A_MODULE)
    if svg is not None:
        build_qr_code(uri).save(str(svg), kind="svg", scale=_PIXELS_OF_A_MODULE)
    if as_json:
        print_json({"jid": jid, "uri": uri, "is_local": is_local}, indent=None)
    else:
        print_line(uri)
    if png is None and svg is None and not as_json and sys.stdout.isatty():
        _print_qr_code(build_qr_code(uri))
    if is_local:
        warn(f"{jid_domain(jid)} is this machine only, and no phone reaches it; put the agent on a server that your phone uses")


def _known_agents(file: Path | None, data: Path | None) -> list[str]:
    """List the agents of the running platform, else those of the configuration."""
    running = read_run_file(find_running_directory(file, data))
    if running is not None:
        return [agent["jid"] for agent in running.agents]
    settings = load_storage_settings_quietly(current_options().project, file, data)
    return [bare_jid(agent.jid) for agent in settings.agents]


def _resolve_agent(agent: str, known: Sequence[str]) -> str:
    """Return the bare JID of an agent. Raise ConfigError if it is not among the known agents, or ambiguous.

    A JID on a domain that no known agent has is an agent of another platform.
    """
    if "@" in agent:
        try:
            jid = bare_jid(parse_jid(refuse_caller(agent)))
        except ValueError as error:
            raise ConfigError("AGENT", str(error)) from error
        if jid in known or jid_domain(jid) not in map(jid_domain, known):
            return jid
    elif not known:
        remedy = "start the platform (`spade-coreason up`), name its configuration with -c FILE, or write the whole JID"
        raise ConfigError("AGENT", f'no agents are known here, so "{agent}" is not enough; {remedy}')
    found = [jid for jid in known if agent.lower() == local_part(jid)]
    if len(found) == 1:
        return found[0]
    if found:
        raise ConfigError("AGENT", f'"{agent}" may be {join_names(found, "or")}; write the whole JID')
    names = {name: jid for jid in known for name in (local_part(jid), jid)}
    hint = "".join(f"did you mean {names[match]}? " for match in difflib.get_close_matches(agent.lower(), names, 1))
    raise ConfigError("AGENT", f'there is no agent "{agent}"; {hint}{describe_agents(known)}')


def _print_qr_code(code: segno.QRCode) -> None:
    """Draw the QR code on the terminal, or say why it cannot show one."""
    columns = code.symbol_size(border=QUIET_ZONE)[0]
    width = terminal_width()
    if width is not None and width < columns:
        warn(f"the terminal is too narrow for the QR code, which has {columns} columns; widen it, or write it with --png FILE")
    elif not is_unicode():
        warn("the terminal cannot show the QR code, because its encoding is not UTF-8; write it with --png FILE")
    else:
        print_cleaned("\n".join(draw_qr_code(code, has_colours=has_colours(sys.stdout))))
        print_line(_HINT)
