"""Requests with raw columns in place of inputs, and ranking requests, sent to a worker.

Scores are compared with `rowmill predict`. They must be bit-identical to scores of the inputs that `apply_transform` gives.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tritonclient.utils import InferenceServerException

from python.tests.partition.runs import config_of, write_log
from python.tests.partition.test_export_run import held_out, predicted, scores_of
from python.tests.serve.workers import worker
from python.tests.train.configs import quiet
from rowmill.cli import main
from rowmill.ctr.data import MISSING_ID
from rowmill.partition.transform import apply_transform
from rowmill.train.run import train

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

http: Any = import_module("tritonclient.http")
grpc: Any = import_module("tritonclient.grpc")

_FLAGS = (
    "--http-port",
    "0",
    "--grpc-port",
    "0",
    "--metrics-port",
    "0",
    "--slo",
    "60",
    "--memory",
    "16MiB",
)
_KINDS = {
    "float32": "FP32",
    "float64": "FP64",
    "int64": "INT64",
    "int32": "INT32",
    "object": "BYTES",
}

Columns = dict[str, "NDArray[Any]"]


@dataclass(frozen=True)
class Served:
    """A served model, a log that it was not trained on, and the scores of the log by `rowmill predict`."""

    name: str
    addresses: dict[str, str]
    transform: dict[str, Any]
    log: pa.Table
    scores: NDArray[np.float32]

    @property
    def base(self) -> int:
        return self.transform["id_base"]

    def ask(
        self, inputs: Columns, *, over: Any = http, binary: bool = True, **options: Any
    ) -> dict[str, NDArray[Any]]:
        given: list[Any] = []
        for name, values in inputs.items():
            given.append(over.InferInput(name, list(values.shape), _KINDS[str(values.dtype)]))
            form = {} if over is grpc else {"binary_data": binary}
            given[-1].set_data_from_numpy(values, **form)
        address = self.addresses["grpc" if over is grpc else "http"]
        with over.InferenceServerClient(address) as client:
            result = client.infer(self.name, given, **options)
            response = result.get_response()
            names = (
                [output.name for output in response.outputs]
                if over is grpc
                else [output["name"] for output in response["outputs"]]
            )
            return {name: result.as_numpy(name) for name in names}

    def answer(self, inputs: Columns, *, over: Any = http) -> NDArray[np.float32]:
        (scores,) = self.ask(inputs, over=over).values()
        return scores

    def columns(self, log: pa.Table, *, texts: bool) -> Columns:
        """The columns of a log as a client sends them, ids as numbers or as texts."""

        def ids(values: pa.Array) -> NDArray[Any]:
            if not texts:
                return values.fill_null(MISSING_ID).to_numpy(zero_copy_only=False)
            form = "x" if self.base == 16 else "d"
            raw = values.to_pylist()
            return np.array(["" if one is None else f"{one:{form}}" for one in raw], dtype=object)

        found: Columns = {}
        for column in self.transform["dense"]:
            found[column["name"]] = log[column["name"]].to_numpy(zero_copy_only=False)
        for column in self.transform["ids"]:
            found[column["name"]] = ids(log[column["name"]].combine_chunks())
        for column in self.transform["histories"]:
            lists = log[column["name"]].combine_chunks()
            found[f"{column['name']}.values"] = ids(lists.flatten())
            offsets = lists.offsets.to_numpy()
            found[f"{column['name']}.offsets"] = offsets - offsets[0]
        return found

    def inputs(self, log: pa.Table) -> Columns:
        """The inputs that `apply_transform` gives for a log."""
        return {name: value.numpy() for name, value in apply_transform(self.transform, log).items()}

    def of_one_user(self) -> tuple[pa.Table, pa.Table]:
        """A row of the log, and a log of 40 candidates for its user."""
        items = {column["name"] for column in (*self.transform["dense"], *self.transform["ids"])
                 if column["per"] == "item"}  # fmt: skip
        candidates, user = self.log.slice(0, 40), self.log.slice(41, 1)
        columns = {
            name: candidates[name]
            if name in items
            else pa.chunked_array([user[name].combine_chunks()] * 40)
            for name in self.log.column_names
        }
        return user, pa.table(columns)

    def ranking(self, *, texts: bool) -> Columns:
        """The columns of `of_one_user` as a ranking request: columns of the user have one row."""
        user, candidates = self.of_one_user()
        once, each = self.columns(user, texts=texts), self.columns(candidates, texts=texts)
        roles = (*self.transform["dense"], *self.transform["ids"], *self.transform["histories"])
        of_user = {column["name"] for column in roles if column["per"] == "user"}
        return {name: (once if name.rsplit(".", 1)[0] in of_user else each)[name] for name in each}


def exported(folder: Path, kind: str, *, id_base: int, **flags: Any) -> Path:
    """Train a run and export it; returns its bundle."""
    folder.mkdir()
    write_log(folder / "log", kind)
    schema = folder / "log" / "schema.toml"
    schema.write_text(f"id_base = {id_base}\n{schema.read_text()}")
    train(config_of(folder, kind, **flags), quiet())
    assert main(["export", str(folder / "run"), "--out", str(folder / kind)]) == 0
    return folder / kind


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Served]]:
    root = tmp_path_factory.mktemp("raw")
    paths = [
        exported(root / "a", "din", id_base=16),
        exported(root / "b", "dlrm", id_base=10, data__ids="hash", data__buckets=30),
    ]
    found: dict[str, Served] = {}
    with worker(*paths, *_FLAGS) as running:
        for path in paths:
            data = held_out(path.parent, labels=False)
            scores = scores_of(predicted(path.parent / "run", data, path.parent / "scores.parquet"))
            found[path.name] = Served(
                path.name,
                running.addresses,
                json.loads((path / "transform.json").read_text()),
                pq.read_table(data),
                scores[:, 0].numpy(),
            )
        yield found
        assert not [line for line in running.log if '"ERROR"' in line], running.log


@pytest.fixture(params=["din", "dlrm"])
def served(both: dict[str, Served], request: pytest.FixtureRequest) -> Served:
    return both[request.param]


@pytest.mark.parametrize("over", [http, grpc])
@pytest.mark.parametrize("texts", [False, True])
def test_scores_of_raw_columns_equal_predict(served: Served, texts: bool, over: Any) -> None:
    scores = served.answer(served.columns(served.log, texts=texts), over=over)
    np.testing.assert_allclose(scores, served.scores, rtol=0, atol=1e-6)
    np.testing.assert_array_equal(scores, served.answer(served.inputs(served.log)))


def test_columns_of_other_types_and_as_json(served: Served) -> None:
    log = served.log.slice(0, 9)
    columns = served.columns(log, texts=True)
    expected = served.answer(columns)
    for column in served.transform["dense"]:
        columns[column["name"]] = columns[column["name"]].astype(np.float64).reshape(-1, 1)
    np.testing.assert_array_equal(served.answer(columns), expected)
    for column in served.transform[
        "dense"
    ]:  # JSON has no NaN; negative numbers have the same logarithm here.
        columns[column["name"]] = np.nan_to_num(columns[column["name"]], nan=-1.0)
    (scores,) = served.ask(columns, binary=False).values()
    np.testing.assert_array_equal(scores, expected)


def test_a_user_given_once_is_repeated_for_every_candidate(served: Served) -> None:
    _, candidates = served.of_one_user()
    expected = served.answer(served.inputs(candidates))
    for texts in (False, True):
        np.testing.assert_array_equal(served.answer(served.ranking(texts=texts)), expected)


@pytest.mark.parametrize("over", [http, grpc])
def test_top_k_returns_the_best_scores_and_their_positions(served: Served, over: Any) -> None:
    _, candidates = served.of_one_user()
    inputs = served.inputs(candidates)
    scores = served.answer(inputs)
    order = np.argsort(-scores, kind="stable")
    for request in (inputs, served.ranking(texts=True)):
        for count in (1, 7, 40, 1000):
            found = served.ask(request, over=over, parameters={"top_k": count})
            assert list(found) == ["scores", "positions"]
            np.testing.assert_array_equal(found["positions"], order[:count])
            np.testing.assert_array_equal(found["scores"], scores[order[:count]])
    with pytest.raises(
        InferenceServerException, match="top_k is -1, must be a whole number from 1"
    ):
        served.ask(inputs, over=over, parameters={"top_k": -1})
    with pytest.raises(InferenceServerException, match=r"no output \S+, its outputs are"):
        served.ask(inputs, over=over, parameters={"top_k": 1, "top_k_output": "x"})


def test_inputs_of_the_user_may_have_one_row(both: dict[str, Served]) -> None:
    served = both["din"]
    _, candidates = served.of_one_user()
    inputs = served.inputs(candidates)
    expected = served.answer(inputs)
    np.testing.assert_array_equal(
        served.answer(inputs | {"lengths": inputs["lengths"][:1]}), expected
    )
    with pytest.raises(InferenceServerException, match="has 40 items in dimension 0, must have 1"):
        served.ask(inputs | {"dense": inputs["dense"][:1]})


def test_the_configuration_describes_the_columns(served: Served) -> None:
    with grpc.InferenceServerClient(served.addresses["grpc"]) as client:
        over_grpc = client.get_model_config(served.name, as_json=True)["config"]
    with http.InferenceServerClient(served.addresses["http"]) as client:
        config = client.get_model_config(served.name)
        inputs = [given["name"] for given in client.get_model_metadata(served.name)["inputs"]]
    assert over_grpc["parameters"] == config["parameters"]
    columns = json.loads(config["parameters"]["raw_columns"]["string_value"])
    sent = served.columns(served.log, texts=False)
    assert [column["name"] for column in columns] == list(sent)
    assert all(_KINDS[str(sent[column["name"]].dtype)] in column["datatypes"] for column in columns)
    per = {column["name"]: column["per"] for column in columns}
    assert (per["price"], per["user"], per["item"]) == ("item", "user", "item")
    user_inputs = json.loads(config["parameters"]["user_inputs"]["string_value"])
    assert user_inputs == [name for name in inputs if name == "lengths"]


def test_errors_of_columns_name_column_row_and_value(both: dict[str, Served]) -> None:
    served = both["din"]
    right = served.columns(served.log.slice(0, 5), texts=True)
    others = {name: values for name, values in right.items() if name != "shop"}
    inputs = served.inputs(served.log.slice(0, 5))

    def changed(name: str, row: int, value: Any) -> Columns:
        values = right[name].copy()
        values[row] = value
        return right | {name: values}

    for columns, reason in [
        (changed("user", 3, "xyz"), 'column "user", row 3: "xyz" is no id'),
        (changed("item", 2, "8000000000000000"), "reserved for missing values"),
        (changed("price", 1, np.inf), 'column "price", row 1: inf is infinite'),
        (changed("before.offsets", 0, 1), 'column "before.offsets" runs from 1'),
        (right | {"price": right["price"][:4]}, 'column "price" has 4 rows, must have 5'),
        (right | {"shop": right["shop"][:2]}, 'column "shop" has 2 rows, must have 1 or 5'),
        (
            right | {"price": right["price"].reshape(1, 5)},
            'column "price": shape is [1,5], must be',
        ),
        (
            right | {"user": np.ones(5, np.int32)},
            'column "user": datatype is "INT32", must be INT64',
        ),
        (others | {"ids": inputs["ids"]}, 'the request has input "ids" and raw column "age"'),
        ({name: right[name] for name in list(right)[1:]}, 'column "age" is missing'),
        (
            others | {"colour": right["user"]},
            'no input "colour", its inputs are ["dense", "ids", "len',
        ),
    ]:
        for over in (http, grpc):
            with pytest.raises(InferenceServerException) as caught:
                served.ask(columns, over=over)
            assert reason in str(caught.value), caught.value
    assert served.answer(right).shape == (5,)
