"""The dashboard: pages that a browser reads once, and that then ask the service as any client does."""

from starlette.responses import Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from tunery.reports.page import STATIC

# A page runs the service's own scripts only, and none that is made of text: names of models are a stranger's words.
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "Cache-Control": "no-cache",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class Pages(StaticFiles):
    """The pages' files, each with the rules that a browser is to hold."""

    def __init__(self) -> None:
        super().__init__(directory=STATIC, html=True)

    async def get_response(self, path: str, scope: Scope) -> Response:
        answer = await super().get_response(path, scope)
        answer.headers.update(_HEADERS)
        return answer
