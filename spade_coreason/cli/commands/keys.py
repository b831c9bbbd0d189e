"""The command `spade-coreason keys`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..account import data_option
from ..completion import complete_agents, complete_keys
from ..context import CLIGroup, json_option
from ..operations import describe_none, open_platform, parse_duration, print_result
from ..settings import config_option, load_storage_settings, warn_of_closed_doors
from ..terminal.console import format_time, paint, print_cleaned, print_line, print_table

if TYPE_CHECKING:
    from ...operations.doors.keys import IssuedKey

_FILE = "config/platform.yaml, if it exists"


@click.group("keys", cls=CLIGroup)
def command() -> None:
    """Create, list, rotate or revoke the keys with which programs ask agents over HTTP.

    A key is for one or several agents, and ends by itself after 90 days. It stands for itself: agents know its caller as
    NAME@callers.invalid, with memories and quotas of its own. With --jid it stands for a person. It asks under their quotas
    then, and sees nothing of theirs.

    The platform stores a hash of the secret only. `create` and `rotate` print the secret, once. An agent is behind a door if
    its `doors` in the configuration name it.

    \b
      spade-coreason keys create website --agent notes
      spade-coreason keys list
      spade-coreason keys revoke website
    """


@command.command("create")
@click.argument("name")
@click.option(
    "--agent",
    "agents",
    metavar="JID",
    multiple=True,
    required=True,
    shell_complete=complete_agents,
    help="An agent that the key may ask: its JID, or its name alone. Repeat it for several.",
)
@click.option("--jid", "account", metavar="JID", default="", help="The person for whom the key asks. They are told by chat.")
@click.option(
    "--expires", default="90d", show_default=True, metavar="TIME", help='The time until the key ends: "12h", "90d" or "never".'
)
@click.option(
    "--users-by-header", is_flag=True, help="For a front end: a header of each request names the person for whom it asks."
)
@config_option(_FILE)
@data_option
def create(
    file: Path | None,
    data: Path | None,
    name: str,
    agents: tuple[str, ...],
    account: str,
    expires: str,
    users_by_header: bool,
) -> None:
    """Create a key, and print its secret. Works with and without a running platform, and has effect at once.

    NAME is 1 to 40 of a-z, 0-9 and "-". It is used once: no later key can have it.

    The secret is printed this once. If standard output is no terminal, it gets the secret and nothing else.

    With --users-by-header, each person has conversations and memories of their own. Use it for a front end that many people
    share, such as Open WebUI.

    \b
      spade-coreason keys create website --agent notes
      spade-coreason keys create editor --agent coder --jid carol@example.com --expires 30d
      spade-coreason keys create ci --agent release --expires never > secret.txt
    """
    from ...operations.doors.keys import MAX_LIFETIME_S, create_key

    lifetime_s = None
    if expires != "never":
        lifetime_s = parse_duration("--expires", expires, ', "90d" or "never"', MAX_LIFETIME_S)
    wanted = {"name": name, "agents": list(agents), "account": account, "lifetime_s": lifetime_s}
    with open_platform(file, data, changes=True, creates_directory=True) as platform:
        issued = platform.perform(create_key, create_key.read_arguments({**wanted, "users_by_header": users_by_header}))
    _print_secret(issued, file, data)


@command.command("list")
@config_option(_FILE)
@data_option
@json_option()
def list_(file: Path | None, data: Path | None, as_json: bool) -> None:
    """List all keys, with those that are expired or revoked. Works with and without a running platform.

    The last use is up to a minute old. No secret is shown.

    \b
      spade-coreason keys list
    """
    from ...operations.definition import NoArguments
    from ...operations.doors.keys import list_keys

    with open_platform(file, data) as platform:
        found = platform.perform(list_keys, NoArguments())
    if as_json:
        print_result(list_keys, found)
    elif not found:
        print_line(describe_none(platform, "keys"))
    else:
        rows = [
            (
                key.name,
                ", ".join([*key.agents, *(f"{agent} (rejected)" for agent in key.withdrawn)]),
                key.account or ("people of a front end" if key.users_by_header else "itself"),
                format_time(key.created_at),
                "never" if key.expires_at is None else format_time(key.expires_at),
                "never" if key.last_used_at is None else format_time(key.last_used_at),
                key.state,
            )
            for key in found
        ]
        print_table(("name", "agents", "for", "created", "expires", "last used", "state"), rows)


@command.command("rotate")
@click.argument("name", shell_complete=complete_keys)
@click.option(
    "--keep", default="24h", show_default=True, metavar="TIME", help='The time for the secret of before; "0" ends it now.'
)
@config_option(_FILE)
@data_option
def rotate(file: Path | None, data: Path | None, name: str, keep: str) -> None:
    """Give a key a new secret, and print it. Its time begins again, with the length that it had.

    NAME is from `keys list`. The secret of before works for --keep, so that the program can get the new one without a gap. A
    person for whom the key stands is told. Works with and without a running platform.

    \b
      spade-coreason keys rotate website
      spade-coreason keys rotate website --keep 0
    """
    from ...operations.doors.keys import rotate_key
    from ...operations.doors.named_secrets import MAX_KEEP_S

    keep_s = 0 if keep == "0" else parse_duration("--keep", keep, ' or "0"', MAX_KEEP_S)
    with open_platform(file, data, changes=True) as platform:
        issued = platform.perform(rotate_key, rotate_key.read_arguments({"name": name, "keep_s": keep_s}))
    _print_secret(issued, file, data)


@command.command("revoke")
@click.argument("name", shell_complete=complete_keys)
@config_option(_FILE)
@data_option
def revoke(file: Path | None, data: Path | None, name: str) -> None:
    """Revoke a key for good, at once. Works with and without a running platform.

    NAME is from `keys list`. What its callers ask at this moment is cancelled. Their conversations stay stored.

    \b
      spade-coreason keys revoke website
    """
    from ...operations.doors.keys import OfKey, revoke_key

    with open_platform(file, data, changes=True) as platform:
        key = platform.perform(revoke_key, OfKey(name=name))
    print_line(f"The key {key.name} is revoked.")


@command.command("person")
@click.argument("name", shell_complete=complete_keys)
@click.argument("user")
def person(name: str, user: str) -> None:
    """Print the address of a person below a key, which `people export` and `people delete` take.

    NAME is the key of a front end (--users-by-header). USER is the person as its header names them.

    \b
      spade-coreason keys person webui 4f1c
      spade-coreason people export "$(spade-coreason keys person webui 4f1c)"
    """
    from ...domain.callers import person_below

    print_line(person_below(name, user))


def _print_secret(issued: IssuedKey, file: Path | None, data: Path | None) -> None:
    """Print a secret: alone if the output is no terminal, else with its use. Warn if it opens nothing yet."""
    print_cleaned(issued.secret)
    settings = load_storage_settings(file, data)
    warn_of_closed_doors(settings, issued.key.agents, ("openai", "a2a", "mcp"))
    if not sys.stdout.isatty():
        return
    from ...config import WebSettings

    key = issued.key
    end = "never ends" if key.expires_at is None else f"works until {format_time(key.expires_at)}"
    print_line()
    print_line(f"This is the secret of the key {key.name} for {', '.join(key.agents)}. It is shown this once, and {end}.")
    print_line("Try it, if the agent has the door `openai`:")
    url = (settings.web or WebSettings()).public_url
    print_line(paint(f'  curl {url}/v1/models -H "Authorization: Bearer {issued.secret}"', "dim"))
