"""Single candidates over HTTP: verified and timed, or refused; and no kernel that cheats gets a time."""

import ctypes
import json
import platform
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from forging_kernels import FEWER_CALLS, REPLACES
from square_kernel import square_file
from web_tools import PATIENCE_S, Serve, Site

from tunery.delivery import measure

pytestmark = pytest.mark.jobs
needs_x86 = pytest.mark.skipif(platform.machine() != "x86_64", reason="replaces code of this kind of processor")
FAKE = {"model": "fake:one?tasks=2", "dialect": "fake", "threads": 1}


async def measured(client: httpx.AsyncClient, asked: dict[str, Any], code: int = 201) -> dict[str, Any]:
    """Return the measurement, when it has ended, or the problem."""
    answer = await client.post("/v1/measurements", json=asked)
    assert answer.status_code == code, answer.text
    return await ended(client, answer.json()) if code == 201 else answer.json()


async def ended(client: httpx.AsyncClient, found: dict[str, Any]) -> dict[str, Any]:
    while found["state"] in {"queued", "running"}:
        found = (await client.get(f"/v1/measurements/{found['id']}", params={"wait": 30})).json()
    return found


async def all_measured(client: httpx.AsyncClient, sources: Sequence[str]) -> list[dict[str, Any]]:
    """Return the measurements of kernels, which are queued together; no call waits for another of the account."""
    begun = [(await client.post("/v1/measurements", json=kernel(source))).json() for source in sources]
    return [await ended(client, found) for found in begun]


async def tasks_of(client: httpx.AsyncClient) -> list[str]:
    job = (await client.post("/v1/jobs", json={**FAKE, "kind": "extract"})).json()["id"]
    while (job_ := (await client.get(f"/v1/jobs/{job}", params={"wait": 30})).json())["state"] != "done":
        assert job_["state"] in {"queued", "running"}, job_["message"]
    return [task["task"] for task in job_["answer"]["tasks"]]


def test_a_candidate_of_a_task_is_verified_and_timed_beside_its_default(serve: Serve) -> None:
    async def main(site: Site) -> None:
        client = await site.account("ann")
        first, other = await tasks_of(client)
        done = await measured(
            client, {**FAKE, "task": first, "candidate": {"schedule": "tiled", "tile_x": 2, "tile_y": 4, "unroll": 1}}
        )
        assert done["state"] == "done", done["message"]
        told = done["result"]
        assert (done["state"], told["task"], told["outcome"]) == ("done", first, "ok")
        assert told["low_s"] <= told["latency_s"] <= told["high_s"]
        assert told["baseline_s"] > 0
        assert told["verification"]["inputs"] >= 3
        default = (await measured(client, {**FAKE, "task": other}))["result"]
        assert (default["outcome"], default["latency_s"]) == ("ok", default["baseline_s"])
        spent = (await client.get("/v1/spend", params={"job": done["id"]})).json()
        assert spent["stages"]

    serve(main)


def test_what_cannot_be_measured_is_one_sentence(serve: Serve) -> None:
    async def main(site: Site) -> None:
        client = await site.account("ann")
        for wrong, says in (({"task": "0000"}, "no task"), ({}, "2 tasks"),
                            ({"task": (await tasks_of(client))[0], "candidate": "[1, 2"}, "no candidate")):  # fmt: skip
            failed = await measured(client, {**FAKE, **wrong})
            assert (failed["state"], failed["result"]) == ("failed", None)
            assert says in failed["message"]
        for wrong in ({"kernel": {"description": "x"}}, {"model": ""}, {"model": "/etc/passwd"}, {"task": "../x"}):
            await measured(client, {**FAKE, **wrong}, 422)

    serve(main)


