"""What scheduler, node and gpuctl spell alike of a run, and its numbers on the wire."""

from __future__ import annotations

from dataclasses import fields

import pytest
from gpufleet.v1 import job_pb2, node_agent_pb2
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.jobs.run_protos import INPUT_MODES, STOP_CAUSES, key_from_proto, key_to_proto
from gpufleet.jobs.runs import Cause, JobId, NodeCause, RankKey, StopCause, cause_of

KEYS = st.builds(
    RankKey,
    st.integers(1, 2**63 - 1),
    st.integers(1, 2**31 - 1),
    st.integers(0, 2**31 - 1),
    st.sampled_from(["", "00f067aa0ba902b7"]),
)


@given(KEYS)
def test_a_key_is_read_back_from_its_name_and_from_the_wire(key: RankKey) -> None:
    assert RankKey.parse(key.name) == key
    assert key_from_proto(key_to_proto(key)) == key


def test_a_key_has_the_fields_that_it_has_on_the_wire_in_their_order() -> None:
    on_the_wire = [each.name.removesuffix("_id") for each in node_agent_pb2.AttemptKey.DESCRIPTOR.fields]
    assert [each.name for each in fields(RankKey)] == on_the_wire
    whole = RankKey(JobId(5), 6, 7, "00f067aa0ba902b7")
    assert [value for _, value in key_to_proto(whole).ListFields()] == [5, 6, 7, "00f067aa0ba902b7"]


def test_a_key_has_a_name_for_files_and_a_short_one_for_people() -> None:
    whole, first = RankKey(JobId(5), 6, 7), RankKey(JobId(5), 6, 0)
    assert (whole.name, first.name) == ("5.6.7", "5.6.0")
    assert (str(whole), str(first)) == ("5/6.7", "5/6")
    later = RankKey(JobId(5), 6, 7, "00f067aa0ba902b7")
    assert (later.name, str(later)) == ("5.6.7.00f067aa0ba902b7", "5/6.7")


@pytest.mark.parametrize(
    "name",
    [
        *("", "1.1", "0.1.0", "1.0.0", "01.1.0", "1.1.00", "1.1.0.", "-1.1.0", "1.1.0\n", "../1", "١.1.0", "1.1.-1"),
        *("1.1.0.00f067aa0ba902b", "1.1.0.00F067AA0BA902B7", "1.1.0.00f067aa0ba902b7.", "1.1.0.00f067aa0ba902b7\n"),
    ],
)
def test_what_is_no_key_is_not_read_as_one(name: str) -> None:
    with pytest.raises(ValueError, match=r"is not job\.attempt\.rank"):
        RankKey.parse(name)


@pytest.mark.parametrize(("job", "attempt", "rank"), [(0, 1, 0), (1, 0, 0), (1, 1, -1), (-1, 1, 0)])
def test_a_key_from_the_wire_that_can_name_no_rank_is_refused(job: int, attempt: int, rank: int) -> None:
    with pytest.raises(ValueError, match=f"names no rank: job {job}, attempt {attempt}, rank {rank}"):
        key_from_proto(node_agent_pb2.AttemptKey(job_id=job, attempt=attempt, rank=rank))


@pytest.mark.parametrize("lineage", ["1", "../../../../etc/x", "00f067aa0ba902b7\n", "00F067AA0BA902B7", "\0" * 16])
def test_a_lineage_from_the_wire_becomes_part_of_names_of_files_and_is_refused_when_it_is_none(lineage: str) -> None:
    with pytest.raises(ValueError, match=r"lineage .* is not 16 hexadecimal digits"):
        key_from_proto(node_agent_pb2.AttemptKey(job_id=1, attempt=1, lineage=lineage))


def test_each_cause_and_mode_has_its_number_on_the_wire_and_there_are_no_others() -> None:
    causes = set(node_agent_pb2.StopCause.values()) - {node_agent_pb2.STOP_CAUSE_UNSPECIFIED}
    assert set(STOP_CAUSES.values()) == causes
    assert set(INPUT_MODES.values()) == set(job_pb2.InputMode.values())


def test_a_cause_is_read_back_whoever_it_is_of() -> None:
    causes: list[Cause] = [*StopCause, *NodeCause]
    assert [cause_of(cause.value) for cause in causes] == causes
    with pytest.raises(ValueError, match="'BOREDOM' is not a valid StopCause"):
        cause_of("BOREDOM")
