"""A file of ONNX that is served as it is, and what its metadata say of where it computes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from gpufleet.onnx import OnnxModel
from gpufleet.predict import TensorSpec
from gpufleet.runtimes import facts
from gpufleet.runtimes.probe import one_node_model
from inference.core.batching import BatchLimits
from inference.loading import NotLoaded, Wanted, best_device, tried
from inference.predict.computing import compute
from inference.predict.loading import in_words, load
from tests.gpufleet_lib.onnx_fakes import Build
from tests.inference.predict.answers import answering, floats, tensor

pytest.importorskip("onnxruntime")

SERVED = "gpufleet.onnx:OnnxModel"


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(facts, "_noted", {})
    return iter([None])


@pytest.fixture
def twice(tmp_path: Path) -> str:
    """A file that doubles numbers."""
    file = tmp_path / "twice.onnx"
    file.write_bytes(one_node_model())
    return str(file)


async def test_a_file_answers_and_its_metadata_say_where_it_computes(twice: str) -> None:
    async with answering("", entry_point=SERVED, file=twice) as server:
        answer = await server.infer(tensor([1.0, 2.5, -3.0], width=None))
        assert answer.said["outputs"][0] | {"parameters": None} == {
            "name": "y",
            "datatype": "FP32",
            "shape": [3],
            "data": floats(2, 5, -6),
            "parameters": None,
        }
        # What callers send is held against the file, as against any class.
        wrong = await server.infer(tensor([1, 2], "INT64", "x"))
        assert wrong.status == 400 and "FP32" in wrong.said["error"]
        assert (await server.infer(tensor([1.0], name="z"))).status == 400
        metadata = (await server.ask(f"/v2/models/{server.name}")).said
        assert metadata["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1]}]
        assert metadata["outputs"] == [{"name": "y", "datatype": "FP32", "shape": [-1]}]
        (said,) = (await server.ask(f"/v2/models/{server.name}")).said["parameters"]["runtimes"]
        assert (said["name"], said["provider"], said["device"]) == ("onnxruntime", "cpu", "cpu")
        assert said["version"] and said["device_name"] and said["device_memory_bytes"] > 0
        assert said["passed_over"] == [] and said["driver_version"] == "" and said["memory_limit_bytes"] == 0
        figures = (await server.ask("/metrics")).body.decode()
        labels = 'device="cpu",backend="cpu",runtime="onnxruntime",provider="cpu"'
        assert f"gpufleet_predict_runtime_info{{{labels}" in figures


def test_items_of_several_inputs_and_requests_keep_their_places(twice: str) -> None:
    wanted = Wanted(entry_point=SERVED, arguments={"file": twice}, device="cpu")
    ready = load(wanted, BatchLimits().batch_max, lambda share, words: None)
    found = compute(ready, [{"x": np.float32(1)}, {"x": np.float32(4)}])
    assert [float(np.asarray(each["y"].data)) for each in found.values if each is not None] == [2.0, 8.0]
    assert ready.device == "cpu" and ready.runtimes == facts.runtimes_in_use("cpu")


@pytest.mark.parametrize(
    "arguments, words",
    [
        ({}, "missing 1 required positional argument: 'file'"),
        ({"file": "none.onnx"}, "there is no file none.onnx"),
        ({"file": __file__}, "cannot be loaded by ONNX Runtime"),
        ({"file": __file__, "providers": "gpu"}, 'providers: "gpu" is none of tensorrt'),
        ({"file": __file__, "fiel": "x"}, "the model has no argument fiel; did you mean"),
    ],
)
def test_what_is_wrong_with_a_file_or_an_argument_is_one_sentence(arguments: dict[str, str], words: str) -> None:
    with pytest.raises(NotLoaded) as refused:
        load(Wanted(entry_point=SERVED, arguments=arguments, device="cpu"), 4, lambda share, words: None)
    assert words in str(refused.value)


def test_without_onnx_runtime_a_model_says_what_to_install(monkeypatch: pytest.MonkeyPatch, twice: str) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(NotLoaded, match=r"pip install 'gpufleet\[onnx\]'"):
        load(Wanted(entry_point=SERVED, arguments={"file": twice}, device="cpu"), 4, lambda share, words: None)

    def imports() -> None:
        raise ModuleNotFoundError("No module named 'onnxruntime'", name="onnxruntime")

    with pytest.raises(NotLoaded, match=r"pip install 'gpufleet\[onnx\]'"):
        tried(imports)


def test_a_model_without_torch_is_given_a_gpu_that_onnx_runtime_was_built_for(
    monkeypatch: pytest.MonkeyPatch, twice: str
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", Build(cuda="no CUDA-capable device"))
    monkeypatch.setattr("inference.loading.importlib.util.find_spec", lambda name: None if name == "torch" else name)
    assert best_device() == "cuda:0"
    given = Wanted(entry_point=SERVED, arguments={"file": twice}, device="cuda:0")
    ready = load(given, 4, lambda share, words: None)
    assert ready.device == "cpu" and ready.runtimes[0].passed_over == ("cuda: no CUDA-capable device",)


@pytest.mark.parametrize(
    "shape, kind, words",
    [
        ([], "tensor(float)", "which is not one of items"),
        ([8, 3], "tensor(float)", "has the shape [8, 3], which is not one of items"),
        (["n"], "tensor(string)", "is of the type tensor(string), which no request can hold"),
    ],
)
def test_a_file_that_does_not_take_items_is_refused(
    monkeypatch: pytest.MonkeyPatch, twice: str, shape: list[int | str], kind: str, words: str
) -> None:
    model = OnnxModel()
    made = SimpleNamespace(get_inputs=lambda: [SimpleNamespace(name="x", shape=shape, type=kind)], get_outputs=list)
    monkeypatch.setattr("gpufleet.onnx.session", lambda *given, **more: SimpleNamespace(raw=made, inputs=("x",)))
    with pytest.raises(ValueError) as refused:
        model.load("cpu", twice)
    assert words in str(refused.value)
    shape[:], kind = [1, 3, "width"], "tensor(uint8)"
    model.load("cpu", twice)
    assert model.max_batch == 1 and model.inputs == [TensorSpec("x", "UINT8", (3, -1))]


def test_the_device_is_told_by_what_computes_on_it() -> None:
    on_gpu = facts.RuntimeFacts(
        name="onnxruntime", version="1", provider="cuda", device="cuda:0", device_name="NVIDIA H200"
    )
    assert in_words("cuda:0", [on_gpu]) == "cuda:0 (NVIDIA H200, cuda)"
