"""The status page of a worker in a real browser: it shows the numbers of the statistics, in light and in dark mode."""

from __future__ import annotations

import json
import os
import re
import subprocess
import urllib.request
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any

import pytest
from tritonclient import http
from tritonclient.utils import InferenceServerException

from python.tests.serve.test_serve import ask
from python.tests.serve.tools import browser
from python.tests.serve.workers import Bundles, make_bundles, worker

if TYPE_CHECKING:
    from pathlib import Path

_ASKED = {"dlrm": 7, "ragged": 3}
_DARK = "--blink-settings=preferredColorScheme=0"


class Shown(HTMLParser):
    """Texts and tables of a page, by model ("": the worker) and name."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.texts: dict[tuple[str, str], str] = {}
        self.tables: dict[tuple[str, str], list[list[str]]] = {}
        self._model, self._part, self._in_cell = "", "", False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = {name: value or "" for name, value in attrs}
        if tag == "section":
            # The template of a model has no name.
            self._model = named.get("data-model", "")
        if part := named.get("data-is") or named.get("id"):
            self._part = part
        table = self.tables.setdefault((self._model, self._part), [])
        if tag == "tr":
            table.append([])
        elif tag in ("th", "td") and table:
            table[-1].append("")
            self._in_cell = True

    def handle_endtag(self, tag: str) -> None:
        if tag in ("th", "td"):
            self._in_cell = False
        elif tag in ("dd", "h2", "span", "tbody", "section"):
            self._part = ""

    def handle_data(self, data: str) -> None:
        key = self._model, self._part
        if self._in_cell and self.tables[key]:
            self.tables[key][-1][-1] += data
        elif self._part:
            self.texts[key] = self.texts.get(key, "") + data


def opened(url: str, *flags: str) -> subprocess.CompletedProcess[str]:
    """Open a page for long enough that it reads its numbers twice."""
    sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
    command = [browser(), *sandbox, "--headless", "--disable-gpu", "--window-size=1100,1300"]
    command += ["--virtual-time-budget=5000", *flags, url]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)


def read(url: str) -> Any:
    with urllib.request.urlopen(url) as answer:
        return json.loads(answer.read())


def percentile(stage: dict[str, Any], bounds: list[float], share: float) -> float:
    left = share * stage["count"]
    for bucket, count in stage["buckets"]:
        if left <= count:
            low = bounds[bucket - 1] if bucket else 0.0
            return low + (bounds[bucket] - low) * left / count
        left -= count
    raise AssertionError("a share of the counts is among the counts")


def seconds(text: str) -> float:
    number, unit = text.split(" ")
    return float(number) * {"\u00b5s": 1e-6, "ms": 1e-3, "s": 1.0}[unit]


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> Bundles:
    return make_bundles(tmp_path_factory.mktemp("bundles"))


def test_the_page_shows_the_numbers_of_the_statistics(bundles: Bundles, tmp_path: Path) -> None:
    paths = [bundles.folder / name for name in _ASKED]
    with worker(*paths, "--http-port", "0", "--metrics-port", "0", "--memory", "16MiB") as found:
        address = found.addresses["http"]
        for name, count in _ASKED.items():
            (inputs, _), *_ = bundles.requests(name)
            for _ in range(count):
                ask(address, name, inputs)
        with pytest.raises(InferenceServerException):
            ask(address, "dlrm", {})
        url = f"http://{address}/"
        page = Shown(opened(url, "--dump-dom").stdout)
        status = read(f"{url}status")
        with http.InferenceServerClient(address) as client:
            statistics = {
                model["name"]: model["inference_stats"]
                for model in client.get_inference_statistics()["model_stats"]
            }
        for theme, flags in (("light", ()), ("dark", (_DARK,))):
            opened(url, f"--screenshot={tmp_path / theme}.png", *flags)
        light, dark = ((tmp_path / f"{theme}.png").read_bytes() for theme in ("light", "dark"))
        assert light.startswith(b"\x89PNG")
        assert dark.startswith(b"\x89PNG")
        assert light != dark
        with urllib.request.urlopen(url) as answer:
            assert "default-src 'none'" in answer.headers["content-security-policy"]
            source = answer.read().decode()
        # No other file, no other server.
        assert not re.search(r"https?://|src=|@import|url\(", source)
        with urllib.request.urlopen(f"http://{found.addresses['metrics']}/status") as answer:
            assert json.loads(answer.read())["models"] == status["models"]

    assert page.texts["", "state"] == "ready"
    # No request came while the browser looked.
    assert page.texts["", "rate"] == "0.0"
    assert page.texts["", "open"] == "0"
    assert page.texts["", "wire"] == "0 KiB of 256.0 MiB"
    for model in status["models"]:
        name = model["name"]
        failed = 1 if name == "dlrm" else 0
        assert statistics[name]["success"]["count"] == _ASKED[name]
        assert statistics[name]["fail"]["count"] == failed
        assert page.texts[name, "name"] == name
        assert page.texts[name, "state"] == "ready"
        assert page.texts[name, "answered"] == str(_ASKED[name])
        assert page.texts[name, "failed"] == str(failed)
        rows = model["rows"]
        hits = 100 * (1 - rows["read"] / rows["looked_up"])
        assert page.texts[name, "hits"] == f"{hits:.2f} %"
        halves = [["CPU half", "here, a plan", "0"], ["dense half", "here, in torch", "0"]]
        halves += [["post-processing", "here, a plan", "0"]] if name == "ragged" else []
        assert page.tables[name, "halves"] == halves
        wrong = [["400 wrong request", "0", "1"]] if failed else []
        assert page.tables.get((name, "refusals"), []) == wrong
        shown = page.tables[name, "stages"]
        assert len(shown) == len(model["stages"]) > 4
        for (_, _, _, p50, p99, count, _), stage in zip(shown, model["stages"], strict=True):
            assert count == str(stage["count"]) == str(_ASKED[name])
            for text, share in ((p50, 0.5), (p99, 0.99)):
                expected = percentile(stage, status["bounds_s"], share)
                assert seconds(text) == pytest.approx(expected, rel=0.006)
        whole = model["stages"][-1]
        assert whole["stage"] == "whole"
        assert round(whole["seconds"] * 1e9) == statistics[name]["success"]["ns"]
