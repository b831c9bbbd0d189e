"""The command `spade-coreason webhooks`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ...exceptions import ConfigError
from ..account import data_option
from ..completion import complete_agents, complete_webhooks
from ..context import CLIGroup, json_option
from ..operations import describe_none, open_platform, parse_duration, print_result
from ..settings import config_option, load_storage_settings, warn_of_closed_doors
from ..terminal.console import format_time, print_cleaned, print_line, print_table

if TYPE_CHECKING:
    from ...operations.doors.webhooks import IssuedWebhook

_FILE = "config/platform.yaml, if it exists"
_OWN_SECRET = click.option(
    "--secret-file",
    "secret",
    metavar="FILE",
    help='Take the secret that the sender has made from the first line of a file, "-" for standard input.',
)


@click.group("webhooks", cls=CLIGroup)
def command() -> None:
    """Create, list, rotate or revoke the webhooks, at which a signed POST starts a turn.

    A webhook is for one agent, which knows its sender as hook-NAME@callers.invalid. Events are sent to /webhooks/NAME below the
    address of the HTTP server. The agent has to list `webhook` among its `doors` in the configuration.

    `create` and `rotate` print the secret, once. It is stored as it is: a signature cannot be checked with a hash of it.

    \b
      spade-coreason webhooks create ci release-bot
      spade-coreason webhooks list
      spade-coreason webhooks revoke ci
    """


@command.command("create")
@click.argument("name")
@click.argument("agent", shell_complete=complete_agents)
@click.option(
    "--kind",
    type=click.Choice(["standard", "github"]),
    default="standard",
    show_default=True,
    help="The form of the signature: Standard Webhooks, or that of GitHub (X-Hub-Signature-256).",
)
@click.option("--thread", metavar="T", help="The conversation of all events.  [default: the common one of the webhook]")
@_OWN_SECRET
@config_option(_FILE)
@data_option
def create(
    file: Path | None,
    data: Path | None,
    name: str,
    agent: str,
    kind: str,
    thread: str | None,
    secret: str | None,
) -> None:
    """Create a webhook for AGENT, and print its secret. Works with and without a running platform, and has effect at once.

    NAME is 1 to 40 of a-z, 0-9 and "-". It is used once: no later webhook can have it. AGENT is a JID or its name alone.

    The secret is printed this once. If standard output is no terminal, it gets the secret and nothing else.

    \b
      spade-coreason webhooks create ci release-bot
      spade-coreason webhooks create repo release-bot --kind github > secret.txt
    """
    from ...operations.doors.webhooks import create_webhook

    wanted = {"name": name, "agent": agent, "kind": kind, "thread": thread, "secret": _read_secret(secret)}
    with open_platform(file, data, changes=True, creates_directory=True) as platform:
        issued = platform.perform(create_webhook, create_webhook.read_arguments(wanted))
    _print_secret(issued, file, data)


@command.command("list")
@config_option(_FILE)
@data_option
@json_option()
def list_(file: Path | None, data: Path | None, as_json: bool) -> None:
    """List all webhooks, with those that are revoked. Works with and without a running platform.

    One of GitHub's kind remembers the bodies that it has accepted. Once it is "full", it refuses events until you rotate its
    secret. No secret is shown.

    \b
      spade-coreason webhooks list
    """
    from ...operations.definition import NoArguments
    from ...operations.doors.webhooks import list_webhooks

    with open_platform(file, data) as platform:
        found = platform.perform(list_webhooks, NoArguments())
    if as_json:
        print_result(list_webhooks, found)
    elif not found:
        print_line(describe_none(platform, "webhooks"))
    else:
        rows = [
            (
                webhook.name,
                webhook.agent,
                webhook.kind,
                webhook.thread or "",
                f"{webhook.bodies:,} of {webhook.max_bodies:,}" if webhook.kind == "github" else "",
                format_time(webhook.issued_at),
                webhook.state,
            )
            for webhook in found
        ]
        print_table(("name", "agent", "kind", "thread", "bodies", "secret of", "state"), rows)


@command.command("rotate")
@click.argument("name", shell_complete=complete_webhooks)
@click.option(
    "--keep", default="24h", show_default=True, metavar="TIME", help='The time for the secret of before; "0" ends it now.'
)
@_OWN_SECRET
@config_option(_FILE)
@data_option
def rotate(file: Path | None, data: Path | None, name: str, keep: str, secret: str | None) -> None:
    """Give a webhook a new secret, and print it. The one of before works for --keep, so that there is no gap.

    NAME is from `webhooks list`. The bodies that a secret has signed are remembered as long as it works. Works with and without
    a running platform.

    \b
      spade-coreason webhooks rotate ci
      spade-coreason webhooks rotate ci --keep 0
    """
    from ...operations.doors.named_secrets import MAX_KEEP_S
    from ...operations.doors.webhooks import rotate_webhook

    keep_s = 0 if keep == "0" else parse_duration("--keep", keep, ' or "0"', MAX_KEEP_S)
    wanted = {"name": name, "keep_s": keep_s, "secret": _read_secret(secret)}
    with open_platform(file, data, changes=True) as platform:
        issued = platform.perform(rotate_webhook, rotate_webhook.read_arguments(wanted))
    _print_secret(issued, file, data)


@command.command("revoke")
@click.argument("name", shell_complete=complete_webhooks)
@config_option(_FILE)
@data_option
def revoke(file: Path | None, data: Path | None, name: str) -> None:
    """Revoke a webhook for good, at once, and delete its secret. Works with and without a running platform.

    NAME is from `webhooks list`. What its events ask at this moment is cancelled, and the addresses of its answers end. Its
    conversation stays stored.

    \b
      spade-coreason webhooks revoke ci
    """
    from ...operations.doors.webhooks import OfWebhook, revoke_webhook

    with open_platform(file, data, changes=True) as platform:
        webhook = platform.perform(revoke_webhook, OfWebhook(name=name))
    print_line(f"The webhook {webhook.name} is revoked.")


def _read_secret(file: str | None) -> str:
    """Return the secret of `--secret-file`; "" without the option."""
    if file is None:
        return ""
    try:
        with click.open_file(file, encoding="utf-8") as stream:
            secret = str(stream.readline()).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError("--secret-file", f"{file} cannot be read: {error}") from error
    if not secret:
        raise ConfigError("--secret-file", f"the first line of {file} is empty; write the secret there")
    return secret


def _print_secret(issued: IssuedWebhook, file: Path | None, data: Path | None) -> None:
    """Print a secret: alone if the output is no terminal, else with its use. Warn if it opens nothing yet."""
    print_cleaned(issued.secret)
    webhook, settings = issued.webhook, load_storage_settings(file, data)
    warn_of_closed_doors(settings, [webhook.agent], ["webhook"])
    if not sys.stdout.isatty():
        return
    from ...config import WebSettings

    url = (settings.web or WebSettings()).public_url
    print_line()
    print_line(f"This is the secret of the webhook {webhook.name} for {webhook.agent}. It is shown this once.")
    print_line(f"Its sender needs it, and this address: {url}{webhook.path}")