def test_one_key_is_one_measurement_and_nobody_else_sees_it(serve: Serve) -> None:
    async def main(site: Site) -> None:
        ann, bob = await site.account("ann"), await site.account("bob")
        asked = {**FAKE, "task": (await tasks_of(ann))[0]}
        sent = [await ann.post("/v1/measurements", json=asked, headers={"Idempotency-Key": "k"}) for _ in range(2)]
        assert [one.status_code for one in sent] == [201, 200]
        place = f"/v1/measurements/{sent[0].json()['id']}"
        assert sent[1].json()["id"] in place
        assert (await bob.get(place)).status_code == 404
        assert (await ann.get(place, params={"wait": 60})).json()["state"] == "done"
        tuned = (await ann.post("/v1/jobs", json={**FAKE, "kind": "extract"})).json()["id"]
        assert (await ann.get(f"/v1/measurements/{tuned}")).status_code == 404, "it is another kind of job"

    serve(main)


def test_those_who_wait_learn_how_many_are_before_them(serve: Serve) -> None:
    slow = {**FAKE, "model": "fake:slow?tasks=1&build_s=0.5"}

    async def main(site: Site) -> None:
        ann, bob = await site.account("ann"), await site.account("bob")
        asked = [await ann.post("/v1/measurements", json=slow) for _ in range(34)]
        places = [one.json()["ahead"] for one in asked]
        assert places[0] == 0
        assert places == sorted(places)
        assert 0 < places[-1] < 34, "some are at work, the others are before it"
        assert (await bob.post("/v1/measurements", json=slow)).json()["ahead"] == 0, "it counts one's own jobs"
        for one in asked:
            await ann.post(f"/v1/jobs/{one.json()['id']}:cancel")

    serve(main)


