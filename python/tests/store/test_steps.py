"""Training steps: which lookups share a ticket, when rows change, and that no clock outlives its step.

At bound 0 a leaked clock would block the next step forever, so the tests train on the same rows again
and check the number of open tickets. Waits have a deadline of 2 s (conftest), so a deadlock fails
instead of hanging.
"""

from __future__ import annotations

import sys
import threading
import time

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import rowmill
from rowmill.errors import InvalidInput, StalenessTimeout, StepConflict
from rowmill.nn import EmbeddingBag
from rowmill.optim import SGD

IDS = torch.tensor([[0, 1]])


def bag_of(
    store: rowmill.Store, name: str = "t", *, dim: int = 1, bound: int | None = 0
) -> EmbeddingBag:
    """A bag over rows that start at 0 and are updated by SGD with lr 1."""
    table = store.table(name, dim=dim, optimizer=SGD(lr=1.0), num_rows=8, staleness_bound=bound)
    return EmbeddingBag(8, dim, mode="sum", table=table, _weight=torch.zeros(8, dim))


def rows(bag: EmbeddingBag) -> list[float]:
    return bag.weight[:2, 0].tolist()


def tickets(store: rowmill.Store) -> int:
    return store.stats()["tickets"]


def test_a_module_called_twice_updates_once_with_the_sum(store: rowmill.Store) -> None:
    bag = bag_of(store)
    loss = bag(IDS).sum() + 2 * bag(IDS).sum()
    loss.backward()
    assert rows(bag) == [-3.0, -3.0]
    assert store.stats()["tables"]["t"]["steps"] == 1
    assert tickets(store) == 0


def test_two_losses_of_one_step_are_summed_before_the_update(store: rowmill.Store) -> None:
    bag = bag_of(store)
    first, second = bag(IDS).sum(), bag(IDS).sum()
    first.backward()
    assert store.stats()["tables"]["t"]["steps"] == 0, "the second backward has not run yet"
    second.backward()
    assert rows(bag) == [-2.0, -2.0]
    assert store.stats()["tables"]["t"]["steps"] == 1
    assert tickets(store) == 0


def test_a_missing_second_backward_does_not_lose_the_first(store: rowmill.Store) -> None:
    bag = bag_of(store)
    loss, unused = bag(IDS).sum(), bag(torch.tensor([[2]])).sum()
    loss.backward()
    assert rows(bag) == [-1.0, -1.0], "reading applies the available gradients"
    del unused
    assert tickets(store) == 0


def test_a_kept_output_does_not_stop_training(store: rowmill.Store) -> None:
    bag = bag_of(store)
    kept = bag(IDS)
    for step in range(1, 4):
        bag(IDS).sum().backward()
        assert rows(bag) == [-float(step)] * 2
    kept.sum().backward()
    assert rows(bag) == [-4.0, -4.0]
    assert tickets(store) == 0


def test_a_checkpoint_holds_every_finished_backward(store: rowmill.Store) -> None:
    bag = bag_of(store)
    kept = bag(IDS)
    thread = threading.Thread(target=lambda: bag(torch.tensor([[5]])).sum().backward())
    thread.start()
    thread.join()
    bag(IDS).sum().backward()
    store.checkpoint()
    assert bag.table.core_get(IDS[0].numpy())[:, 0].tolist() == [-1.0, -1.0]
    del kept


def test_a_dropped_graph_releases_its_rows(store: rowmill.Store) -> None:
    bag = bag_of(store)
    out = bag(IDS)
    assert tickets(store) == 1
    del out
    assert tickets(store) == 0
    bag(IDS).sum().backward()
    assert rows(bag) == [-1.0, -1.0]


def test_a_step_that_raised_before_backward_leaks_nothing(store: rowmill.Store) -> None:
    bag = bag_of(store)

    def step() -> None:
        _ = bag(IDS).sum()
        raise KeyError("data ended")

    with pytest.raises(KeyError) as kept:
        step()
    # The exception keeps the frame and its graph alive; training must continue nevertheless.
    bag(IDS).sum().backward()
    assert rows(bag) == [-1.0, -1.0]
    del kept
    assert tickets(store) == 0


