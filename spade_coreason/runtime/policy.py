"""How one agent is run, as values."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from ..contracts import MemoryConfig
from ..domain.conversation import Rules
from .agent_lifecycle import StartupMode
from .retention import Retention
from .timings import Timings


@dataclass(frozen=True, slots=True)
class Policy:
    """How one agent is run; the configuration's keys of the same names say more."""

    rules: Rules = field(default_factory=Rules)
    memory: MemoryConfig = field(default_factory=MemoryConfig)
    retention: Retention = field(default_factory=Retention)
    assist_timeout_s: float = 120.0
    lifecycle: StartupMode = "eager"
    idle_shutdown_s: float = 300.0
    on_restart: Literal["rerun", "report"] = "rerun"
    concurrency: int = 256
    queue: int = 1000
    commands: bool = True
    operators: frozenset[str] = frozenset()
    thoughts: bool = False
    stanza_bytes: int = 65536
    file_over_bytes: int = 262144
    remembered_turns: int = 256
    """Replies to the newest turns find their conversation in memory; replies to older ones in the database."""
    timings: Timings = field(default_factory=Timings)
