"""Commands that use a trained run: `export`, `predict`, `evaluate`, `vectors` and `kge query`."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

from rowmill.cli.importing import importing
from rowmill.cli.subcommand import add_command

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable
    from pathlib import Path

RUN = "folder of a run (--out of rowmill train), or the folder of its rows"
_DATA = (
    "click models: Parquet or TSV file with the columns of the run, or a folder of them; knowledge graphs: file of "
    "triples (TSV, Parquet or .npy), or a folder with train.tsv, valid.tsv and test.tsv; graph neural networks: the .npz "
    "file of the graph"
)
_UNKNOWN = "?"


def add_trained(commands: Any, path: Callable[[str], Path]) -> None:
    """Add the commands to the parser; `path` parses a path."""
    export = add_command(
        commands, "export", "write a trained click model as a bundle, a folder for `rowmill serve`"
    )
    _add_run(export, path)
    export.add_argument(
        "--out", type=path, required=True, metavar="BUNDLE", help="new folder for the bundle"
    )
    export.add_argument(
        "--rule",
        choices=("bytes", "prism"),
        default="bytes",
        help="how the model is split into lookups and dense layers: bytes = fewest bytes between them; prism = the "
        "rule of the Prism paper (default bytes)",
    )
    export.add_argument(
        "--compile",
        action="store_true",
        help="also compile the dense layers, with AOTInductor and g++",
    )
    export.set_defaults(command=_export, interrupted="; no bundle was written")

    predict = add_command(
        commands, "predict", "compute a score for every example of given data, with a trained run"
    )
    _add_run(predict, path)
    _add_graph(predict, path)
    predict.add_argument("--data", type=path, required=True, metavar="PATH", help=_DATA)
    predict.add_argument(
        "--out",
        type=path,
        required=True,
        metavar="FILE",
        help="new file for the scores: .npy for the scores alone, else Parquet",
    )
    _add_part(
        predict, "click models: all rows; knowledge graphs: test; graph neural networks: all nodes"
    )
    predict.add_argument(
        "--rows",
        metavar="URL",
        help="storage node that was filled from the run, nvme+tcp://HOST:PORT/NQN (default: the rows of RUN)",
    )
    predict.add_argument(
        "--access",
        type=path,
        metavar="FILE",
        help="with --rows: TOML file with name and keys of this host",
    )
    predict.set_defaults(command=_predict, interrupted="; no scores were written")

    evaluate = add_command(
        commands, "evaluate", "compute the metrics of a trained run on labelled data"
    )
    _add_run(evaluate, path)
    _add_graph(evaluate, path)
    evaluate.add_argument(
        "--data",
        type=path,
        required=True,
        metavar="PATH",
        help=f"{_DATA}. Ranking leaves out known triples: those of a folder, or of a file and of the run's graph",
    )
    _add_part(evaluate, "test; click models on another log than in training: all rows")
    evaluate.add_argument(
        "--json", action="store_true", help="print the metrics as a line of JSON, with all digits"
    )
    evaluate.set_defaults(command=_evaluate, interrupted="")

    vectors = add_command(
        commands, "vectors", "write the rows of every table of a run as Parquet and .npy files"
    )
    _add_run(vectors, path)
    _add_graph(vectors, path)
    vectors.add_argument(
        "--out", type=path, required=True, metavar="FOLDER", help="new folder for the files"
    )
    vectors.set_defaults(command=_vectors, interrupted="; nothing was written")

    kge = add_command(commands, "kge", "query a trained knowledge graph").add_subparsers(
        required=True, metavar="COMMAND"
    )
    query = add_command(kge, "query", "print the best answers for the unknown part of a triple")
    _add_run(query, path)
    _add_graph(query, path)
    for name in ("head", "relation", "tail"):
        query.add_argument(
            name,
            metavar=name.upper(),
            help="name, number as #N, or ? for the unknown part (in a shell: '?')",
        )
    query.add_argument(
        "--top", type=int, default=10, metavar="K", help="number of answers to print (default 10)"
    )
    query.add_argument(
        "--filter",
        action="store_true",
        help="leave out answers that are triples of the graph, as in filtered ranking",
    )
    query.add_argument("--json", action="store_true", help="print the answers as a line of JSON")
    query.set_defaults(command=_query, interrupted="")


def _add_run(parser: argparse.ArgumentParser, path: Callable[[str], Path]) -> None:
    parser.add_argument("run", type=path, metavar="RUN", help=RUN)
    parser.add_argument(
        "--version",
        metavar="VERSION",
        help="name or number of a version, from rowmill versions; best: the version with the best value of --best "
        "(default: the last checkpoint)",
    )


def _add_graph(parser: argparse.ArgumentParser, path: Callable[[str], Path]) -> None:
    parser.add_argument(
        "--graph",
        type=path,
        metavar="PATH",
        help="path of the graph that the run was trained on (default: its --data)",
    )


def _add_part(parser: argparse.ArgumentParser, usual: str) -> None:
    parser.add_argument(
        "--part",
        metavar="all|train|valid|test",
        help=f"part of the data, split as in training (default: {usual})",
    )


def _export(parsed: argparse.Namespace) -> int:
    with importing():
        from rowmill.partition.export_run import export_run

    notes = export_run(
        parsed.run, parsed.out, rule=parsed.rule, compile=parsed.compile, version=parsed.version
    )
    for note in notes:
        print(f"Note: {note}")
    print(f"wrote {parsed.out}; both halves are described in {parsed.out / 'report.html'}")
    return 0


def _predict(parsed: argparse.Namespace) -> int:
    with importing():
        from rowmill.saved.scores import predict

    count = predict(
        parsed.run,
        parsed.data,
        parsed.out,
        part=parsed.part,
        version=parsed.version,
        graph=parsed.graph,
        rows=parsed.rows,
        access=parsed.access,
    )
    print(f"wrote the scores of {count:,} examples to {parsed.out}")
    return 0


def _evaluate(parsed: argparse.Namespace) -> int:
    with importing():
        from rowmill.saved.metrics import evaluate
        from rowmill.train.report import figures_of

    found, config = evaluate(
        parsed.run, parsed.data, part=parsed.part, version=parsed.version, graph=parsed.graph
    )
    if parsed.json:
        print(json.dumps({name: _finite(value) for name, value in found.items()}))
        return 0
    for figure in figures_of(config.as_dict()).tested(found):
        print(f"{figure.name.removeprefix('test '):<20}{figure.of(found)}")
    return 0


def _vectors(parsed: argparse.Namespace) -> int:
    with importing():
        from rowmill.saved.vectors import write_vectors

    for table in write_vectors(parsed.run, parsed.out, version=parsed.version, graph=parsed.graph):
        print(f"{table.file}: {table.rows:,} rows of {table.dim} weights")
    print(f"wrote {parsed.out}")
    return 0


def _query(parsed: argparse.Namespace) -> int:
    with importing():
        from rowmill.config.setting import ConfigError
        from rowmill.kge.loaded_triples import LoadedTriples
        from rowmill.saved.loaded_run import load

    given = (parsed.head, parsed.relation, parsed.tail)
    asked = [None if text == _UNKNOWN else text for text in given]
    with load(parsed.run, version=parsed.version, data=parsed.graph) as loaded:
        if not isinstance(loaded, LoadedTriples):
            raise ConfigError(
                f"{loaded.folder} holds a run with train.task = {loaded.config.train.task!r}: only a knowledge graph (--task "
                "kge) answers queries; use `rowmill predict`"
            )
        answers = loaded.query(*asked, top=parsed.top, filtered=parsed.filter)
    if parsed.json:
        print(json.dumps([vars(answer) for answer in answers]))
        return 0
    for place, answer in enumerate(answers, 1):
        shown = f"#{answer.number}" if answer.name is None else answer.name
        print(f"{place:>4}  {answer.score:>12.6f}  {shown}")
    return 0


def _finite(value: float | None) -> float | None:
    """The value; None for NaN and infinite ones, which JSON lacks."""
    return value if value is not None and math.isfinite(value) else None
