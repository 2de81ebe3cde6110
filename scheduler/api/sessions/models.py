"""The Scheduler service: models, which its fleet serves by workers that it starts, or that are started by hand."""

import re
from functools import partial

from gpufleet.v1 import sessions_pb2

from gpufleet.errors import GpufleetError, Reason, invalid

from ...engine import Engine
from ...output_hub import OutputHub
from ...outputs.errors import OutputStoreUnavailable
from ...state.attempts import OutputStream
from ...state.ids import ModelName, RankKey, UserName
from ...state.sessions.events import ServeRequested, StopModelRequested
from ...state.sessions.session import Model, ModelFailure
from ...wire.convert_sessions import card_proto, model_proto
from ...wire.updated_models import updated
from ...wire.validate_models import (
    WORKER_BAND,
    arguments_of,
    group_of,
    http_of,
    limits_of,
    model_name,
    worker_of,
    workers_of,
)
from ..answers import Calls, reply_of
from ..jobs.bands import check_band
from ..jobs.reasons import WaitReasons
from ..jobs.secrets import check_secrets
from ..output.beginnings import tail_start
from ..paging import PageTokens, page_size
from ..roles import caller
from ..server_facts import ServerFacts
from ..sight import Sight

LAST_LINES = 10
"""Lines of a failed worker's output that are shown with its model."""
LAST_LINES_BYTES_MAX = 4_096
LAST_LINE_CHARS_MAX = 300
TELLS_NOTHING = re.compile(r"exited with code \d+$")
"""How a worker's end is told that did not say why it ended."""