SQUARE = square_file('source = "square.c"', 1000, "[parameters]\nONE = [1]")
HEAD = """
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
static void work(const float *x, float *y, int n) {
    for (int i = 0; i < n; i++) {
        float s = 0;
        for (int k = 0; k < 20; k++) s += sinf(x[i] + k) * 1e-20f;
        y[i] = x[i] * x[i] + s;
    }
}
"""
HONEST = "void square(const float *x, float *y) { work(x, y, N); }"
REMEMBERS = """
enum { MOST = %d };
static float *kept[MOST][2]; static int count;
void square(const float *x, float *y) {
    for (int i = 0; i < count; i++) if (!memcmp(kept[i][0], x, 4 * N)) { memcpy(y, kept[i][1], 4 * N); return; }
    work(x, y, N);
    float **to = kept[count < MOST ? count++ : MOST - 1];
    for (int i = 0; i < 2; i++) {
        if (!to[i]) to[i] = malloc(4 * N);
        memcpy(to[i], i ? y : x, 4 * N);
    }
}
"""
FINDS_SETS = """
static char *begin, *end;
static void find_sets(void) {
    FILE *maps = fopen("/proc/self/maps", "r"); char line[512]; unsigned long a, b;
    while (maps && fgets(line, sizeof line, maps))
        if (strstr(line, "memfd:sets") && sscanf(line, "%lx-%lx", &a, &b) == 2) begin = (char *)a, end = (char *)b;
}
static int in_sets(const float *x) { if (!begin) find_sets(); return (char *)x >= begin && (char *)x < end; }
"""
CHEATS = {
    "nothing where time is taken": FINDS_SETS
    + """
        void square(const float *x, float *y) { if (in_sets(x)) memset(y, 0, 4 * N); else work(x, y, N); }""",
    "all answers before the first is asked for": FINDS_SETS
    + """
        enum { EACH = (4 * N + 63) / 64 * 64 };
        __attribute__((constructor)) static void ahead(void) {
            find_sets();
            for (char *p = begin; p && p < end && p < begin + 400 * EACH; p += 2 * EACH)
                work((float *)p, (float *)(p + EACH), N);
        }
        void square(const float *x, float *y) { if (!in_sets(x)) work(x, y, N); }""",
    "answers as soon as numbers are there": FINDS_SETS
    + """
        enum { EACH = (4 * N + 63) / 64 * 64 };
        static void *watch(void *none) {
            volatile float *last = (float *)(begin + 2 * 19 * EACH);
            while (*last == 0) ;
            for (char *p = begin; p < begin + 400 * EACH; p += 2 * EACH) work((float *)p, (float *)(p + EACH), N);
            return none;
        }
        void square(const float *x, float *y) {
            static int done; pthread_t thread;
            if (in_sets(x)) { if (y[0] != y[0]) work(x, y, N); return; }
            if (!done++) pthread_create(&thread, NULL, watch, NULL);
            work(x, y, N);
        }""",
    "a wrong answer": "void square(const float *x, float *y) { for (int i = 0; i < N; i++) y[i] = x[i] * 1.001f; }",
    "half of the work": "void square(const float *x, float *y) { work(x, y, N / 2); }",
    "the first answer again": """
        static float first[N]; static int known;
        void square(const float *x, float *y) {
            if (!known++) work(x, first, N);
            memcpy(y, first, sizeof first);
        }""",
    "what a known input gives": """
        static float first[N], ends[2]; static int known;
        void square(const float *x, float *y) {
            if (known && ends[0] == x[0] && ends[1] == x[N - 1]) { memcpy(y, first, sizeof first); return; }
            work(x, y, N); memcpy(first, y, sizeof first); ends[0] = x[0], ends[1] = x[N - 1]; known = 1;
        }""",
    "its last answers": REMEMBERS % 1,
    "many answers": REMEMBERS % 64,
    "another input": "void square(float *x, float *y) { memset(x, 0, 4 * N); memset(y, 0, 4 * N); }",
    "an answer that comes later": """
        static const float *from; static float *to;
        static void *later(void *none) { work(from, to, N); return none; }
        void square(const float *x, float *y) {
            pthread_t thread; from = x; to = y;
            pthread_create(&thread, NULL, later, NULL); pthread_detach(thread);
        }""",
    "memory of others": "void square(const float *x, float *y) { work(x, y, N); y[N] = y[-1] = 0; }",
    "fewer calls by a macro": HONEST
    + """
        #define tunery_entry(p) if (!i) tunery_call(p)
        #define entry(p) if (!i) (entry)(p)
        #define for if (count)
        """,
    "no work where calls follow each other": """
        #include <time.h>
        static double last;
        static double now(void) {
            struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec * 1e9 + t.tv_nsec;
        }
        void square(const float *x, float *y) { if (now() - last > 1500) work(x, y, N); last = now(); }""",
    "an answer before the work": """
        #include <sys/socket.h>
        void square(const float *x, float *y) {
            double told = 1e-7;
            for (int file = 3; file < 64; file++) send(file, &told, 8, 0), write(file, &told, 8);
            work(x, y, N);
        }""",
    "the end of the process": "void square(const float *x, float *y) { _exit(0); }",
    "a crash": "void square(const float *x, float *y) { *(volatile int *)8 = 1; }",
}


