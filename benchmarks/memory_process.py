"""Open a memory in a new process, and print its cost as JSON: `python -m benchmarks.memory_process AGENT DIRECTORY`."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from spade_coreason.memory.interaction.store import AgentInteractionMemory


def peak_kib() -> int:
    """Return the most resident memory since the last write to `clear_refs`."""
    [line] = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1])


def main() -> None:
    """Open the memory and read the names of its conversations."""
    agent, directory = sys.argv[1:]
    Path("/proc/self/clear_refs").write_text("5")
    before = peak_kib()
    begin = time.perf_counter()
    memory = AgentInteractionMemory(agent, directory)
    memory.get_all_conversations()
    seconds = time.perf_counter() - begin
    print(json.dumps({"seconds": seconds, "peak_bytes": (peak_kib() - before) * 1024}))


if __name__ == "__main__":
    main()
