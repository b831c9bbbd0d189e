"""Agents in a process of their own that starts without the time for imports."""

from __future__ import annotations

from spade_coreason.testing import Isolation
from tests.support.warm import WarmProcess

WARM_ISOLATION = Isolation(popen=WarmProcess)
"""The default isolation, with a process that is forked from one with the imports."""
