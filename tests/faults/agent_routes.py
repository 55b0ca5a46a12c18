"""Valid and invalid requests made from the agent server's own OpenAPI document: tests/contract/test_fuzz.py in full."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from tests.faults.reports import Report
from tests.serving import ROOT

_TESTS = "tests/contract/test_fuzz.py"


async def agent_routes(folder: Path, *, examples: int = 100) -> Report:
    """Send this many requests of either kind for each operation.

    Each answer is one that the document promises, none is a 5xx, and a refused request changes nothing.
    """
    report = Report("agent-routes")
    argv = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--timeout", "3600", _TESTS]
    environment = {**os.environ, "FUZZ_EXAMPLES": str(examples)}
    process = await asyncio.create_subprocess_exec(*argv, cwd=ROOT, env=environment, stdout=asyncio.subprocess.PIPE)
    output = (await process.communicate())[0].decode()
    report.check(process.returncode == 0, output[-6000:])
    report.tell(requests_of_each_kind_for_each_operation=examples, pytest=output.splitlines()[-1].strip())
    return report
