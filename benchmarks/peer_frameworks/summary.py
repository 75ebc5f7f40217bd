"""The summary of both cells: seconds per epoch, joules per batch, and times relative to the peer."""

from benchmarks import common


def summarize(
    benchmark: common.Benchmark,
    samples: dict[str, list[common.Sample]],
    *,
    batch: int,
    epoch: int,
    watts: float,
) -> None:
    """Add metrics of variants named `<model>_<variant>`; the first variant is the peer.

    Args:
        benchmark: Receives the metrics.
        samples: Samples by variant, with examples as units.
        batch: Examples per batch.
        epoch: Examples per epoch.
        watts: Power of a busy core.
    """
    for name, found in samples.items():
        wall_s = [sample.wall_s / sample.units for sample in found]
        cpu_s = [sample.cpu_s / sample.units for sample in found]
        benchmark.summarize(f"{name}_epoch_s", common.Median.of(epoch * s for s in wall_s))
        benchmark.summarize(f"{name}_epoch_cpu_s", common.Median.of(epoch * s for s in cpu_s))
        benchmark.summarize(
            f"{name}_joules_per_batch", common.Median.of(batch * s * watts for s in cpu_s)
        )
    peer, *others = samples
    of_peer = peer.rpartition("_")[2]
    for name in others:
        pairs = list(zip(samples[name], samples[peer], strict=True))
        benchmark.summarize(
            f"{name}_time_over_{of_peer}", common.Median.of(a.wall_s / b.wall_s for a, b in pairs)
        )
        benchmark.summarize(
            f"{name}_cpu_over_{of_peer}", common.Median.of(a.cpu_s / b.cpu_s for a, b in pairs)
        )