class Raises(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: object, gradient: Tensor) -> Tensor:
        raise KeyError("backward failed")


def test_a_backward_that_raised_half_way_changes_no_row(store: rowmill.Store) -> None:
    bag, other = bag_of(store), bag_of(store, "u")
    # The gradient of `bag` arrives first, because it was recorded last.
    loss = Raises.apply(other(IDS)).sum() + bag(IDS).sum()  # pyright: ignore
    with pytest.raises(KeyError):
        loss.backward()
    assert (rows(bag), rows(other)) == ([0.0, 0.0], [0.0, 0.0])
    del loss
    assert tickets(store) == 0
    bag(IDS).sum().backward()
    assert rows(bag) == [-1.0, -1.0]


def test_gradients_that_are_not_finite_change_no_row_and_name_the_table(
    store: rowmill.Store,
) -> None:
    bag = bag_of(store)
    with pytest.raises(InvalidInput, match=r'gradients of table "t" is NaN .*no row was changed'):
        (bag(IDS).sum() * float("nan")).backward()
    assert rows(bag) == [0.0, 0.0]
    assert tickets(store) == 0
    bag(IDS).sum().backward()
    assert rows(bag) == [-1.0, -1.0]


def test_a_second_backward_of_one_lookup_is_refused_outside_a_step(store: rowmill.Store) -> None:
    bag = bag_of(store)
    loss = bag(IDS).sum()
    loss.backward(retain_graph=True)
    with pytest.raises(StepConflict, match="already applied"):
        loss.backward()
    assert rows(bag) == [-1.0, -1.0]


def test_an_explicit_step_updates_once_at_its_end(store: rowmill.Store) -> None:
    bag = bag_of(store)
    with store.step():
        for _ in range(3):
            loss = bag(IDS).sum()
            loss.backward(retain_graph=True)
            loss.backward()
            assert rows(bag) == [0.0, 0.0]
    assert rows(bag) == [-6.0, -6.0]
    assert store.stats()["tables"]["t"]["steps"] == 1
    assert tickets(store) == 0


def test_an_explicit_step_that_raised_changes_nothing(store: rowmill.Store) -> None:
    bag = bag_of(store)

    def step() -> None:
        with store.step():
            bag(IDS).sum().backward()
            raise KeyError("after backward")

    with pytest.raises(KeyError):
        step()
    assert rows(bag) == [0.0, 0.0]
    assert tickets(store) == 0


def test_backward_after_the_end_of_its_step_is_refused(store: rowmill.Store) -> None:
    bag = bag_of(store)
    with store.step():
        loss = bag(IDS).sum()
    with pytest.raises(StepConflict, match="its step is over"):
        loss.backward()
    with store.step(), pytest.raises(StepConflict, match="does not nest"), store.step():
        pass
    bag(IDS).sum().backward()
    assert rows(bag) == [-1.0, -1.0]


def test_recomputed_forwards_belong_to_the_same_step(store: rowmill.Store) -> None:
    bag = bag_of(store, dim=4)
    plain = nn.EmbeddingBag(8, 4, mode="sum", _weight=torch.zeros(8, 4))
    with torch.no_grad():
        plain.weight += torch.arange(32).view(8, 4) / 10
    bag.load_state_dict(plain.state_dict())
    optimizer = torch.optim.SGD(plain.parameters(), lr=1.0)
    for module in (bag, plain):

        def block(ids: Tensor, module: nn.Module = module) -> Tensor:
            return module(ids).sin()

        loss = sum(
            checkpoint(block, ids, use_reentrant=False).sum()  # pyright: ignore
            for ids in (IDS, IDS + 1, IDS)
        )
        assert isinstance(loss, Tensor)
        loss.backward()
    optimizer.step()
    torch.testing.assert_close(bag.weight, plain.weight.detach())
    assert store.stats()["tables"]["t"]["steps"] == 1
    assert tickets(store) == 0


