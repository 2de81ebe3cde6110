"""What docs/predict.md shows is so: its class, its request and its answer, and the example that it names."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from gpufleet.predict import PredictTraits
from inference.loading import Wanted
from inference.predict import app
from inference.predict.computing import compute
from inference.predict.loading import Ready, load
from inference.predict.requests import read
from inference.predict.results import Answer, ItemError, answer_of

DOCS = Path(__file__).parents[3] / "docs"
PAGE = (DOCS / "predict.md").read_text()


def loaded(entry_point: str, **arguments: str) -> Ready:
    return load(Wanted(entry_point=entry_point, arguments=arguments, device="cpu"), 8, lambda share, words: None)


def answered(ready: Ready, name: str, body: bytes) -> Answer:
    request = read(body, None, ready.traits.inputs)
    computed = compute(ready, request.items)
    refusals = getattr(computed.outcome, "refusals", [])
    found = [ItemError(422, why) if why else value for value, why in zip(computed.values, refusals, strict=True)]
    return answer_of(name, request, [each for each in found if each is not None])


def test_the_pages_class_answers_its_request_as_the_page_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = re.search(r"```python\n(.*?)```", PAGE, re.DOTALL)
    asked = re.search(r"-d '(\{.*\})'", PAGE)
    answer = re.search(r"```json\n(\{\"model_name\":\"Scaled\".*\})\n```", PAGE)
    assert code and asked and answer
    (tmp_path / "scaled.py").write_text(code[1])
    monkeypatch.syspath_prepend(tmp_path)
    assert "--model-arg by=2.5" in PAGE
    assert answered(loaded("scaled:Scaled", by="2.5"), "Scaled", asked[1].encode()).body.decode() == answer[1]


@pytest.mark.slow
def test_the_example_reads_a_digit_that_it_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.syspath_prepend(DOCS / "examples")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # several only wait for each other where the machine has other work
    try:
        ready = loaded("digits:Digits", steps="60")
    finally:
        torch.set_num_threads(threads)
    asked = subprocess.run([sys.executable, DOCS / "examples" / "digits.py"], capture_output=True, check=True).stdout
    said = json.loads(answered(ready, "digits", asked).body)
    assert [output["name"] for output in said["outputs"]] == ["digit", "sure"]
    assert said["outputs"][0]["data"] == [7] and said["outputs"][0]["datatype"] == "INT64"
    blank = ready.model.predict([np.full((16, 16), np.nan, np.float32)])
    assert isinstance(blank[0], ValueError)


def test_the_page_has_a_row_for_each_status_and_path() -> None:
    assert {int(each) for each in re.findall(r"^\| (\d{3}) \|", PAGE, re.MULTILINE)} == {
        *(400, 404, 408, 413, 415, 422, 429, 500, 503, 504)
    }
    assert app.TIMEOUT_HEADER in PAGE and PredictTraits().max_batch == 0
