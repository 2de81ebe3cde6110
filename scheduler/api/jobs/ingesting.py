"""The Scheduler service: Ingest. A file becomes a job of its handler's command, or is for a served model."""

from typing import Any

from gpufleet.v1 import ingest_pb2

from ...state.ids import ModelName
from ...wire.ingest import check_file, content_type_of, handler_for, model_mode, served, submit_of
from ...wire.validate import check_request_id
from .submitting import SubmitCalls


class IngestCalls(SubmitCalls):
    """How files come. Each public method is one RPC."""

    async def Ingest(self, request: ingest_pb2.IngestRequest, context: Any) -> ingest_pb2.IngestResponse:
        """Find the handler; a command becomes a job, as Submit makes one."""
        check_request_id(request.request_id)
        content_type = content_type_of(request)
        check_file(request)
        pattern, handler = handler_for(self.facts.handlers(), content_type)
        answer = ingest_pb2.IngestResponse(content_type=content_type, pattern=pattern)
        if handler.model:
            view = self.engine.view
            model = served(handler, view.durable.models.get(ModelName(handler.model)))
            answer.gpu_mode = model_mode(model, content_type, view.limits.routing, gpu=request.gpu)
            answer.model.name, answer.model.path, answer.model.input = handler.model, handler.path, handler.input
            return answer
        submitted = await self.Submit(submit_of(request, content_type, handler), context)
        answer.job_id = submitted.first_job_id
        answer.job.CopyFrom(submitted.job)
        answer.gpu_mode = submitted.job.gpu_choice.mode
        answer.notes.extend(submitted.notes)
        return answer
