"""Messages of specs, which are kept between pages of the queue."""

from __future__ import annotations

from scheduler.wire.convert_jobs import SPECS_KEPT_MAX, _SpecMessages, job_proto, spec_proto
from tests.core.fleet import spec
from tests.engine.harness import Harness


async def test_what_is_done_to_one_message_of_a_job_is_not_in_the_next_one() -> None:
    harness = Harness()
    async with harness.running():
        job = harness.job(await harness.submit(spec(name="one", env=(("TOKEN", "x"),)), held=True))
    first = job_proto(job).spec
    first.argv.append("changed")
    first.ClearField("name")
    listed = job_proto(job, omit_env=True).spec
    assert (listed.name, list(listed.argv), listed.is_held) == ("one", ["true"], True) and not listed.env
    whole, wanted = job_proto(job).spec, spec_proto(job.spec)
    wanted.band, wanted.is_held = whole.band, whole.is_held
    assert whole == wanted and dict(whole.env) == {"TOKEN": "x"}


def test_as_many_are_kept_as_a_page_has_and_each_is_its_specs_own() -> None:
    messages = _SpecMessages()
    specs = [spec(name=f"job {number}") for number in range(SPECS_KEPT_MAX + 3)]
    for _ in range(2):
        assert [messages.of(each).name for each in specs] == [each.name for each in specs]
    assert len(messages._kept) == SPECS_KEPT_MAX
