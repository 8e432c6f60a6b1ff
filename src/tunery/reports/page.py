"""A job as a page of its own: the dashboard's page of it with its data inlined, one file that fetches nothing."""

import json
from base64 import b64encode
from datetime import UTC, datetime
from html import escape
from pathlib import Path

from tunery.reports.data import plain
from tunery.reports.job import JobView

MADE_BY = "made by tunery report"
STATIC = Path(__file__).parent / "static"
_SECTIONS = ("operators", "stages", "answer", "gain")
_MODULES = ("ui.js", "charts.js", "jobs.js", "job.js")
# In place of asking a service; modules cannot name one another by a path where they have none.
_ASKS = """\
export const get = null, post = null, put = null, download = null;
export function follow(path, onPart, onLive) {
  const parts = JSON.parse(document.getElementById("parts").textContent);
  for (const [name, data] of Object.entries(parts)) onPart(name, data);
  onLive(false, "as it was when this page was made");
  return () => {};
}
"""
_PAGE = """\
<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="generator" content="{made_by}">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; \
script-src 'unsafe-inline' data:"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark"><title>{title}</title><style>{style}</style>
<script type="importmap">{modules}</script><script type="application/json" id="parts">{parts}</script></head>
<body><main id="main" tabindex="-1"></main><div id="status" role="status" class="toast" hidden></div>
<noscript>{title}: {headline} This page needs JavaScript; `tunery jobs show` prints the same.</noscript>
<script type="module">import {{ open }} from "tunery/job.js";
open(document.getElementById("main"), {{ account: {{ role: "reader" }}, id: {job} }});</script></body></html>
"""


def sections(view: JobView) -> dict[str, object]:
    """Return what the page of a job shows by the name of its part, but for how the job stands and its log."""
    gain = ("curve", "whole_s", "onnxruntime_s", "headline", "times", "before_s", "first_s", "after_s")
    parts = {"gain": {name: getattr(view, name) for name in gain}}
    return {name: plain(parts[name] if name in parts else getattr(view, name)) for name in _SECTIONS}


def job_page(view: JobView) -> str:
    texts = {name: STATIC.joinpath(name).read_text(encoding="utf-8") for name in _MODULES} | {"api.js": _ASKS}
    modules = {f"tunery/{name}": _url(text.replace('from "./', 'from "tunery/')) for name, text in texts.items()}
    row = {**plain(view), "id": view.job, "account": "", "remaining": {}}
    for moment in ("created_at", "updated_at"):
        row[moment] = datetime.fromtimestamp(row[moment], UTC).isoformat()
    return _PAGE.format(
        made_by=MADE_BY, title=escape(f"{view.network or view.model} · job {view.job}"), headline=escape(view.headline),
        style=STATIC.joinpath("style.css").read_text(encoding="utf-8"), modules=json.dumps({"imports": modules}),
        parts=_inline({"job": {k: v for k, v in row.items() if k not in _SECTIONS}, **sections(view)}),
        job=_inline(view.job),
    )  # fmt: skip


def notebook(view: JobView, said: str) -> str:
    frame = f'<iframe style="width: 100%; height: 40rem; border: 0" srcdoc="{escape(job_page(view))}"></iframe>'
    return f"<pre>{escape(said)}</pre>{frame}"


def _inline(data: object) -> str:
    return json.dumps(data, allow_nan=False).replace("<", "\\u003c")


def _url(script: str) -> str:
    return f"data:text/javascript;charset=utf-8;base64,{b64encode(script.encode()).decode()}"