# Kernels that work as they should, and have their process tell less time than it took.
FORGED = {
    "the process tells a 50th of the time": """
        #include <dlfcn.h>
        void square(const float *x, float *y) {
            static int done;
            work(x, y, N);
            if (done++) return;
            int (*run)(const char *) = dlsym(0, "PyRun_SimpleString"), (*lock)(void) = dlsym(0, "PyGILState_Ensure");
            void (*unlock)(int) = dlsym(0, "PyGILState_Release");
            int state = lock();
            run("import _child as m\\n"
                "class Time: size = 8; true = m.TIME.pack; pack = lambda s: Time.true(s / 50)\\n"
                "m.TIME = Time\\n"
                "from tunery.dialects.kernels.kernel import CKernel as K\\n"
                "K.true = K.call; K.call = lambda *a: K.true(*a) / 50");
            unlock(state);
        }""",
    "the system's clock is slow": REPLACES
    + """
        static int slow(clockid_t which, struct timespec *t) {
            unsigned long high, low;
            __asm__ volatile("rdtsc" : "=a"(low), "=d"(high));
            unsigned long now = (high << 32 | low) / 150;
            t->tv_sec = now / 1000000000; t->tv_nsec = now % 1000000000;
            return 0;
        }
        void square(const float *x, float *y) {
            static int done;
            if (!done++) replace(dlsym(0, "clock_gettime"), slow);
            work(x, y, N);
        }""",
    "fewer calls than are asked for": FEWER_CALLS,
    "threads of its own": """
        static const float *from; static float *to; static pthread_barrier_t begin, end;
        static void *half(void *none) {
            for (;;) {
                pthread_barrier_wait(&begin); work(from + N / 2, to + N / 2, N / 2); pthread_barrier_wait(&end);
            }
        }
        void square(const float *x, float *y) {
            static int done; pthread_t thread; unsigned long all[16];
            if (!done++) {
                pthread_barrier_init(&begin, NULL, 2); pthread_barrier_init(&end, NULL, 2);
                memset(all, 255, sizeof all); syscall(203, 0, sizeof all, all);
                pthread_create(&thread, NULL, half, NULL);
            }
            from = x; to = y; pthread_barrier_wait(&begin); work(x, y, N / 2); pthread_barrier_wait(&end);
        }""",
}


def fastest_call_s(directory: Path) -> float:
    """Return what the fastest of many honest calls takes: no neighbour makes that less, and no honest kernel is
    faster."""
    source, library = directory / "honest.c", directory / "honest.so"
    source.write_text(HEAD + HONEST)
    flags = ["-O3", "-march=native", "-DN=1000", "-shared", "-fPIC"]
    subprocess.run(["gcc", *flags, source, "-o", library, "-lm"], check=True, timeout=PATIENCE_S)
    square, numbers = ctypes.CDLL(str(library)).square, (ctypes.c_float * 1000)(*range(1000))
    results = (ctypes.c_float * 1000)()

    def call_s() -> float:
        began = time.perf_counter()
        square(numbers, results)
        return time.perf_counter() - began

    return min(call_s() for _ in range(2000))


def kernel(source: str) -> dict[str, Any]:
    return {"kernel": {"description": SQUARE, "files": {"square.c": HEAD + source}}, "threads": 1,
            "candidate": {"parameters": {"ONE": 1}}}  # fmt: skip


def test_only_who_may_run_code_sends_a_kernel(serve: Serve) -> None:
    async def main(site: Site) -> None:
        for role, code in (("reader", 403), ("user", 403)):
            refused = await measured(await site.account(f"a-{role}", role), kernel(HONEST), code)
            assert "developer" in refused["detail"] or role == "reader"
        developer = await site.account("dev", "developer")
        for name in ("../x.c", "/etc/x", "a/b.c", ".hidden"):
            sent = kernel(HONEST)
            sent["kernel"]["files"][name] = ""
            await measured(developer, sent, 422)
        for sent in (kernel("\ud800"), {**FAKE, "candidate": "\ud800"}):
            half = {"content": json.dumps(sent), "headers": {"Content-Type": "application/json"}}
            answer = await developer.post("/v1/measurements", **half)
            assert answer.status_code == 422, "half of a character cannot be written"
        weaker = await developer.post("/v1/accounts/dev/tokens", json={"role": "user"})
        await measured(site.client(weaker.json()["token"]), kernel(HONEST), 403)
        assert (await developer.post("/v1/accounts/dev/tokens", json={"role": "admin"})).status_code == 403

    serve(main)


