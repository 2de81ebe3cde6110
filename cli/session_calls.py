"""What `models` and `sessions` ask and show."""

from __future__ import annotations

from gpufleet.v1 import sessions_pb2

from . import screen
from .client import connected
from .listing import print_list
from .paging import all_pages
from .render.as_json import print_message
from .render.sessions import models_screen, sessions_screen
from .settings import Settings

PAGE_SIZE = 1000


def show_models(settings: Settings) -> None:
    """Print the models."""
    with connected(settings) as client:
        request = sessions_pb2.ListModelsRequest(page_size=PAGE_SIZE)
        pages = all_pages(client, client.scheduler.ListModels, request)
        models = [model for page in pages for model in page.models]
    print_list(
        settings.format,
        models,
        whole=sessions_pb2.ListModelsResponse(models=models),
        name=lambda model: model.name,
        lines=lambda look: models_screen(models, screen.local_now(), look),
    )


def show_sessions(settings: Settings, model: str) -> None:
    """Print the sessions: those with a seat first, then the lines."""
    with connected(settings) as client:
        request = sessions_pb2.ListSessionsRequest(model=model, page_size=PAGE_SIZE)
        pages = all_pages(client, client.scheduler.ListSessions, request)
        sessions = [session for page in pages for session in page.sessions]
    print_list(
        settings.format,
        sessions,
        whole=sessions_pb2.ListSessionsResponse(sessions=sessions),
        name=lambda session: session.id,
        lines=lambda look: sessions_screen(sessions, screen.local_now(), look),
    )


def close_session(settings: Settings, session: str, reason: str) -> None:
    """End a session, and say so."""
    with connected(settings) as client:
        request = sessions_pb2.CloseSessionRequest(id=session, reason=reason)
        answer = client.call(client.scheduler.CloseSession, request)
    if settings.format in ("json", "jsonl"):
        print_message(answer, settings.format)
    else:
        print(session if settings.format == "name" else f"session {session} is closed")
