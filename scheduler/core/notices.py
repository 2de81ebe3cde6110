"""Notices of `--notify` that a node could not deliver: kept for their job's story. Rule: docs/rules/jobs.md 2.15."""

from ..state.events import NoticeFailed
from ..state.records import NoticeNotDelivered
from .decision import Decision


def on_notice_failed(event: NoticeFailed) -> Decision:
    """Keep it, whether the job has ended or not. Who reports it has seen that it is news, and of that node."""
    failed = NoticeNotDelivered(
        at=event.at, key=event.key, number=event.number, notice=event.notice, message=event.message
    )
    return Decision(records=(failed,))
