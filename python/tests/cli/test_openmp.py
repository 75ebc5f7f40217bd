"""`rowmill train` lets idle threads of OpenMP sleep early; what the environment says wins."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize(
    ("given", "spins"),
    [
        pytest.param({}, "10000", id="nothing"),
        pytest.param({"GOMP_SPINCOUNT": "77"}, "77", id="spins"),
        pytest.param({"OMP_WAIT_POLICY": "passive"}, "0", id="policy"),
    ],
)
def test_the_setting_is_made_before_openmp_reads_it(
    tmp_path: Path, given: dict[str, str], spins: str
) -> None:
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
    }
    done = subprocess.run(
        [sys.executable, "-m", "rowmill", "train", "--data", "absent", "--out", "out"],
        cwd=tmp_path,
        env={**environment, **given, "OMP_DISPLAY_ENV": "verbose"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "data absent does not exist" in done.stderr
    assert re.findall(r"GOMP_SPINCOUNT = '(\d+)'", done.stderr) == [spins]
