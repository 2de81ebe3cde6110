"""What a model's configuration needs: the table, and properties of what it does with anything else."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.policy.estimate import LONG_NAMES, SPELLINGS, Misfit, estimate, memory_of

MB = 10**6


def of(parameters: dict[str, Any] | None = None, model: str = "llama-3-70b") -> str:
    """The line for people, and what was not used."""
    found = estimate({"model": {"id_or_path": model}, "parameters": parameters or {}})
    return " | ".join([found.sentence, *found.unused])


def refused(config: Any) -> str:
    with pytest.raises(Misfit) as caught:
        estimate(config)
    return " | ".join(filter(None, (str(caught.value), caught.value.next_step)))


def line(gpus: str, memory: str, tp: int = 1, pp: int = 1, dp: int = 1, dcp: int = 1, cp: int = 1) -> str:
    return f"Estimated requirements: {gpus}, {memory} MB each (tp {tp} × pp {pp} × max(dp {dp}, dcp {dcp}, cp {cp}))."


def test_the_example_of_the_manual() -> None:
    config = {
        "model": {"id_or_path": "llama-3-70b"},
        "parameters": {"tp-size": [1, 2, 4], "pp-size": [1], "dp-size": [1]},
    }
    found = estimate(config)
    assert (found.devices, found.memory_bytes, found.unused) == (4, 20_000 * MB, ())
    assert found.sentence == line("4 GPUs", "20,000", tp=4)


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ({}, line("1 GPU", "20,000")),
        ({"tp": 2, "pp": 3}, line("6 GPUs", "20,000", tp=2, pp=3)),
        ({"tp": 2, "dp": 3, "dcp": 5, "cp": 4}, line("10 GPUs", "20,000", tp=2, dp=3, dcp=5, cp=4)),
        ({"dp": [8, 2], "tp_size": 2.0}, line("16 GPUs", "20,000", tp=2, dp=8)),
        ({"tensor_parallel_size": 1000}, line("1,000 GPUs", "20,000", tp=1000)),
        (
            {"tp": 2, "max-model-len": 4096, "ep-size": 8, "data-parallel-size-local": 1, "top_p": None},
            line("2 GPUs", "20,000", tp=2) + " | max-model-len | ep-size | data-parallel-size-local | top_p",
        ),
        ({"expert_parallel_size": 2, "enable-expert-parallel": True, "dp-rank": 1},
         line("1 GPU", "20,000") + " | expert_parallel_size | enable-expert-parallel | dp-rank"),
    ],
)  # fmt: skip
def test_the_world_is_tp_times_pp_times_the_largest_of_dp_dcp_and_cp(parameters: Any, expected: str) -> None:
    assert of(parameters) == expected


@pytest.mark.parametrize(
    ("short", "spellings"),
    [
        ("tp", "tensor-parallel-size tensor_parallel_size tp-size tp_size tp"),
        ("pp", "pipeline-parallel-size pipeline_parallel_size pp-size pp_size pp"),
        ("dp", "data-parallel-size data_parallel_size dp-size dp_size dp"),
        ("cp", "context-parallel-size context_parallel_size cp-size cp_size cp"),
        ("dcp", "decode-context-parallel-size decode_context_parallel_size dcp-size dcp_size dcp"),
    ],
)
def test_every_spelling_means_the_same(short: str, spellings: str) -> None:
    for spelling in spellings.split():
        assert of({spelling: 6}) == line("6 GPUs", "20,000", **{short: 6}), spelling


@pytest.mark.parametrize(
    ("name", "memory_mb"),
    [
        ("llama-3-70b", 20_000), ("LLaMA-65B", 20_000), ("meta/Llama-2-70b-chat-hf", 20_000), ("llama70b", 20_000),
        ("vicuna_13b", 12_000), ("mistral-7B-v0.3", 12_000), ("/models/7b.gguf", 12_000), ("mixtral-8x7b", 12_000),
        ("qwen2.5-7b", 12_000), ("draft-7b-of-70b", 20_000),
        ("gemma-27b", 8_000), ("qwen-1.7b", 8_000), ("internlm-170b", 8_000), ("model-7bit", 8_000), ("phi-7", 8_000),
        ("qwen3-0.6b", 8_000), ("deepseek-671b", 8_000), ("llama-8b", 8_000), ("7 billion", 8_000), ("", 8_000),
    ],
)  # fmt: skip
def test_memory_goes_by_whole_numbers_in_the_name(name: str, memory_mb: int) -> None:
    assert memory_of(name) == memory_mb * MB


def test_nothing_said_is_one_small_device() -> None:
    assert estimate({}).sentence == line("1 GPU", "8,000")


def test_other_keys_are_told_with_where_they_stand() -> None:
    found = estimate({"name": "x", "model": {"id_or_path": "a-7b", "revision": "main"}, "parameters": {"seed": 1}})
    assert found.unused == ("seed", "name", "model.revision")


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ({"tp-sise": 4}, "parameters.tp-sise is not known; tp-size was probably meant | Write tp-size, or leave it "
         "out."),
        ({"TP": 4}, "parameters.TP is not known; tp was probably meant | Write tp, or leave it out."),
        ({"tpsize": 4}, "parameters.tpsize is not known; tp-size was probably meant | Write tp-size, or leave it out."),
        ({"tensor-paralel-size": 4}, "parameters.tensor-paralel-size is not known; tensor-parallel-size was probably "
         "meant | Write tensor-parallel-size, or leave it out."),
        ({"tensor-parallel": 4}, "parameters.tensor-parallel is not known; tensor-parallel-size was probably meant | "
         "Write tensor-parallel-size, or leave it out."),
        ({"tensor_parallelism": 4}, "parameters.tensor_parallelism is not known; tensor-parallel-size was probably "
         "meant | Write tensor-parallel-size, or leave it out."),
        ({"context-parallel-degree": 4}, "parameters.context-parallel-degree is not known; context-parallel-size was "
         "probably meant | Write context-parallel-size, or leave it out."),
        ({"tensor_model_parallel_size": 4}, "parameters.tensor_model_parallel_size is not known; tensor-parallel-size "
         "was probably meant | Write tensor-parallel-size, or leave it out."),
        ({"pipelineParallelSize": 4}, "parameters.pipelineParallelSize is not known; pipeline-parallel-size was "
         "probably meant | Write pipeline-parallel-size, or leave it out."),
        ({"tp": "4"}, 'parameters.tp is the text "4"; it must be a whole number | Write 4, or a grid such as '
         "[1, 2, 4]."),
        ({"tp": True}, "parameters.tp is true; it must be a whole number | Write 4, or a grid such as [1, 2, 4]."),
        ({"tp": 2.5}, "parameters.tp is the number 2.5; it must be a whole number | Write 4, or a grid such as "
         "[1, 2, 4]."),
        ({"tp": [1, None]}, "parameters.tp[1] is null; it must be a whole number | Write 4, or a grid such as "
         "[1, 2, 4]."),
        ({"tp": [[1]]}, "parameters.tp[0] is a list; it must be a whole number | Write 4, or a grid such as "
         "[1, 2, 4]."),
        ({"tp": []}, "parameters.tp is an empty list | Write a number, or a list with one at least."),
        ({"tp": 0}, "parameters.tp is 0; it must be 1 or more"),
        ({"tp": -4}, "parameters.tp is -4; it must be 1 or more"),
        ({"tp": 10**7}, "parameters.tp is more than 1,000,000, and no fleet has so many GPUs"),
        ({"tp": 2000, "pp": 2000}, "parameters come to 4,000,000 GPUs, and no fleet has more than 1,000,000"),
        ({"tp": 4, "tp-size": 4}, "parameters.tp-size says what tp says already | Keep one of the two."),
    ],
)  # fmt: skip
def test_near_misses_and_wrong_types_are_named(parameters: Any, expected: str) -> None:
    assert refused({"parameters": parameters}) == expected


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ([], "the configuration is a list; it must be an object | Write it in braces: {…}."),
        ({"model": "llama"}, 'model is the text "llama"; it must be an object | Write it in braces: {…}.'),
        ({"model": {"id_or_path": 70}}, "model.id_or_path is the number 70; it must be a text | Write "
         '"llama-3-70b", for instance.'),
        ({"model": {"id-or-path": "x"}}, "model.id-or-path is not known; id_or_path was probably meant | Write "
         "id_or_path, or leave it out."),
        ({"parameter": {"tp": 4}}, "parameter is not known; parameters was probably meant | Write parameters, or "
         "leave it out."),
        ({"parameters": None}, "parameters is null; it must be an object | Write it in braces: {…}."),
    ],
)  # fmt: skip
def test_a_configuration_of_another_shape_is_named(config: Any, expected: str) -> None:
    assert refused(config) == expected


DEGREES = st.integers(1, 9) | st.lists(st.integers(1, 9), min_size=1, max_size=4)


@given(st.dictionaries(st.sampled_from(sorted(LONG_NAMES)), DEGREES))
def test_a_larger_grid_never_needs_less(degrees: dict[str, Any]) -> None:
    before = estimate({"parameters": degrees}).devices
    for short, value in degrees.items():
        grown = degrees | {short: [*(value if isinstance(value, list) else [value]), 9]}
        assert estimate({"parameters": grown}).devices >= before


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=10,
)


@given(
    st.fixed_dictionaries(
        {"parameters": st.dictionaries(st.sampled_from(sorted(SPELLINGS)) | st.text(max_size=24), JSON)}
    )
    | JSON
)
def test_anything_else_is_answered_or_refused_with_a_path(config: Any) -> None:
    try:
        found = estimate(json.loads(json.dumps(config)))
    except Misfit as problem:
        assert problem.path and problem.why and len(str(problem)) < 500
    else:
        assert found.devices >= 1
        assert found.sentence.count("\n") == 0
