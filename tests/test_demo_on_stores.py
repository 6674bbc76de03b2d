"""The demo on a store of every kind, as a user runs it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from plugins.redis.tests.servers import VALKEY, shared

COMMAND = (sys.executable, "-P", "-c", "from perdure.cli import main; main()", "demo")


@pytest.mark.soak
@pytest.mark.parametrize("scheme", ["file", "redis"])
def test_the_demo_runs_on_a_store_of_ones_own(scheme: str, tmp_path: Path) -> None:
    url = f"file:{tmp_path / 'stores'}" if scheme == "file" else shared(VALKEY).url
    ran = subprocess.run(
        [*COMMAND, "--store", url, "--json"],
        capture_output=True,
        text=True,
        timeout=100,
        stdin=subprocess.DEVNULL,
        check=False,
        cwd=tmp_path,
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    report = json.loads(ran.stdout)
    assert report["checks"]
    assert all(check["holds"] for check in report["checks"])
    print(f"{len(report['checks'])} checks on {scheme}")
