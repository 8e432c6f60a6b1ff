"""The application: every route, the dashboard, and errors as problem documents."""

from pathlib import Path

from fastapi import FastAPI

from tunery._settings import settings
from tunery.service.manager import JobManager
from tunery.web import _files, _jobs, _knowledge, _operations, _people
from tunery.web._hub import Hub
from tunery.web._limits import BodyLimit
from tunery.web._pages import Pages
from tunery.web._problems import PROBLEMS, add_handlers
from tunery.web._service import FullLines, Service
from tunery.web.views import ROUTERS


def create_app(manager: JobManager, files: Path, *, local: bool = False) -> FastAPI:
    """Return the application over a manager; uploads and compiled networks are kept in `files`.

    A `local` one lets everybody in: whoever serves it sees to it that only the user who runs it can connect.
    """
    app = FastAPI(
        title="tunery", version="1", openapi_url="/v1/openapi.json", docs_url=None, redoc_url=None,
        description="Tuned and verified implementations of a network's operators.",
    )  # fmt: skip
    app.state.service = Service(manager, files.resolve(), Hub(manager), local, settings().test_dialects)
    add_handlers(app)
    app.add_middleware(BodyLimit)
    if not local:
        app.add_middleware(_people.AuditNotes)
        app.add_middleware(FullLines)
    for router in (*(part.router for part in (_jobs, _files, _knowledge, _people, _operations)), *ROUTERS):
        app.include_router(router, responses=PROBLEMS)
    app.mount("/", Pages())
    return app