class ModelCalls(Calls):
    """What people ask of models. Each method is one RPC."""

    engine: Engine
    pages: PageTokens
    reasons: WaitReasons
    _outputs: OutputHub
    facts: ServerFacts

    async def ServeModel(self, request: sessions_pb2.ServeModelRequest) -> sessions_pb2.ServeModelResponse:
        """Serve a model, or change it."""
        wanted = request.model
        name = model_name(wanted.name, "model.name")
        names_band = True
        if request.HasField("update_mask"):
            wanted = self._updated(request, name)
            names_band = "worker.band" in request.update_mask.paths
        limits, chosen = limits_of(wanted.limits)
        model = Model(name=name, owner=self._owner_of(name), limits=limits, chosen=chosen)
        keeps_workers = not wanted.entry_point and not wanted.HasField("http")
        if request.rollback:
            keeps_workers = False
            _refuse_beside_rollback(request)
        elif keeps_workers:
            _refuse_without_entry_point(wanted)
        else:
            least, most = workers_of(wanted)
            in_container = wanted.worker.HasField("container")
            http = http_of(wanted.http, in_container=in_container) if wanted.HasField("http") else None
            if http is not None and http.cpu_model == name:
                raise invalid("model.http.cpu_model", "is the program itself", next_step="name another one")
            _refuse_of_a_class(wanted)
            worker, band = worker_of(wanted, name, http)
            check_secrets(self.engine.view.durable, model.owner, [worker], "model.worker.secrets")
            if band is not WORKER_BAND and names_band:
                check_band(self.engine.view.limits.bands, band, "model.worker.band")
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
                http=http,
                exclusive_group=group_of(wanted),
            )
        event = ServeRequested(
            at=self.engine.now(),
            model=model,
            keeps_workers=keeps_workers,
            rolls_back=request.rollback,
            is_in_place=request.in_place,
        )
        await reply_of(self.engine.request(event))
        return sessions_pb2.ServeModelResponse(model=await self._shown(self.engine.view.durable.models[name]))

    def _updated(self, request: sessions_pb2.ServeModelRequest, name: ModelName) -> sessions_pb2.Model:
        """A program as it is to be where only some of it is named. Raises MODEL_NOT_FOUND, INVALID_ARGUMENT."""
        if request.rollback:
            raise invalid("update_mask", "does not go with a rollback", next_step="leave it out")
        known = self.engine.view.durable.models.get(name)
        if known is None:
            step = "see what is served with: gpuctl models"
            raise GpufleetError(Reason.MODEL_NOT_FOUND, f"no model is called {name!r}", next_step=step)
        self._owner_of(name)  # what it is asked for is nobody else's to change, nor to learn of by an error
        return updated(known, request.model, request.update_mask)

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
        shown = model_proto(model, self.engine.view.durable, self.engine.view.live.turns, self.reasons.of)
        sight = Sight.of_caller(self.facts)
        sight.hide_of_model(shown)
        if not sight.reads(model.owner):
            return shown
        if model.failure is not None:
            await self._tell_more(shown.failure, model.failure)
        if model.update is not None and model.update.failure is not None:
            await self._tell_more(shown.update.failure, model.update.failure)
        return shown

    async def _tell_more(self, shown: sessions_pb2.ModelFailure, failure: ModelFailure) -> None:
        shown.last_lines.extend(await self._last_lines(failure))
        # A program that said nothing to the scheduler has maybe said it to its output.
        if shown.last_lines and TELLS_NOTHING.search(shown.message):
            shown.message += f": {shown.last_lines[-1].strip()[:LAST_LINE_CHARS_MAX]}"

    async def _last_lines(self, failure: ModelFailure) -> list[str]:
        """The newest lines of both outputs: of standard error, and where that is empty of standard output."""
        key = RankKey(failure.job, failure.attempt, 0, failure.lineage)
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

    async def ListModels(self, request: sessions_pb2.ListModelsRequest) -> sessions_pb2.ListModelsResponse:
        """A page of models, in the order of their names."""
        size = page_size(request.page_size)
        cursor = self.pages.read("models", request.page_token)
        models = self.engine.view.durable.models
        wanted = [models[name] for name in sorted(models) if not cursor or name > cursor[0]]
        more = self.pages.sign("models", [wanted[size - 1].name]) if len(wanted) > size else ""
        if request.picture_of:
            return self._picture_of(model_name(request.picture_of, "picture_of"))
        shown = [await self._shown(model) for model in wanted[:size]]
        return sessions_pb2.ListModelsResponse(models=shown, next_page_token=more)

    def _picture_of(self, name: ModelName) -> sessions_pb2.ListModelsResponse:
        if name not in self.engine.view.durable.models:
            return sessions_pb2.ListModelsResponse()
        card = card_proto(self.engine.view.live.turns.cards.get(name), with_picture=True)
        return sessions_pb2.ListModelsResponse(models=[sessions_pb2.Model(name=name, card=card)])

    async def StopModel(self, request: sessions_pb2.StopModelRequest) -> sessions_pb2.StopModelResponse:
        """End a model, its sessions and its workers."""
        name = model_name(request.name, "name")
        self._owner_of(name)
        event = StopModelRequested(at=self.engine.now(), model=name, by=caller().user)
        await reply_of(self.engine.request(event))
        return sessions_pb2.StopModelResponse()


def _refuse_of_a_class(model: sessions_pb2.Model) -> None:
    """A program has no arguments of a model, and nobody stands in line for it."""
    if not model.HasField("http"):
        return
    limits = sessions_pb2.SessionLimits(access=model.limits.access)
    has_phrase = model.limits.access == sessions_pb2.MODEL_ACCESS_PASS_PHRASE
    for field, is_said in (
        ("entry_point", bool(model.entry_point)),
        ("arguments", bool(model.arguments)),
        ("limits", model.limits != limits or has_phrase),
    ):
        if is_said:
            step = "leave it out, or access alone: OPEN or LOGIN" if field == "limits" else "leave it out"
            raise invalid(f"model.{field}", "does not go with a program", next_step=step)


def _refuse_beside_rollback(request: sessions_pb2.ServeModelRequest) -> None:
    """What is served again was said before."""
    for field, _ in request.model.ListFields():
        if field.name != "name":
            step = "leave it out, and change it once that is served"
            raise invalid(f"model.{field.name}", "does not go with a rollback", next_step=step)


def _refuse_without_entry_point(model: sessions_pb2.Model) -> None:
    """Only numbers are changed where nothing says what a worker is started with."""
    for field in ("arguments", "worker", "min_workers", "max_workers", "exclusive_group"):
        if model.HasField("worker") if field == "worker" else getattr(model, field):
            raise invalid(
                f"model.{field}",
                "goes with an entry point only",
                next_step="name what implements the model, such as package.module:Class",
            )
