"""The command `spade-coreason check`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ...exceptions import CoReasonError
from .. import errors
from ..context import define_command as define, json_option, run_async
from ..settings import config_option, load_platform_settings
from ..terminal.console import print_json, print_line, verdict_sign

if TYPE_CHECKING:
    from ..checks import Finding


@define("check")
@config_option("config/platform.yaml")
@json_option("Print the findings as JSON.")
def command(file: Path | None, as_json: bool) -> int:
    """Check a configuration without changing anything.

    Reads the file, imports and builds every agent, and checks that the MCP servers offer the tools that manifests require.
    On an external server it also logs in with every account, and lists the features of the server. No account is created, and
    no message is sent.

    Exit code: 0 no problem, 1 stored data of an agent that cannot be read, 2 a mistake in the configuration, 4 a server that
    cannot be reached, 5 a server that refuses an account.

    \b
      spade-coreason check
      spade-coreason check -c config/production.yaml --json
    """
    from ..checks import Finding, check_settings

    try:
        settings = load_platform_settings(file)
    except CoReasonError as error:
        if not as_json:
            raise
        findings = [Finding("configuration", "bad", errors.format_error(error), errors.exit_code(error))]
        return _print_findings(findings, as_json)
    return _print_findings(run_async(check_settings(settings)), as_json)


def _print_findings(findings: list[Finding], as_json: bool) -> int:
    code = next((finding.exit_code for finding in findings if finding.verdict == "bad"), 0)
    if as_json:
        records = [{"what": f.subject, "verdict": f.verdict, "text": f.text} for f in findings]
        print_json({"ok": code == 0, "findings": records})
        return code
    width = max(len(finding.subject) for finding in findings)
    for finding in findings:
        print_line(verdict_sign(finding.verdict), f"{finding.subject:<{width}}  {finding.text}")
    return code
