"""`/`, and the two files that it needs. They are the same for everybody, and hold nothing.

What an agent says is put into the page as text, never as HTML; should that fail one day, the policy
lets no script run but the page's own, and nothing be sent elsewhere.
"""

from collections.abc import Callable
from pathlib import Path

from fastapi import APIRouter
from fastapi.responses import FileResponse

__all__ = ["page_routes"]

HERE = Path(__file__).parent
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


def page_routes() -> APIRouter:
    """The page's routes."""
    router = APIRouter(include_in_schema=False)
    for route, name, kind in (
        ("/", "index.html", "text/html"),
        ("/page/style.css", "style.css", "text/css"),
        ("/page/page.js", "page.js", "text/javascript"),
    ):
        router.add_api_route(route, _file(name, kind), methods=["GET", "HEAD"])
    return router


def _file(name: str, kind: str) -> Callable[[], FileResponse]:
    def answer() -> FileResponse:
        return FileResponse(HERE / name, media_type=kind, headers=HEADERS)

    return answer
