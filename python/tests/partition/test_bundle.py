"""Bundles on disk: a reopened bundle gives the results of the exported module, and a damaged one does not open."""

from __future__ import annotations

import json
import re
import shutil
from typing import TYPE_CHECKING

import pytest
import torch
from torch import Tensor, nn

import rowmill
from python.tests.partition.models import (
    IDS,
    D,
    Model,
    bags,
    click_model,
    stacked,
    transformer,
)
from python.tests.serve.workers import Ragged, ragged_call
from rowmill.errors import BundleDamaged, BundleExists, CannotExport, InvalidInput
from rowmill.partition.bundle import Bundle
from rowmill.partition.capture import capture
from rowmill.partition.colouring import colour
from rowmill.partition.export import export
from rowmill.partition.placement import Parts, place

if TYPE_CHECKING:
    from pathlib import Path


def answers_alike(bundle: Bundle, model: Model) -> None:
    """Check that a bundle gives the results of its module, for batch sizes with which it was not traced."""
    names = [named["name"] for named in bundle.signature["inputs"]]
    model.module.eval()
    for rows in (1, 6):
        call = model.call(rows)
        with torch.no_grad():
            expected = model.module(*call)
        answers = bundle.run(dict(zip(names, call, strict=True)))
        for answer, own in zip(
            answers, expected if isinstance(expected, tuple) else (expected,), strict=True
        ):
            torch.testing.assert_close(answer, own, rtol=1e-5, atol=1e-5)


def test_a_click_model_over_a_store(store: rowmill.Store, tmp_path: Path) -> None:
    model = click_model("dlrm", lambda columns: stacked(store, columns))
    unseen = torch.tensor([[IDS + 7, 0, IDS + 9]])
    said = export(model.module, [model.call(5), model.call(3)], out=tmp_path / "bundle")
    assert said == ()
    dense = torch.rand(1, 2)
    model.module.eval()
    with torch.no_grad():
        expected = model.module(dense, unseen)
    store.close()  # The bundle has its own copy of the rows.
    with Bundle.open(tmp_path / "bundle") as bundle:
        for inputs, answers in bundle.examples():
            for answer, told in zip(bundle.run(inputs), answers, strict=True):
                assert torch.equal(answer, told)
        # Ids without a row have the same initial values as in the store of the run.
        first, second = (named["name"] for named in bundle.signature["inputs"])
        (answer,) = bundle.run({first: dense, second: unseen})
        torch.testing.assert_close(answer, expected, rtol=1e-5, atol=1e-5)
        assert bundle.manifest["torch"] == torch.__version__
        assert bundle.manifest["instruction_set"] == torch.backends.cpu.get_cpu_capability()
    plan = json.loads((tmp_path / "bundle" / "cpu.json").read_text())
    lookups = [step for step in plan["steps"] if step["op"] == "lookup"]
    assert [step["tables"] for step in lookups] == [["C0", "C1", "C2"]]
    # Weights are stored separately from the program.
    assert not (tmp_path / "bundle" / "cpu.pt2").exists()


@pytest.mark.parametrize("name", ["din", "transformer"])
def test_models_over_torch_embeddings_have_a_native_cpu_half(name: str, tmp_path: Path) -> None:
    model = transformer() if name == "transformer" else click_model(name, bags)
    assert export(model.module, [model.call(4)], out=tmp_path / "bundle") == ()
    assert (tmp_path / "bundle" / "cpu.json").exists()
    assert not (tmp_path / "bundle" / "cpu.pt2").exists()
    with Bundle.open(tmp_path / "bundle") as bundle:
        answers_alike(bundle, model)


