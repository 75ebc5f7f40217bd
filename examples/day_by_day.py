"""A click model over two days: trained, killed, resumed, continued with the next day, asked for scores. `make` runs it.

1. Generate a click log and cut it into three days.
2. Train on day 1, with memory for a quarter of the rows, and kill the command in the middle of a step.
3. Resume: it goes on from its last checkpoint. Score day 3, which is never trained.
4. Continue the run with day 2, and score day 3 again: its AUC is higher.
5. Do the same in a run that is not killed. Its scores of day 3 are equal to the last bit.

Everything is in `out/days`. The program may be run again: it replaces its runs and keeps the log.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torchmetrics.functional.classification import binary_auroc

ROWMILL = (sys.executable, "-m", "rowmill")
FOLDER = Path("out/days")
LOG, RUN, WHOLE = FOLDER / "log", FOLDER / "run", FOLDER / "not_killed"
DAYS = {
    FOLDER / "day1.parquet": 300_000,
    FOLDER / "day2.parquet": 200_000,
    FOLDER / "day3.parquet": 100_000,
}
TABLE_ROWS = 180_000
# A row is 16 weights and 16 floats of Adagrad state. Both days leave 2.0 million rows, 250 MB: four times `--row-memory`.
SETTINGS = ("--row-memory", "56MiB", "--memory", "512MiB", "--checkpoint-every", "100")
KILL_AFTER_S = 120.0
"""Longest wait for the checkpoints before the kill."""


def rowmill(*arguments: str | Path) -> None:
    """Run a command to its end."""
    print("\n$ rowmill", *arguments, flush=True)
    done = subprocess.run([*ROWMILL, *map(str, arguments)])
    if done.returncode != 0:
        sys.exit(
            f"day_by_day: `rowmill {arguments[0]}` ended with code {done.returncode}: see its message"
        )


def killed(*arguments: str | Path) -> None:
    """Run a training command, and kill it soon after its second checkpoint."""
    print("\n$ rowmill", *arguments, "   # killed in the middle", flush=True)
    process = subprocess.Popen([*ROWMILL, *map(str, arguments)])
    manifest, start, seen = RUN / "store/MANIFEST", time.time(), set[float]()
    while len(seen) < 2 and process.poll() is None and time.time() < start + KILL_AFTER_S:
        time.sleep(0.05)
        if (
            manifest.exists() and manifest.stat().st_mtime > start
        ):  # An older one is of the run that is replaced.
            seen.add(manifest.stat().st_mtime)
    time.sleep(0.5)  # Half a second of steps that no checkpoint has.
    process.kill()
    if process.wait() != -9:
        sys.exit("day_by_day: the command ended before it could be killed")
    print("\nkilled: kill -9")


def cut_into_days() -> None:
    """Generate the log, unless an earlier run did, and write its days."""
    rowmill(
        "data",
        "generate",
        "--out",
        LOG,
        "--rows",
        str(sum(DAYS.values())),
        "--rows-per-table",
        str(TABLE_ROWS),
    )
    log = pa.concat_tables(pq.read_table(file) for file in sorted(LOG.glob("*.parquet")))
    start = 0
    for path, rows in DAYS.items():
        pq.write_table(log.slice(start, rows), path)
        start += rows


def scores_of_day_3(run: Path, name: str) -> tuple[np.ndarray, float]:
    """Scores by the last checkpoint of a run, and their AUC."""
    out = FOLDER / f"{name}.parquet"
    out.unlink(missing_ok=True)
    rowmill("predict", run, "--data", list(DAYS)[2], "--out", out)
    table = pq.read_table(out)
    scores, labels = table["score"].to_numpy(), table["label"].to_numpy()
    auc = binary_auroc(torch.from_numpy(scores), torch.from_numpy(labels).int())
    return scores, float(auc)


def main() -> None:
    """Run all steps."""
    start = time.monotonic()
    FOLDER.mkdir(parents=True, exist_ok=True)
    cut_into_days()
    day1, day2, _ = DAYS
    train = ("train", "--data", day1, *SETTINGS)
    killed(*train, "--out", RUN, "--replace")
    rowmill(*train, "--out", RUN, "--resume")
    _, before = scores_of_day_3(RUN, "after_day1")
    rowmill("train", "--continue", RUN, "--data", day2)
    scores, after = scores_of_day_3(RUN, "after_day2")
    print("\nThe same without a kill:")
    rowmill(*train, "--out", WHOLE, "--replace")
    rowmill("train", "--continue", WHOLE, "--data", day2)
    whole, _ = scores_of_day_3(WHOLE, "not_killed")
    differ = int((scores.view(np.uint32) != whole.view(np.uint32)).sum())
    print(f"""
AUC of day 3 after day 1   {before:.4f}
AUC of day 3 after day 2   {after:.4f}
scores that a kill changed {differ} of {len(scores):,}
page of the run            {RUN / "report.html"}
time                       {time.monotonic() - start:.0f} s""")
    if differ:
        sys.exit(
            "day_by_day: a killed and resumed run must give the bits of one that was not killed"
        )


if __name__ == "__main__":
    main()
