"""The watch on the event loop: it writes where the loop is blocked, and never ends the process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

BLOCK_OFTEN = """
import asyncio, sys
from pathlib import Path
from spade_coreason.app.loop_watch import watch_loop

def block_until_noticed(path):
    while not path.stat().st_size:
        pass

async def main(data_dir):
    stacks = ""
    async with watch_loop(data_dir, blocked_s=0.01):
        for _ in range(200):
            await asyncio.sleep(0)
            block_until_noticed(data_dir / "blocked.txt")
            stacks += (data_dir / "blocked.txt").read_text()
            while (data_dir / "blocked.txt").stat().st_size:
                await asyncio.sleep(0)
    assert "in block_until_noticed" in stacks, stacks

asyncio.run(main(Path(sys.argv[1])))
"""


def test_python_code_that_blocks_the_loop_again_and_again_goes_on(tmp_path: Path) -> None:
    process = subprocess.run([sys.executable, "-c", BLOCK_OFTEN, str(tmp_path)], capture_output=True, text=True, check=False)
    assert (process.returncode, process.stderr) == (0, "")
    assert list(tmp_path.iterdir()) == []
