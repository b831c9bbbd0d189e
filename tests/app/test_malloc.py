"""The memory of freed objects is used again, and after a while returned to the system."""

from __future__ import annotations

import subprocess
import sys

import pytest

REUSED = """
import resource
from spade_coreason.app import tune_malloc

def count_faults():
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(100):
        b"x" * 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults

tune_malloc()
count_faults()
print(count_faults())
"""

FRAGMENTED = """
import asyncio, re
from pathlib import Path
from spade_coreason.app import trim_malloc_periodically, tune_malloc

def resident_mib():
    return int(re.search(r"VmRSS:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) // 1024

async def main():
    tune_malloc()
    trimming = asyncio.create_task(trim_malloc_periodically(interval_s=0.05))
    await asyncio.sleep(0)
    before = resident_mib()
    freed, kept = [], []
    for number in range(SIZE_COUNT):
        freed.append(b"x" * (SIZE + number))
        kept.append(b"x" * (1_000 + number))  # so that the heap cannot shrink at its end
    freed.clear()
    assert resident_mib() >= before + 90
    async with asyncio.timeout(60):
        while resident_mib() > before + 30:
            await asyncio.sleep(0.05)

asyncio.run(main())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="other C libraries are left as they are")
def test_the_memory_of_large_objects_is_used_again() -> None:
    faults = subprocess.run([sys.executable, "-c", REUSED], check=True, capture_output=True, text=True).stdout
    assert int(faults) < 1000  # one object of 1 MiB has 256 pages


@pytest.mark.skipif(sys.platform != "linux", reason="the memory of the process is read from /proc")
@pytest.mark.parametrize(("size", "count"), [(100_000, 1000), (2**20, 100)])
def test_the_memory_of_freed_objects_is_returned_to_the_system(size: int, count: int) -> None:
    program = FRAGMENTED.replace("SIZE_COUNT", str(count)).replace("SIZE", str(size))
    subprocess.run([sys.executable, "-c", program], check=True)
