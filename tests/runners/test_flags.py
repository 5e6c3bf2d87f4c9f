"""What commands leave unsaid."""

import subprocess
import sys

import pytest

from tests.conftest import ROOT

# Two writes that fail, of which only the first is waited for; the other fails while its loop is shut down, or after.
FAILING_WRITES = """
import asyncio
from runners.flags import prepare_devices

async def write(turns):
    for _ in range(turns):
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            pass
    raise ValueError("No space left on device")

async def save():
    held = asyncio.ensure_future(write({turns}))
    await write(1)
    return held

{prepare}
try:
    asyncio.run(save())
except ValueError as error:
    print(error)
"""


FAILING_CALLBACK = """
import asyncio
from runners.flags import prepare_devices

async def fail():
    asyncio.get_running_loop().call_soon(lambda: 1 / 0)
    await asyncio.sleep(0)

prepare_devices(None)
asyncio.run(fail())
"""


def _said(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)


def test_other_complaints_of_asyncio_are_shown():
    assert "ZeroDivisionError" in _said(FAILING_CALLBACK).stderr


@pytest.mark.parametrize("turns", [0, 9])
def test_writes_that_nobody_waits_for_show_no_traceback(turns):
    quiet, loud = (_said(FAILING_WRITES.format(turns=turns, prepare=p)) for p in ("prepare_devices(None)", ""))
    assert "No space left on device" in loud.stderr  # what is to be kept quiet
    assert (quiet.stdout, quiet.stderr) == ("No space left on device\n", "")
