"""Logs of sequences compared with their definition, row by row, and errors for unsuitable input."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rowmill.ctr.data import MISSING_ID, Schema, fit_vocabulary, load_schema, open_source
from rowmill.ctr.data.features import HashedIds
from rowmill.ctr.data.interactions import Interactions, generate_interactions, read_interactions
from rowmill.ctr.data.sequences import load_sequences, make_sequences, sequence_table
from rowmill.ctr.settings import SequencesConfig
from rowmill.errors import DataError

SMALL = SequencesConfig(users=30, items=60, events=12, places=4, negatives=3, candidates=10)
SCHEMA = Schema(
    label="label", dense=(), ids=("user", "item"), histories=(("item", "before"),), places=3
)


def test_a_log_equals_its_definition() -> None:
    found = generate_interactions(SMALL)
    table, train_rows = sequence_table(found, SMALL)
    rows = table.to_pylist()
    events = list(zip(found.users.tolist(), found.items.tolist(), strict=True))
    seen: dict[int, list[int]] = {user: [] for user, _ in events}
    last = {user: place for place, (user, _) in enumerate(events)}
    row = 0
    for place, (user, item) in enumerate(events):
        if last[user] != place:
            group = rows[row : row + 1 + SMALL.negatives]
            assert [r["label"] for r in group] == [1, 0, 0, 0]
            assert group[0]["item"] == item
            assert group[0]["liked"] == found.liked[place]
            assert {r["user"] for r in group} == {user}
            assert all(r["items_before"] == seen[user][-SMALL.places :] for r in group)
            assert all(r["liked"] == 0 for r in group[1:])
            seen[user].append(item)
            row += len(group)
    assert row == train_rows
    for user, place in sorted(last.items(), key=lambda entry: entry[1]):
        group = rows[row : row + SMALL.candidates]
        shown = [r["item"] for r in group]
        assert [r["label"] for r in group] == [1] + [0] * (SMALL.candidates - 1)
        assert shown[0] == events[place][1]
        assert len(set(shown)) == SMALL.candidates
        assert not set(shown[1:]) & set(seen[user]), "a candidate that the user has interacted with"
        assert all(r["items_before"] == seen[user][-SMALL.places :] for r in group)
        row += len(group)
    assert row == len(rows)
    clicked = {(r["user"], r["item"]) for r in rows[:train_rows] if r["label"]}
    shown = {(r["user"], r["item"]) for r in rows[:train_rows] if not r["label"]}
    assert not clicked & shown


def test_a_single_interaction_is_for_training_and_ties_do_not_depend_on_file_order() -> None:
    users, items = np.array([1, 2, 1, 3]), np.array([5, 5, 6, 7])
    settings = SequencesConfig(negatives=1, candidates=2)
    times = np.zeros(4, np.int64)
    interactions = Interactions(users, items, times, None)
    table, train_rows = sequence_table(interactions, settings)
    assert train_rows == 6
    assert table.column_names == ["label", "user", "item", "items_before"]
    rows = table.to_pylist()
    assert [(r["user"], r["item"]) for r in rows if r["label"]] == [(1, 5), (2, 5), (3, 7), (1, 6)]
    assert rows[-1] == {"label": 0, "user": 1, "item": 7, "items_before": [5]}


def test_users_with_nearly_all_items_still_get_candidates() -> None:
    items = 40
    users = np.repeat([1, 2], items - 1)
    met = np.concatenate([np.arange(items - 1), np.arange(items - 1)[::-1] + 1])
    interactions = Interactions(users, met, np.arange(len(users)), None)
    settings = SequencesConfig(negatives=5, candidates=2)
    table, train_rows = sequence_table(interactions, settings)
    others = [r for r in table.to_pylist()[:train_rows] if not r["label"]]
    # The last item of each user is left out: 38 of user 1, item 1 of user 2.
    assert {r["item"] for r in others if r["user"] == 1} == {38, 39}
    assert {r["item"] for r in others if r["user"] == 2} == {0, 1}


def test_generated_orders_are_informative_and_repeat_with_the_seed() -> None:
    settings = SequencesConfig(users=200, items=100, events=30)
    one, two = generate_interactions(settings), generate_interactions(settings)
    assert np.array_equal(one.items, two.items)
    assert len(set(zip(one.users.tolist(), one.items.tolist(), strict=True))) == len(one)
    assert min(Counter(one.users.tolist()).values()) >= 2
    assert not np.array_equal(
        one.items[:50],
        generate_interactions(SequencesConfig(seed=1, users=200, items=100)).items[:50],
    )

    def repeated(order: np.ndarray) -> int:
        pairs: Counter[tuple[int, int]] = Counter()
        for user in range(1, 201):
            items = one.items[order][one.users[order] == user].tolist()
            pairs.update(itertools.pairwise(items))
        return sum(count * count for count in pairs.values())

    shuffled = np.random.default_rng(0).permutation(len(one))
    assert repeated(np.arange(len(one))) > 1.5 * repeated(shuffled)


def test_interactions_of_either_format_are_the_same(tmp_path: Path) -> None:
    text = "user_id:token\titem_id:token\trating:float\ttimestamp:float\n2\t9\t3\t50\n1\t8\t4\t20\n1\t7\t5\t20\n"
    (tmp_path / "a.inter").write_text(text)
    columns = {"user": [2, 1, 1], "item": [9, 8, 7], "rating": [3, 4, 5], "timestamp": [50, 20, 20]}
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    for name in ("a.inter", "a.parquet"):
        found = read_interactions(tmp_path / name)
        assert found.users.tolist() == [1, 1, 2]
        assert found.items.tolist() == [7, 8, 9]
        assert found.liked is not None
        assert found.liked.tolist() == [True, True, False]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("user\titem\n1\t2\n", r"has no column 'timestamp' or 'time'; it has user, item"),
        (
            "user\titem\ttimestamp\nu1\t2\t3\n",
            r"'user' must hold 64-bit integers, got string, as in 'u1'",
        ),
        (
            "user\titem\ttimestamp\n1\t2\tnoon\n",
            r"'timestamp' must hold numbers, got string, as in 'noon'",
        ),
        ("user\titem\ttimestamp\n1\t\t3\n1\t2\t3\n", r"row 0 \(from 0\): 'item' is missing"),
        ("user\titem\ttimestamp\n", "has no rows"),
        ("user\titem\ttimestamp\n1\t2\n", r"cannot be read: .*Row #2: Expected 3 columns, got 2"),
        (
            "user\titem\ttimestamp\n1\t2\t3\n1\t3\tinf\n",
            r"row 1 \(from 0\): 'timestamp' = inf is not a valid time \(1 such rows\): drop",
        ),
        ("user\titem\ttimestamp\n1\t2\t1e300\n", r"'timestamp' = 1e\+300 is not a valid time"),
        ("user\titem\titem\ttimestamp\n1\t2\t2\t3\n", "has 2 columns 'item': keep only one"),
    ],
)
def test_unreadable_interactions_are_errors_with_the_reason(
    tmp_path: Path, text: str, said: str
) -> None:
    file = tmp_path / "bad.tsv"
    file.write_text(text)
    with pytest.raises(DataError, match=said):
        read_interactions(file)


def test_ids_beyond_signed_64_bits_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "a.parquet"
    columns = {"user": pa.array([2**64 - 1], pa.uint64()), "item": [1], "timestamp": [1]}
    pq.write_table(pa.table(columns), file)
    with pytest.raises(DataError, match=r"'user' has an id outside signed 64-bit integers"):
        read_interactions(file)


def test_interactions_without_sequences_are_errors_with_the_reason() -> None:
    def table(users: list[int], items: list[int], **settings: int) -> None:
        times = np.arange(len(users))
        interactions = Interactions(np.array(users), np.array(items), times, None)
        sequence_table(interactions, SequencesConfig(**settings))

    with pytest.raises(DataError, match="no user has two interactions"):
        table([1, 2], [3, 4])
    with pytest.raises(
        DataError, match=r"user 1 has 1 of the 3 items left .* lower --candidates to 2"
    ):
        table([1, 1, 2], [3, 4, 5])
    with pytest.raises(DataError, match=r"user 1 has 0 of the 2 items left .* drop that user"):
        table([1, 1], [3, 4], candidates=2, negatives=0)
    with pytest.raises(DataError, match=r"user 2 has all 2 items, .* set --negatives 0"):
        table([1, 1, 2, 2, 2], [3, 4, 3, 4, 4], candidates=2)
    with pytest.raises(DataError, match=r"interactions .*absent.* is not a file"):
        read_interactions(Path("absent"))


def test_a_log_is_reused_and_other_logs_are_not_overwritten(tmp_path: Path) -> None:
    out = tmp_path / "log"
    sidecar = make_sequences(out, SMALL)
    before = (out / "part-00000.parquet").stat().st_mtime_ns
    assert make_sequences(out, SMALL) == sidecar
    assert (out / "part-00000.parquet").stat().st_mtime_ns == before
    with pytest.raises(DataError, match="made with other settings"):
        make_sequences(out, SequencesConfig(users=31, items=60))
    loaded = load_sequences(out)
    assert loaded is not None
    assert loaded.candidates == 10
    assert loaded.schema.tasks == ("liked",)
    assert load_sequences(tmp_path) is None
    sidecar.write_text('{"places": 0}')
    with pytest.raises(DataError, match="does not describe a log of sequences"):
        load_sequences(out)
    sidecar.unlink()
    with pytest.raises(DataError, match="holds Parquet files that are not a log of sequences"):
        make_sequences(out, SMALL)
    # A command that was killed between the two files.
    (out / ".unfinished").touch()
    assert make_sequences(out, SMALL) == sidecar
    assert sorted(path.name for path in out.iterdir()) == ["part-00000.parquet", sidecar.name]
    # One that was killed at its very end.
    (out / ".unfinished").touch()
    make_sequences(out, SMALL)
    assert sorted(path.name for path in out.iterdir()) == ["part-00000.parquet", sidecar.name]
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="is a file, but a log is a folder"):
        make_sequences(tmp_path / "file", SMALL)


def lists(*before: list[int] | None, kind: pa.DataType | None = None) -> pa.Table:
    rows = len(before)
    return pa.table(
        {
            "label": [0] * rows,
            "user": [1] * rows,
            "item": list(range(rows)),
            "before": pa.array(list(before), kind or pa.list_(pa.int64())),
        }
    )


def test_a_block_holds_the_last_places_of_histories() -> None:
    table = pa.concat_tables([lists([9]), lists([1, 2], [], [3, 4, 5, 6])]).combine_chunks()
    for skipped in (0, 1):
        (block,) = open_source(table.slice(skipped), SCHEMA).blocks(0, 4)
        m = MISSING_ID
        expected = [[9, m, m], [1, 2, m], [m, m, m], [4, 5, 6]][skipped:]
        assert block.ids[:, 2:].tolist() == expected
        assert block.lengths is not None
        assert block.lengths.tolist() == [1, 2, 0, 3][skipped:]
    joined = block.followed_by(block).rows(2, 4)
    assert joined.lengths is not None
    assert joined.lengths.tolist() == [3, 2]


def test_places_are_hashed_and_numbered_like_their_target() -> None:
    source = open_source(lists([5, 6], [6], [0, 1, 2]), SCHEMA)
    (block,) = source.blocks(0, 3)
    assert source.schema.id_features == [0, 1, 1, 1, 1]
    hashed = HashedIds(1000, tuple(source.schema.id_features)).apply(block.ids)
    assert hashed[2, 2:].tolist() == hashed[:, 1].tolist()
    assert hashed[1, 3] == 1000
    numbered = fit_vocabulary(source, rows=3, min_count=1).apply(block.ids)
    assert numbered[2, 2:].tolist() == numbered[:, 1].tolist()
    assert numbered[0].tolist()[2:] == [0, 0, 1]


@pytest.mark.parametrize(
    ("table", "said"),
    [
        (lists([1], None), r"row 1 \(from 0\): history 'before' is missing: use an empty list"),
        (lists([1, 2], [3, None]), r"row 1 \(from 0\): history 'before' holds a null"),
        (
            lists([1.5], kind=pa.list_(pa.float64())),
            "'before' must hold 64-bit integers, got type double",
        ),
        (
            lists(1, kind=pa.int64()),
            "history column 'before' must hold lists of integers, got type int64",
        ),
        (
            lists([], [1, MISSING_ID]),
            r"row 1 .* holds -9223372036854775808, which is reserved for missing values",
        ),
    ],
)
def test_invalid_histories_are_named(table: pa.Table, said: str) -> None:
    with pytest.raises(DataError, match=said):
        list(open_source(table, SCHEMA).blocks(0, table.num_rows))


def test_histories_of_a_row_need_equal_lengths_and_are_refused_in_text_files(
    tmp_path: Path,
) -> None:
    schema = Schema(
        label="label",
        dense=(),
        ids=("user", "item"),
        histories=(("item", "before"), ("user", "others")),
    )
    table = lists([1], [2, 3]).append_column("others", pa.array([[4], [5]]))
    with pytest.raises(DataError, match=r"row 1 .* 'others' has 1 ids, but 'before' has 2"):
        list(open_source(table, schema).blocks(0, 2))
    (tmp_path / "log.tsv").write_text("0\t1\t2\n")
    with pytest.raises(
        DataError, match="cannot hold the lists of history 'before': write the log as Parquet"
    ):
        open_source(tmp_path / "log.tsv", SCHEMA)


def test_a_schema_file_names_histories_tasks_and_items(tmp_path: Path) -> None:
    file = tmp_path / "schema.toml"
    text = (
        'label = "y"\ndense = []\nids = ["u", "i"]\ntasks = ["z"]\nitem_ids = ["i"]\nplaces = 7\n'
    )
    file.write_text(text + '[histories]\ni = "before"\n')
    schema = load_schema(file)
    assert (schema.tasks, schema.item_ids, schema.places) == (("z",), ("i",), 7)
    assert schema.histories == (("i", "before"),)
    assert schema.names == ["y", "z", "u", "i", "before"]
    for change, said in [
        ("histories = 3\n", "histories must be a table"),
        ('places = "7"\n', "places must be a number, got '7'"),
        ("places = 0\n", "places must be at least 1, got 0"),
        ('item_ids = ["x"]\n', "'x' under 'histories' or 'item_ids' is not an id column"),
        ('tasks = ["u"]\n', "names column 'u' twice"),
    ]:
        file.write_text('label = "y"\ndense = []\nids = ["u", "i"]\n' + change)
        with pytest.raises(DataError, match=said):
            load_schema(file)