class Scores(nn.Module):
    """Mean pooling by torch's own EmbeddingBag, a mask, and the two best scores of every row."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.EmbeddingBag(IDS, D, mode="mean", padding_idx=0)
        self.user = nn.Embedding(IDS, D)
        self.layer = nn.Linear(2 * D, 3)

    def forward(self, user: Tensor, words: Tensor, age: Tensor) -> tuple[Tensor, Tensor]:
        known = torch.where(age > 0, age, 0.5).log1p().unsqueeze(1)
        vectors = torch.cat([self.user(user) * known, self.words(words)], dim=1)
        return self.layer(vectors).softmax(1).topk(2, dim=1)


def test_torch_embeddings_become_rows_and_post_processing_a_plan(tmp_path: Path) -> None:
    torch.manual_seed(1)
    model = Model(
        Scores(),
        lambda rows: (
            torch.randint(0, IDS, (rows,)),
            torch.randint(0, 3, (rows, 4)),
            torch.rand(rows) - 0.3,
        ),
    )
    assert export(model.module, [model.call(4)], out=tmp_path / "bundle") == ()
    with Bundle.open(tmp_path / "bundle") as bundle:
        answers_alike(bundle, model)
    folder = tmp_path / "bundle"
    post = json.loads((folder / "post.json").read_text())
    assert [step["op"] for step in post["steps"]] == ["topk"]
    page = (folder / "report.html").read_text()
    ways = ("colouring alone, no rule", "prism", "bytes")
    assert "".join(f"<th>bytes, {way}</th>" for way in ways) in page
    graph = capture(model.module, [model.call(4)]).graph
    totals = [
        graph.request_bytes(colour(graph, Parts.of(graph))),
        *(sum(place(graph, rule).crossing.values()) for rule in ("prism", "bytes")),
    ]
    assert "<td>all</td>" + "".join(f"<td class=n>{total:,}</td>" for total in totals) in page
    times = re.findall(r"<td>aten::embedding_bag</td><td>CPU</td><td class=n>(\d+)</td>", page)
    assert times
    assert all(int(micros) > 0 for micros in times)
    assert "http" not in page
    with rowmill.open(folder / "rows", memory="16MiB", read_only=True) as rows:
        assert rows.table_names() == ["user", "words"]


def test_an_operator_without_a_plan_step_gives_a_torch_half_and_a_note(
    store: rowmill.Store, tmp_path: Path
) -> None:
    class Rounds(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rows = stacked(store, [0])
            self.layer = nn.Linear(D, 1)

        def forward(self, ids: Tensor) -> Tensor:
            return self.layer(self.rows(torch.floor_divide(ids, 2)).squeeze(1))

    model = Model(Rounds(), lambda rows: (torch.randint(0, 2 * IDS, (rows, 1)),))
    said = export(model.module, [model.call(4)], out=tmp_path / "bundle")
    assert said == ("the cpu half runs in torch: no step of a plan is aten::floor_divide",)
    assert not (tmp_path / "bundle" / "cpu.json").exists()
    with Bundle.open(tmp_path / "bundle") as bundle:
        assert bundle.manifest["notes"] == list(said)
        answers_alike(bundle, model)


def test_weights_shared_by_two_layers_are_kept(tmp_path: Path) -> None:
    layers = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    layers[2].weight = layers[0].weight
    model = Model(layers, lambda rows: (torch.rand(rows, 4),))
    export(layers, [model.call(3)], out=tmp_path / "bundle")
    with Bundle.open(tmp_path / "bundle") as bundle:
        answers_alike(bundle, model)


def test_an_existing_folder_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "bundle").mkdir()
    layer, call = nn.Linear(4, 1), (torch.rand(3, 4),)
    with pytest.raises(BundleExists, match="bundle exists: remove it"):
        export(layer, [call], out=tmp_path / "bundle")
    with pytest.raises(InvalidInput, match=r'rule must be "bytes" or "prism", got \'best\''):
        export(layer, [call], out=tmp_path / "other", rule="best")  # pyright: ignore[reportArgumentType]
    assert [path.name for path in tmp_path.iterdir()] == ["bundle"]


def test_user_names_all_parts_of_a_ragged_input(tmp_path: Path) -> None:
    for user in (["words_values", "words_offsets"], ["words_weights"]):
        with pytest.raises(InvalidInput, match="has other parts of this ragged input: name all of"):
            export(Ragged(), [ragged_call(6)], out=tmp_path / "bundle", user=user)
    with pytest.raises(InvalidInput, match="user names 'words', but the inputs are"):
        export(Ragged(), [ragged_call(6)], out=tmp_path / "bundle", user=["words"])
    assert list(tmp_path.iterdir()) == []


def test_a_failed_export_leaves_nothing(store: rowmill.Store, tmp_path: Path) -> None:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stored = stacked(store, [0])
            self.own = nn.Embedding(IDS, D)
            self.layer = nn.Linear(D, 1)

        def forward(self, ids: Tensor) -> Tensor:
            return self.layer(self.stored(ids).squeeze(1) + self.own(ids.squeeze(1)))

    (tmp_path / "out").mkdir()
    with pytest.raises(CannotExport, match=r"1 stores and 1 torch modules.*rowmill.convert"):
        export(Both(), [(torch.randint(0, IDS, (4, 1)),)], out=tmp_path / "out" / "bundle")
    assert list((tmp_path / "out").iterdir()) == []


def test_damage_names_the_file(tmp_path: Path) -> None:
    model = click_model("ffnn", bags)
    export(model.module, [model.call(4)], out=tmp_path / "bundle")
    sound = tmp_path / "bundle"
    files = sorted(path.relative_to(sound) for path in sound.rglob("*") if path.is_file())
    assert len(files) > 8
    for file in files:
        for hurt in ("absent", "changed"):
            copy = tmp_path / "copy"
            shutil.copytree(sound, copy)
            if hurt == "absent":
                (copy / file).unlink()
            else:
                (copy / file).write_bytes(b"x" + (copy / file).read_bytes()[1:] + b"x")
            with pytest.raises(BundleDamaged, match=file.name):
                Bundle.open(copy)
            shutil.rmtree(copy)


def test_inputs_are_checked_by_name(tmp_path: Path) -> None:
    export(nn.Linear(4, 1), [(torch.rand(3, 4),)], out=tmp_path / "bundle")
    with Bundle.open(tmp_path / "bundle") as bundle:
        assert bundle.run({"input": torch.zeros(1, 4)})[0].shape == (1, 1)
        with pytest.raises(InvalidInput, match=r"inputs must be \['input'\], got \['x'\]"):
            bundle.run({"x": torch.zeros(1, 4)})
