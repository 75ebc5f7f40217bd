"""The cells of the benchmark: each is one kind of work, with the arguments of the program that runs it."""

from dataclasses import dataclass

MIB = 1 << 20

PEERS = ("rocksdb", "lmdb", "wiredtiger", "faster")
# Threads that call a peer: the number that call the store, and enough to keep the device busy if every
# read waits for it (of the peers, only FASTER reads asynchronously).
PEER_THREADS = "2,16"


@dataclass(frozen=True)
class Cell:
    """One kind of work, and the arguments of the program that runs it."""

    name: str
    work: str
    rows: int
    row_bytes: int
    memory: int
    arguments: tuple[str, ...] = ()
    seconds: float | None = None
    peers: bool = False


def cells(quick: bool) -> list[Cell]:
    """All cells; the quick form has a quarter of the rows and of the memory."""
    part = 4 if quick else 1
    short, wide = 32 * MIB // part, 8 * MIB // part
    # Memory for all rows with index and bookkeeping, and for a quarter of the rows' bytes.
    all_short, all_wide, quarter = 160 * short, 640 * wide, 128 * wide
    adagrad = ("--optimizer", "rowwise-adagrad")
    two = ("--threads", "2")
    zipf = (*two, "--zipf", "0.99", "--warm-up", "20" if quick else "60")
    drift = (*zipf, "--drift-every", "2000000")
    ycsb = ("--batch", "256")
    return [
        Cell("get_64B", "memory-get", short, 64, all_short, peers=True),
        Cell("get_64B_2_threads", "memory-get", short, 64, all_short, two),
        Cell("get_512B", "memory-get", wide, 512, all_wide),
        Cell("get_512B_2_threads", "memory-get", wide, 512, all_wide, two),
        Cell("sgd_64B", "memory-rmw", short, 64, all_short),
        Cell("rowwise_adagrad_64B", "memory-rmw", short, 64, all_short, adagrad),
        Cell("clocks_uniform", "clocks", short, 64, all_short, ycsb),
        Cell("clocks_zipf", "clocks", short, 64, all_short, (*ycsb, "--zipf", "0.99")),
        Cell("cold_get_uniform", "cold-get", wide, 512, quarter, two, peers=True),
        Cell("cold_get_zipf", "cold-get", wide, 512, quarter, zipf, peers=True),
        Cell("cold_get_drift", "cold-get", wide, 512, quarter, drift),
        Cell("cold_rmw_uniform", "cold-rmw", wide, 512, quarter, two, peers=True),
        Cell("cold_rmw_zipf", "cold-rmw", wide, 512, quarter, zipf, peers=True),
        Cell("space", "space", wide // 2, 512, quarter // 2, two, seconds=3),
        Cell(
            "checkpoint",
            "checkpoint",
            wide,
            512,
            quarter,
            (*two, "--zipf", "1.05"),
            seconds=4 if quick else 20,
        ),
        Cell("open", "open", 10_000_000, 64, 2 * 1024 * MIB, two),
        training(quick),
    ]


def training(quick: bool) -> Cell:
    """26 tables of a million rows (quick: a tenth), 64 weights per row, memory for a quarter of the bytes."""
    rows = (100_000 if quick else 1_000_000) * 26
    arguments = (
        *("--threads", "2", "--zipf", "1.05", "--batch", "2048", "--tables", "26"),
        *("--steps", "128", "--warm-up", "6" if quick else "30"),
    )
    return Cell("training", "training", rows // 26, 256, rows * 256 // 4, arguments, peers=True)
