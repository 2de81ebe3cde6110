"""Where a model's worker sends its telemetry: as its agent does, unless it was said when the model was served."""

from __future__ import annotations

from node_agent.launch import worker_variables

TOLD = {"GPUCTL_SCHEDULER": "head:50051", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://agents:4317"}


def test_a_worker_sends_where_its_agent_sends() -> None:
    assert worker_variables(TOLD, {"PATH": "/bin"}) == TOLD


def test_what_was_said_for_the_model_goes_first_and_the_way_to_the_scheduler_is_not_up_to_it() -> None:
    submitted = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://models:4317", "GPUCTL_SCHEDULER": "elsewhere:1"}
    assert worker_variables(TOLD, submitted) == {"GPUCTL_SCHEDULER": "head:50051"}
