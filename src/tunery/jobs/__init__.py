"""A job's life: the only room that ties the others together.

tune      model in, tuned and verified records in the store
extract   the model's tasks
query     what the store already knows about a model or a task
compile   a loadable file built from the best verified records
bench     whole-network latency against rivals
"""

from tunery.jobs._request import BenchReport, CompileReport, Latency, Progress, Request, TuneReport
from tunery.jobs.session import Answer, bench, cache_directory, compile_model, extract, query, request_of, tune

__all__ = [
    "Answer", "BenchReport", "CompileReport", "Latency", "Progress", "Request", "TuneReport", "bench",
    "cache_directory", "compile_model", "extract", "query", "request_of", "tune",
]  # fmt: skip
