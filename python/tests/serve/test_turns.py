"""Turns on a device."""

from __future__ import annotations

import threading
import time

import pytest

from rowmill.serve.turns import Turns


def test_a_thread_that_asks_again_waits_behind_others() -> None:
    turns, order = Turns(1), list[str]()
    asks = threading.Event()

    def other() -> None:
        asks.set()
        with turns:
            order.append("other")

    thread = threading.Thread(target=other)
    with turns:
        thread.start()
        asks.wait()
        time.sleep(0.1)
        order.append("first")
    with turns:
        order.append("again")
    thread.join()
    assert order == ["first", "other", "again"]


@pytest.mark.parametrize("threads", [1, 3, 16])
@pytest.mark.parametrize("count", [1, 2])
def test_at_most_a_number_of_threads_have_a_turn(count: int, threads: int) -> None:
    turns, lock = Turns(count), threading.Lock()
    running, most, done = 0, 0, 0

    def take_turns() -> None:
        nonlocal running, most, done
        for _ in range(50):
            with turns:
                with lock:
                    running += 1
                    most = max(most, running)
                time.sleep(1e-4)
                with lock:
                    running -= 1
                    done += 1

    started = [threading.Thread(target=take_turns) for _ in range(threads)]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join()
    assert done == 50 * threads
    assert most == min(count, threads)


def test_a_turn_ends_with_an_error() -> None:
    turns = Turns(1)
    with pytest.raises(KeyError), turns:
        raise KeyError
    with turns:
        pass
