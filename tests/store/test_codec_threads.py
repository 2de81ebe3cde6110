"""Threads that meet a class for the first time at the same moment."""

import sys
import threading

from scheduler.state.ids import JobId, UserName
from scheduler.state.jobs import Job, Queued
from scheduler.state.specs import Band, JobSpec
from scheduler.state.units import Instant
from scheduler.store.codec import Codec

JOB = Job(
    id=JobId(1),
    user=UserName("alice"),
    spec=JobSpec(argv=("true",), name="true", cwd="/"),
    band=Band.NORMAL,
    submitted_at=Instant(1),
    state=Queued(),
)


def test_several_threads_may_share_a_codec_from_its_first_use_on() -> None:
    text, wrong = Codec().encode(JOB), []

    def use(codec: Codec, barrier: threading.Barrier) -> None:
        barrier.wait()
        try:
            assert (codec.decode(Job, text), codec.encode(JOB)) == (JOB, text)
        except BaseException as problem:
            wrong.append(repr(problem)[:200])

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(20):
            shared = (Codec(), threading.Barrier(3))
            threads = [threading.Thread(target=use, args=shared) for _ in range(3)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert wrong == []
