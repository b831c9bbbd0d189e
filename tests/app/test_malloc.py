"""The memory of freed large objects is returned to the system."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import re
from pathlib import Path
from spade_coreason.app import tune_malloc

def resident_mib():
    return int(re.search(r"VmRSS:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) // 1024

tune_malloc()
freed = b"x" * 2**21
del freed  # from now on glibc would keep objects of this size
before = resident_mib()
large, small = [], []
for number in range(100):
    large.append(b"x" * (2**20 + number))
    small.append(b"x" * 100_000)  # behind each large one, so that the heap cannot shrink
assert resident_mib() >= before + 100
large.clear()
print(resident_mib() - before)
"""


FRAGMENTED = """
import asyncio, re
from pathlib import Path
from spade_coreason.app import trim_malloc_periodically

def resident_mib():
    return int(re.search(r"VmRSS:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) // 1024

async def main():
    trimming = asyncio.create_task(trim_malloc_periodically(interval_s=0.05))
    await asyncio.sleep(0)
    before = resident_mib()
    freed, kept = [], []
    for number in range(1000):
        freed.append(b"x" * (100_000 + number))
        kept.append(b"x" * (1_000 + number))  # so that the heap cannot shrink at its end
    freed.clear()
    assert resident_mib() >= before + 90
    async with asyncio.timeout(60):
        while resident_mib() > before + 30:
            await asyncio.sleep(0.05)

asyncio.run(main())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the memory of the process is read from /proc")
def test_the_memory_of_large_objects_is_returned_to_the_system() -> None:
    kept_mib = subprocess.run([sys.executable, "-c", PROGRAM], check=True, capture_output=True, text=True).stdout
    assert int(kept_mib) < 30


@pytest.mark.skipif(sys.platform != "linux", reason="the memory of the process is read from /proc")
def test_the_memory_of_many_objects_of_medium_size_is_returned_to_the_system() -> None:
    subprocess.run([sys.executable, "-c", FRAGMENTED], check=True)
