"""The generated log: equal settings give equal bytes, ids repeat as published, and the teacher's scores are correct.

If the stated best AUC were too high, every model would look bad; if ids repeated too often, every cache would look good. So
the teacher's scores are computed a second way, and repetition is compared with published numbers.
"""

import json
import re
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from torchmetrics.functional.classification import binary_auroc

from rowmill.ctr.data import open_source
from rowmill.ctr.data.generate import (
    generate,
    generated_schema,
    id_laws,
    log_blocks,
    table_ids,
    teacher_scores,
)
from rowmill.ctr.data.locality import (
    ACCESSES_PER_TABLE_FITTED,
    IDS_PER_ACCESS_FITTED,
    REUSE_EDGES,
    expected_reuse,
    fitted_law,
    measured_reuse,
    zipf_law,
)
from rowmill.ctr.data.teacher import CLICK_RATE, TeacherScore
from rowmill.ctr.settings import GenerateConfig
from rowmill.errors import DataError

SMALL = GenerateConfig(rows=70_000, seed=3, rows_per_table=5_000, tables=4)


def test_equal_settings_give_equal_bytes_and_seeds_differ(tmp_path: Path) -> None:
    generate(tmp_path / "a", SMALL)
    generate(tmp_path / "b", SMALL)
    first, second = (tmp_path / name / "part-00000.parquet" for name in "ab")
    assert first.read_bytes() == second.read_bytes()
    other = next(log_blocks(GenerateConfig(rows=100, seed=4, rows_per_table=5_000, tables=4)))
    same = next(log_blocks(GenerateConfig(rows=100, seed=3, rows_per_table=5_000, tables=4)))
    assert not np.array_equal(other.ids[0], same.ids[0])


def test_table_ids_are_those_of_the_log_most_frequent_first() -> None:
    settings = GenerateConfig(rows=20_000, seed=3, rows_per_table=500, tables=2, zipf=1.05)
    block = next(log_blocks(settings))
    for table, ids in enumerate(block.ids):
        known = table_ids(settings, table)
        assert len(np.unique(known)) == 500
        assert np.isin(ids, known).all()
        assert np.isin(ids, known[:50]).mean() > 0.5


def test_a_log_with_equal_settings_is_reused_and_others_are_not_overwritten(tmp_path: Path) -> None:
    generate(tmp_path, SMALL)
    before = (tmp_path / "part-00000.parquet").stat().st_mtime_ns
    generate(tmp_path, SMALL)
    assert (tmp_path / "part-00000.parquet").stat().st_mtime_ns == before
    with pytest.raises(DataError, match="holds a log generated with other settings"):
        generate(tmp_path, GenerateConfig(rows=10))
    (tmp_path / "teacher.json").unlink()
    with pytest.raises(DataError, match="Parquet files that rowmill did not generate"):
        generate(tmp_path, SMALL)


def test_an_interrupted_generation_starts_again(tmp_path: Path) -> None:
    (tmp_path / ".unfinished").touch()
    (tmp_path / "part-00000.parquet").write_bytes(b"half")
    # Of settings with more rows.
    (tmp_path / "part-00005.parquet").write_bytes(b"whole")
    with pytest.raises(DataError, match="a log whose generation was interrupted"):
        open_source(tmp_path, generated_schema(SMALL))
    generate(tmp_path, SMALL)
    assert open_source(tmp_path, generated_schema(SMALL)).rows == SMALL.rows
    assert not (tmp_path / ".unfinished").exists()
    # A command that was killed at its very end.
    (tmp_path / ".unfinished").touch()
    generate(tmp_path, SMALL)
    assert open_source(tmp_path, generated_schema(SMALL)).rows == SMALL.rows