@pytest.mark.attack
def test_without_confinement_no_kernel_of_an_account_is_taken(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tunery.web.views.measurements.lacking", lambda: ("seccomp",))

    async def main(site: Site) -> None:
        developer = await site.account("dev", "developer")
        assert "doctor" in (await measured(developer, kernel(HONEST), 403))["detail"]
        monkeypatch.setenv("TUNERY_UNCONFINED_KERNELS", "on")
        await measured(developer, kernel(HONEST))

    serve(main)


def test_a_kernel_that_cannot_be_kept_is_one_sentence(serve: Serve) -> None:
    async def main(site: Site) -> None:
        developer = await site.account("dev", "developer")
        site.app.state.service.files.mkdir(parents=True, exist_ok=True)
        (site.app.state.service.files / "kernels").touch()
        assert "cannot keep the kernel" in (await measured(developer, kernel(HONEST), 507))["detail"]

    serve(main)


def test_why_a_job_failed_names_no_place_of_the_service(serve: Serve) -> None:
    async def main(site: Site) -> None:
        developer, files = await site.account("dev", "developer"), str(site.app.state.service.files)
        failed = await measured(developer, {"kernel": {"description": "no kernel"}})
        assert failed["message"].startswith("'kernel.toml' is no TOML")
        place = f"/v1/jobs/{failed['id']}"
        told = [(await developer.get(f"{place}{more}")).text for more in ("", "/events", "/failures")]
        told.append((await developer.get("/v1/jobs")).text)
        told.append((await developer.get(f"{place}/events", headers={"Accept": "application/jsonl"})).text)
        assert sum("is no TOML" in text for text in told) >= 4
        assert files not in "".join(told)

    serve(main)


@pytest.mark.attack
@pytest.mark.slow
@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")
@pytest.mark.parametrize(
    "cheats",
    [dict([*CHEATS.items()][::2]), dict([*CHEATS.items()][1::2]), pytest.param(FORGED, marks=needs_x86)],
    ids=["some", "others", "forged"],
)
def test_no_kernel_that_cheats_gets_a_time(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cheats: dict[str, str]
) -> None:
    monkeypatch.setenv("TUNERY_CACHE", str(tmp_path / "cache"))
    fastest_s = fastest_call_s(tmp_path)

    async def main(site: Site) -> None:
        developer = await site.account("dev", "developer")
        left = cheats
        for _ in range(3):  # a busy neighbour makes no kernel look faster than honest ones three times
            sent = await all_measured(developer, [HONEST, *left.values(), HONEST, HONEST])
            honest_s = [one["result"]["latency_s"] for one in (sent[0], *sent[-2:])]
            told = {name: (one["result"] or {}).get("latency_s") for name, one in zip(left, sent[1:], strict=False)}
            assert not [name for name, time_s in told.items() if time_s and time_s < 0.4 * fastest_s], (told, fastest_s)
            left = {name: source for name, source in left.items() if told[name] and told[name] < 0.8 * min(honest_s)}
            if not left:
                break
        assert not left, (told, honest_s)
        after = (await measured(developer, kernel(HONEST)))["result"]
        assert after["latency_s"] > 0.4 * fastest_s, "a job measures with what an earlier one has left"

    serve(main)


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")
@pytest.mark.parametrize("candidate", [{}, {"candidate": {"parameters": {"ONE": 2}}}])
def test_a_kernel_that_hangs_holds_the_device_for_a_few_seconds(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, candidate: dict[str, Any]
) -> None:
    monkeypatch.setenv("TUNERY_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(measure, "RACE_DEADLINE_S", 2.0)
    monkeypatch.setattr(measure, "FIRST_RACE_DEADLINE_S", 1e6)
    hangs = {"square.c": "void square(const float *x, float *y) { for (;;) y[0] = x[0] * ONE; }"}
    file = square_file('source = "square.c"', 1000, "[parameters]\nONE = [1, 2]")

    async def main(site: Site) -> None:
        developer = await site.account("dev", "developer")
        asked = {"kernel": {"description": file, "files": hangs}, "threads": 1, **candidate}
        told = (await measured(developer, asked))["result"]
        assert (told["outcome"], told["latency_s"]) == ("timeout", None)

    serve(main)
