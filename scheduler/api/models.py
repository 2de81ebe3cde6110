"""The Scheduler service: models, which its fleet serves by workers that it starts, or that are started by hand."""

from functools import partial
from typing import Any

from gpufleet.v1 import sessions_pb2

from gpufleet.errors import GpufleetError, Reason, invalid

from ..engine import Engine
from ..output_hub import OutputHub
from ..outputs.errors import OutputStoreUnavailable
from ..state.attempts import OutputStream
from ..state.ids import ModelName, RankKey, UserName
from ..state.session_events import ServeRequested, StopModelRequested
from ..state.sessions import Model, ModelFailure
from .answers import answers, reply_of
from .beginnings import tail_start
from .convert_sessions import model_proto
from .paging import PageTokens, page_size
from .roles import caller
from .validate_models import arguments_of, limits_of, model_name, worker_of, workers_of

LAST_LINES = 10
"""Lines of a failed worker's output that are shown with its model."""
LAST_LINES_BYTES_MAX = 4_096


class ModelCalls:
    """What people ask of models. Each method is one RPC."""

    engine: Engine
    pages: PageTokens
    _outputs: OutputHub

    @answers
    async def ServeModel(
        self, request: sessions_pb2.ServeModelRequest, context: Any
    ) -> sessions_pb2.ServeModelResponse:
        """Serve a model, or change it."""
        wanted = request.model
        name = model_name(wanted.name, "model.name")
        limits, chosen = limits_of(wanted.limits)
        model = Model(name=name, owner=self._owner_of(name), limits=limits, chosen=chosen)
        keeps_workers = not wanted.entry_point
        if keeps_workers:
            _refuse_without_entry_point(wanted)
        else:
            least, most = workers_of(wanted)
            worker, band = worker_of(wanted, name)
            model = Model(
                name=name,
                owner=model.owner,
                limits=limits,
                chosen=chosen,
                entry_point=wanted.entry_point,
                arguments=arguments_of(wanted),
                worker=worker,
                band=band,
                min_workers=least,
                max_workers=most,
            )
        event = ServeRequested(at=self.engine.now(), model=model, keeps_workers=keeps_workers)
        await reply_of(self.engine.request(event))
        return sessions_pb2.ServeModelResponse(model=await self._shown(self.engine.view.durable.models[name]))

    def _owner_of(self, name: ModelName) -> UserName:
        """Whose model it is, or becomes. Only its owner and admins change it. Errors: PERMISSION_DENIED."""
        known = self.engine.view.durable.models.get(name)
        if known is None:
            return caller().user
        if known.owner != caller().user and not caller().is_admin:
            raise GpufleetError(Reason.PERMISSION_DENIED, f"model {name} is {known.owner}'s")
        return known.owner

    async def _shown(self, model: Model) -> sessions_pb2.Model:
        """A model with its line and workers, and of one that has failed the last lines of its output."""
        shown = model_proto(model, self.engine.view.durable, self.engine.view.live.turns)
        if model.failure is not None:
            shown.failure.last_lines.extend(await self._last_lines(model.failure))
        return shown

    async def _last_lines(self, failure: ModelFailure) -> list[str]:
        """The newest lines of both outputs: of standard error, and where that is empty of standard output."""
        key = RankKey(failure.job, failure.attempt, 0)
        for stream in (OutputStream.STDERR, OutputStream.STDOUT):
            try:
                text = await self._outputs.on_thread(partial(self._tail, (key, stream)))
            except OutputStoreUnavailable:
                return []
            if text:
                return text.splitlines()[-LAST_LINES:]
        return []

    def _tail(self, key: tuple[RankKey, OutputStream]) -> str:
        store = self._outputs.store
        end = store.end(*key)
        start = max(tail_start(store, key, LAST_LINES), end - LAST_LINES_BYTES_MAX)
        found = store.read(*key, start, end - start) if end > start else None
        data = getattr(found, "data", b"")
        return bytes(data).decode("utf-8", "replace")

    @answers
    async def ListModels(
        self, request: sessions_pb2.ListModelsRequest, context: Any
    ) -> sessions_pb2.ListModelsResponse:
        """A page of models, in the order of their names."""
        size = page_size(request.page_size)
        cursor = self.pages.read("models", request.page_token)
        models = self.engine.view.durable.models
        wanted = [models[name] for name in sorted(models) if not cursor or name > cursor[0]]
        more = self.pages.sign("models", [wanted[size - 1].name]) if len(wanted) > size else ""
        shown = [await self._shown(model) for model in wanted[:size]]
        return sessions_pb2.ListModelsResponse(models=shown, next_page_token=more)

    @answers
    async def StopModel(self, request: sessions_pb2.StopModelRequest, context: Any) -> sessions_pb2.StopModelResponse:
        """End a model, its sessions and its workers."""
        name = model_name(request.name, "name")
        self._owner_of(name)
        event = StopModelRequested(at=self.engine.now(), model=name, by=caller().user)
        await reply_of(self.engine.request(event))
        return sessions_pb2.StopModelResponse()


def _refuse_without_entry_point(model: sessions_pb2.Model) -> None:
    """Only numbers are changed where nothing says what a worker is started with."""
    for field in ("arguments", "worker", "min_workers", "max_workers"):
        if model.HasField("worker") if field == "worker" else getattr(model, field):
            raise invalid(
                f"model.{field}",
                "goes with an entry point only",
                next_step="name what implements the model, such as package.module:Class",
            )