def test_a_pipeline_of_one_thread_does_not_block_itself(store: rowmill.Store) -> None:
    bag = bag_of(store)
    losses = [bag(IDS).sum()]
    for _ in range(4):
        losses.append(bag(IDS).sum())
        losses.pop(0).backward()
    losses.pop().backward()
    assert rows(bag) == [-5.0, -5.0]
    assert tickets(store) == 0


actions = st.lists(
    st.tuples(
        st.sampled_from(["forward", "backward", "backward two", "drop", "read"]), st.integers(0, 7)
    ),
    max_size=25,
)


@given(actions=actions, explicit=st.booleans())
@settings(deadline=None, max_examples=60)
def test_every_backward_is_applied_exactly_once(
    tmp_path_factory: pytest.TempPathFactory, actions: list[tuple[str, int]], explicit: bool
) -> None:
    # Losses are linear in the rows and lr is 1. So a row ends at minus the number of backward passes
    # that reached it, independent of step boundaries.
    with rowmill.open(
        tmp_path_factory.mktemp("s") / "store", memory="16MiB", threads=1, wait_deadline_s=2.0
    ) as store:
        bags = [bag_of(store, "a"), bag_of(store, "b")]
        expected = torch.zeros(2, 8)
        pending: list[tuple[int, int, Tensor]] = []

        def run() -> None:
            for action, number in actions:
                which, id_ = number % 2, number
                if action == "forward":
                    pending.append((which, id_, bags[which](torch.tensor([[id_]])).sum()))
                elif action == "read":
                    bags[which].table.get([id_])
                elif action == "drop" and pending:
                    pending.pop(number % len(pending))
                elif action.startswith("backward") and pending:
                    count = 2 if action.endswith("two") else 1
                    taken = [pending.pop(number % len(pending)) for _ in pending[:count]]
                    torch.stack([loss for _, _, loss in taken]).sum().backward()
                    for table, row, _ in taken:
                        expected[table, row] -= 1

        if explicit:
            with store.step():
                run()
        else:
            run()
        assert (torch.stack([bag.weight[:, 0] for bag in bags]) == expected).all()
        pending.clear()
        assert tickets(store) == 0


def test_forward_and_backward_in_different_threads(store: rowmill.Store) -> None:
    bag = bag_of(store, bound=4)
    handover: list[Tensor] = []
    ready, done = threading.Semaphore(0), threading.Semaphore(0)
    errors: list[BaseException] = []

    def backward() -> None:
        try:
            for _ in range(20):
                ready.acquire()
                handover.pop(0).backward()
                done.release()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=backward)
    thread.start()
    for _ in range(20):
        handover.append(bag(IDS).sum())
        ready.release()
    thread.join(timeout=60)
    assert not errors
    assert rows(bag) == [-20.0, -20.0]
    assert tickets(store) == 0


def test_another_worker_waits_for_a_row_until_it_is_updated(store: rowmill.Store) -> None:
    bag = bag_of(store)
    loss = bag(IDS).sum()
    seen: list[float] = []
    thread = threading.Thread(target=lambda: seen.append(bag(IDS).sum().item()))
    thread.start()
    loss.backward()
    thread.join(timeout=60)
    assert seen == [-2.0], "the waiting forward must see the update"
    assert store.stats()["clock_waits"] <= 2, "once per row at most"


def test_the_error_after_a_long_wait_names_the_step_that_holds_the_row(
    store: rowmill.Store,
) -> None:
    bag = bag_of(store)
    loss = bag(IDS).sum()
    errors: list[str] = []

    def other() -> None:
        with pytest.raises(StalenessTimeout) as error:
            bag(IDS)
        errors.append(str(error.value))

    thread = threading.Thread(target=other)
    thread.start()
    thread.join(timeout=60)
    assert len(errors) == 1
    assert 'of table "t"' in errors[0]
    assert "held by" in errors[0]
    loss.backward()
    assert rows(bag) == [-1.0, -1.0]


