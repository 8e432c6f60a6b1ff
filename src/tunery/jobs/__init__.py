"""A job's life: the only room that ties the others together.

tune      model in, tuned and verified records in the store
extract   the model's tasks
room      any number of jobs at once, coming and going
query     what the store already knows about a model or a task
compile   a loadable file built from the best verified records
bench     whole-network latency against rivals
"""

from tunery.jobs._request import BenchReport, Claim, CompileReport, Guess, Latency, Progress, Request, TuneReport
from tunery.jobs.opening import cache_directory
from tunery.jobs.requests import request_of
from tunery.jobs.room import Room
from tunery.jobs.session import Answer, bench, compile_model, extract, query, tune

__all__ = [
    "Answer", "BenchReport", "Claim", "CompileReport", "Guess", "Latency", "Progress", "Request", "Room", "TuneReport",
    "bench", "cache_directory", "compile_model", "extract", "query", "request_of", "tune",
]  # fmt: skip
