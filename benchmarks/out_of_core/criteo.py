"""A DLRM on the Criteo sample with row memory for a tenth of the rows: metrics must be bit-identical."""

import json
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks import common
from rowmill.config import Config, DataConfig, StoreConfig, TrainConfig
from rowmill.ctr.settings import GenerateConfig
from rowmill.train import train

MEMORY = "1GiB"


def data(folder: Path) -> tuple[DataConfig, GenerateConfig | None]:
    """The Criteo sample, or if it is missing, a log generated once into `folder`."""
    sample = common.data_file("criteo/criteo80k.parquet")
    if sample is not None:
        return DataConfig(path=sample), None
    return DataConfig(path=folder / "log"), GenerateConfig(rows=80_000, rows_per_table=20_000)


def run(benchmark: common.Benchmark) -> None:
    """Add the metrics of the sample."""
    with tempfile.TemporaryDirectory(prefix="rowmill-") as name:
        folder = Path(name)
        source, generated = data(folder)
        reports: dict[str, list[dict[str, Any]]] = {}

        def epoch(variant: str, row_memory: str | None) -> int:
            out = folder / f"{variant}-{len(reports.get(variant, []))}"
            report = train(
                Config(
                    data=source,
                    generate=generated,
                    store=StoreConfig(memory=MEMORY, row_memory=row_memory),
                    train=TrainConfig(seed=benchmark.settings.seed, out=out),
                ),
                Console(quiet=True),
            )
            reports.setdefault(variant, []).append(report)
            return int(report["run"]["train_rows"])

        epoch("sizing", None)
        sizes = reports["sizing"][0]["run"]
        tenth = str(int(sizes["live_row_bytes"]) // 10)
        samples = benchmark.compare(
            {
                "memory_for_all": lambda: epoch("memory_for_all", None),
                "a_tenth": lambda: epoch("a_tenth", tenth),
            },
            rounds=3 if benchmark.settings.quick else 7,
        )
        for variant in samples:
            rates = [float(report["train"]["rows_per_s"]) for report in reports[variant][1:]]
            benchmark.summarize(f"{variant}_rows_per_s", common.Median.of(rates))
            benchmark.summarize(
                f"{variant}_cpu_us_per_row", common.cpu_us_per_unit(samples[variant])
            )
            last = reports[variant][-1]
            benchmark.summary[f"{variant}_hit_rate"] = float(last["train"]["hit_rate"])
            benchmark.summary[f"{variant}_stall_share"] = float(last["train"]["stall_share"])
            benchmark.summary[f"{variant}_auc"] = float(last["test"]["auc"])
        rates = [
            float(few["train"]["rows_per_s"]) / float(all_["train"]["rows_per_s"])
            for few, all_ in zip(reports["a_tenth"][1:], reports["memory_for_all"][1:], strict=True)
        ]
        benchmark.summarize("rate_with_a_tenth_over_all", common.Median.of(rates))
        equal = json.dumps(reports["a_tenth"][-1]["test"]) == json.dumps(
            reports["memory_for_all"][-1]["test"]
        )
        benchmark.summary["test_metrics_equal_to_the_bit"] = float(equal)
        benchmark.summary["live_rows"] = float(sizes["live_rows"])
        benchmark.summary["live_row_bytes"] = float(sizes["live_row_bytes"])
        benchmark.summary["blocks_read_with_a_tenth"] = float(
            reports["a_tenth"][-1]["run"]["device_blocks_read"]
        )
