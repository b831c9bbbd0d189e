"""An MCP server without the SDK, of the protocol before 2026, with faults that the SDK cannot have.

Usage: `python legacy_server.py LOG [FAULT ...]`. LOG receives a line for each event. The faults:

deaf      It answers nothing.
stubborn  It ends only by SIGKILL.
chatty    It writes lines that are not messages.
broken    It prints a reason and ends.
rich      It has 120 tools.
wordy     It describes the input of its first tool at great length.
halves    It ends its texts in the middle of a character.
odd       It has a number for the name of a tool.
mail      Its tool "say" returns data, and has a schema for them with a pattern that backtracks without end.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

LOG, FAULTS = Path(sys.argv[1]), sys.argv[2:]
NAMES = [f"tool{number}" for number in range(120)] if "rich" in FAULTS else ["say", "slow", "hang", "die", "grow", "long"]
TOOLS: list[dict[str, Any]] = [
    {"name": name, "description": f"It is called {name}.", "inputSchema": {"type": "object"}} for name in NAMES
]


def note(line: str) -> None:
    with LOG.open("a") as file:
        file.write(f"{line}\n")


def send(**message: Any) -> None:
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


def page(cursor: str | None) -> dict[str, Any]:
    """Return a page of two tools."""
    start = int(cursor or 0)
    more = {"nextCursor": str(start + 2)} if start + 2 < len(TOOLS) else {}
    return {"tools": TOOLS[start : start + 2], **more}


def call(name: str, arguments: dict[str, Any]) -> str | None:
    match name:
        case "slow":
            return None
        case "hang":
            while True:
                time.sleep(60)
        case "die":
            sys.exit(7)
        case "long":
            return "x" * int(arguments["size"])
        case "grow":
            TOOLS.append({"name": "new", "description": "It is new.", "inputSchema": {"type": "object"}})
            send(method="notifications/tools/list_changed")
            return "grown"
        case _:
            return " ".join([name, *arguments.values()])


def answer(message: dict[str, Any]) -> None:
    params = message.get("params", {})
    match message["method"]:
        case "initialize":
            capabilities = {"tools": {"listChanged": True}}
            info = {"name": "old", "version": "1"}
            result: dict[str, Any] = {"protocolVersion": "2025-06-18", "capabilities": capabilities, "serverInfo": info}
        case "tools/list":
            result = page(params.get("cursor"))
        case "tools/call":
            note(f"called {params['name']}")
            text = call(params["name"], params.get("arguments", {}))
            if text is None:
                return
            result = {"content": [{"type": "text", "text": f"{text}\ud83d" if "halves" in FAULTS else text}]}
            if (rows := params.get("arguments", {}).get("rows")) is not None:
                result["structuredContent"] = {"rows": [dict.fromkeys("abcdef", 1)] * int(rows)}
            if "mail" in FAULTS and "mail" in params.get("arguments", {}):
                result["structuredContent"] = params["arguments"]
        case "notifications/cancelled":
            return note("cancelled")
        case _ if "id" not in message:
            return
        case _:
            return send(id=message["id"], error={"code": -32601, "message": "there is no such method"})
    send(id=message["id"], result=result)


if "wordy" in FAULTS:
    TOOLS[0]["inputSchema"] = {"type": "object", "description": "anything at all " * 10_000}
if "odd" in FAULTS:
    TOOLS[0]["name"] = 7
if "mail" in FAULTS:
    mail = {"pattern": r"^([a-zA-Z0-9]+[._-]?)+@[a-z]+[.]com$"}
    TOOLS[0]["outputSchema"] = {"type": "object", "properties": {"mail": mail}}
note(f"began {os.getpid()}")
if "broken" in FAULTS:
    sys.exit("the disk is gone")
if "stubborn" in FAULTS:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    subprocess.Popen(["sleep", "600"])  # it ignores the signal, too
for line in sys.stdin:
    if "chatty" in FAULTS:
        print("Welcome!", flush=True)
    if "deaf" not in FAULTS:
        answer(json.loads(line))
while "stubborn" in FAULTS:
    time.sleep(60)
note("ended")