def test_two_workers_with_crossing_rows_finish(store: rowmill.Store) -> None:
    a, b = bag_of(store, "a"), bag_of(store, "b")
    errors: list[BaseException] = []

    def work(first: EmbeddingBag, second: EmbeddingBag) -> None:
        done = 0
        while done < 25:
            try:
                loss = first(IDS).sum() + second(IDS).sum()
                loss.backward()
                done += 1
            except StepConflict:
                # The store does not reserve the row for the waiting step, so give that step time to take it.
                time.sleep(0.01)
            except BaseException as error:
                errors.append(error)
                return

    threads = [threading.Thread(target=work, args=pair) for pair in ((a, b), (b, a))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    assert not errors
    assert (rows(a), rows(b)) == ([-50.0, -50.0], [-50.0, -50.0])
    assert tickets(store) == 0


def test_each_forward_context_of_a_thread_is_its_own_step(store: rowmill.Store) -> None:
    bag = bag_of(store, bound=2)
    losses = []
    for _ in range(3):
        with store.forward():
            losses.append(bag(IDS).sum())
    assert tickets(store) == 3
    for done, loss in enumerate(losses, start=1):
        loss.backward()
        assert rows(bag) == [-float(done)] * 2
        assert tickets(store) == 3 - done
    assert store.stats()["tables"]["t"]["steps"] == 3


def test_lookups_of_one_forward_are_one_step(store: rowmill.Store) -> None:
    bag = bag_of(store)
    with store.forward():
        loss = bag(IDS).sum() + 2 * bag(IDS).sum()
    loss.backward()
    assert rows(bag) == [-3.0, -3.0]
    assert store.stats()["tables"]["t"]["steps"] == 1
    assert tickets(store) == 0


def test_a_forward_waits_for_updates_required_by_its_bound(store: rowmill.Store) -> None:
    bag = bag_of(store)
    with store.forward():
        loss = bag(IDS).sum()
    read: list[float] = []

    def next_step() -> None:
        with store.forward():
            pooled = bag(IDS)
        read.append(pooled.item())

    thread = threading.Thread(target=next_step)
    thread.start()
    loss.backward()
    thread.join()
    assert read == [-2.0], "the rows after the first step"
    assert tickets(store) == 0


def test_a_forward_context_does_not_change_the_threads_current_step(store: rowmill.Store) -> None:
    bag, other = bag_of(store), bag_of(store, "other")
    first = bag(IDS).sum()
    with store.forward():
        later = other(IDS).sum()
    second = bag(
        IDS
    ).sum()  # In the step that `first` began; at bound 0 another step would wait for it.
    (first + second).backward()
    assert rows(bag) == [-2.0, -2.0]
    assert tickets(store) == 1
    later.backward()
    assert rows(other) == [-1.0, -1.0]


def test_a_forward_context_without_updates_holds_no_clock(store: rowmill.Store) -> None:
    bag = bag_of(store)
    with store.forward():
        pass
    with pytest.raises(ZeroDivisionError), store.forward():
        _ = bag(IDS)[0] / (1 // 0)
    with store.forward():
        bag(IDS)
    assert tickets(store) == 0
    with (
        store.step(),
        pytest.raises(StepConflict, match=r"call it outside that block"),
        store.forward(),
    ):
        pass


def test_a_checkpoint_can_be_made_while_threads_begin_steps(store: rowmill.Store) -> None:
    stop = threading.Event()
    failures: list[BaseException] = []
    many: list[object] = []  # Many objects, so that the garbage collector takes long.
    for _ in range(500):
        with store.forward() as step:
            many.append(step)

    def begin_steps() -> None:
        try:
            while not stop.is_set():
                with store.forward():
                    pass
        except BaseException as error:
            failures.append(error)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    threads = [threading.Thread(target=begin_steps) for _ in range(3)]
    try:
        for thread in threads:
            thread.start()
        for _ in range(500):
            store.steps.flush_all()
    finally:
        stop.set()
        for thread in threads:
            thread.join()
        sys.setswitchinterval(before)
    assert failures == []
    assert tickets(store) == 0