def test_incomplete_scores_are_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def half(path: Path, text: str, **_: str) -> None:
        path.write_bytes(text[: len(text) // 2].encode())
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_text", half)
        with pytest.raises(KeyboardInterrupt):
            generate(tmp_path, SMALL)
    assert json.loads(generate(tmp_path, SMALL).read_text())["rows"] == SMALL.rows


def test_the_log_can_be_read_in_row_groups(tmp_path: Path) -> None:
    generate(tmp_path, SMALL)
    file = pq.ParquetFile(tmp_path / "part-00000.parquet")
    assert file.metadata.num_row_groups == 2
    source = open_source(tmp_path, generated_schema(SMALL))
    assert source.rows == SMALL.rows
    drawn = next(log_blocks(SMALL))
    block = next(iter(source.blocks(0, 1000)))
    np.testing.assert_array_equal(block.labels, drawn.labels[:1000])
    np.testing.assert_array_equal(block.ids[:, 2], drawn.ids[2][:1000])
    np.testing.assert_array_equal(np.isnan(block.dense), drawn.missing[:1000])


def test_the_sidecar_agrees_with_a_direct_computation(tmp_path: Path) -> None:
    sidecar = json.loads(generate(tmp_path, SMALL).read_text())
    blocks = list(log_blocks(SMALL))
    logits = torch.from_numpy(np.concatenate([block.logits for block in blocks])).double()
    labels = torch.from_numpy(np.concatenate([block.labels for block in blocks])).int()
    for part, start in (("all", 0), ("last_fifth", SMALL.rows - SMALL.rows // 5)):
        auc = float(binary_auroc(logits[start:].sigmoid(), labels[start:]))
        loss = float(
            torch.nn.functional.binary_cross_entropy_with_logits(
                logits[start:], labels[start:].double()
            )
        )
        assert sidecar[part]["auc"] == pytest.approx(auc, abs=1e-5)
        assert sidecar[part]["logloss"] == pytest.approx(loss, abs=1e-9)
    assert teacher_scores(tmp_path, 56_000) == {
        name: sidecar["last_fifth"][name] for name in ("auc", "logloss", "ne")
    }
    scores = teacher_scores(tmp_path, 10)
    assert scores is not None
    assert scores["auc"] == sidecar["all"]["auc"]
    assert teacher_scores(tmp_path / "part-00000.parquet", 10) is None


def test_labels_follow_the_probabilities() -> None:
    blocks = list(log_blocks(GenerateConfig(rows=200_000, seed=1, rows_per_table=1000)))
    logits = np.concatenate([block.logits for block in blocks]).astype(np.float64)
    labels = np.concatenate([block.labels for block in blocks])
    probability = 1 / (1 + np.exp(-logits))
    assert probability[:65_536].mean() == pytest.approx(CLICK_RATE, abs=1e-3)
    for low in np.arange(0.05, 0.75, 0.1):
        here = (probability >= low) & (probability < low + 0.1)
        expected = probability[here].mean()
        error = np.sqrt(expected * (1 - expected) / here.sum())
        assert abs(labels[here].mean() - expected) < 4 * error


def test_a_score_without_clicks_has_no_auc() -> None:
    score = TeacherScore()
    score.add(np.array([0.5], np.float32), np.array([0], np.int8))
    assert score.result()["auc"] is None


def test_ids_of_different_tables_differ_and_stay_within_their_number() -> None:
    block = next(log_blocks(GenerateConfig(rows=50_000, rows_per_table=300, tables=2)))
    first, second = (set(ids.tolist()) for ids in block.ids)
    assert len(first) <= 300
    assert not first & second


def test_tables_have_the_sizes_of_the_criteo_log_by_default() -> None:
    sizes = [law.ids for law in id_laws(GenerateConfig(rows=1, tables=27))]
    assert (len(sizes), sizes[0], max(sizes), sizes[26]) == (27, 1460, 10131227, 1460)


@pytest.mark.parametrize(
    "law", [fitted_law(20_000), zipf_law(5_000, 1.05), zipf_law(5_000, 1.0), zipf_law(800, 0.0)]
)
def test_drawn_ids_repeat_as_computed(law) -> None:
    draws = 100_000
    ranks = law.ranks(np.random.default_rng(5).random(draws))
    assert 0 <= ranks.min() <= ranks.max() < law.ids
    ids, hits = measured_reuse(ranks)
    expected_ids, expected_hits = expected_reuse(law, draws)
    # Group sizes are sums of independent Bernoulli trials, so allow 5 standard deviations. An id on the border of a
    # group contributes all its accesses.
    slack = 5 * np.sqrt(expected_ids) + 3
    assert np.all(abs(ids - expected_ids) <= slack)
    assert np.all(abs(hits - expected_hits) <= slack * np.append(REUSE_EDGES[1:], draws))


def test_zipf_has_the_given_exponent() -> None:
    ranks = zipf_law(100_000, 1.2).ranks(np.random.default_rng(6).random(400_000))
    counts = np.bincount(ranks, minlength=1000)[10:1000]
    slope = np.polyfit(np.log(np.arange(10, 1000) + 1.5), np.log(counts + 0.5), 1)[0]
    assert slope == pytest.approx(-1.2, abs=0.05)


def test_the_fitted_distribution_is_close_to_published_statistics(shared_data: Path) -> None:
    text = (shared_data / "locality/locality_stats_2021.txt").read_text()
    entry = text.split("fbgemm_t856_bs65536_0.pt")[1].split("\n\n")[0]
    mean = float(re.search(r"Avg col size: ([\d.]+)", entry)[1])
    shares = [
        float(share) for share in re.findall(r"^\([\d, +:]+\]?:? ?([\d.]+)$", entry, re.MULTILINE)
    ]
    published_ids, published_hits = np.array(shares[:17]), np.array(shares[17:])
    law = fitted_law(round(ACCESSES_PER_TABLE_FITTED * IDS_PER_ACCESS_FITTED))
    ids, hits = expected_reuse(law, ACCESSES_PER_TABLE_FITTED)
    assert hits.sum() / ids.sum() == pytest.approx(mean, abs=0.05)
    assert abs(ids / ids.sum() - published_ids).sum() / 2 < 0.03
    assert abs(hits / hits.sum() - published_hits).sum() / 2 < 0.08
