"""The dashboard in a real browser: everything that its pages promise, on the fake dialect."""

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from dashboard_site import Served, chromium, drop, fetch_file, log_in, served

from tunery import load_compiled

pytestmark = pytest.mark.browser
playwright = pytest.importorskip("playwright.sync_api")
axe = pytest.importorskip("axe_playwright_python.sync_playwright")

HOSTILE = "<img src=x onerror=document.title='owned'>"
TUNED = {"model": "fake:net?tasks=3&weights=4,2,1&segfault=0.1", "dialect": "fake", "budget": "24trials", "threads": 1}
ENDLESS = {"model": "fake:endless?tasks=2&build_s=0.02&space=16x16x16", "dialect": "fake", "threads": 1,
           "budget": "5000trials"}  # fmt: skip
PAGES = ("jobs", "new", "operators", "hosts", "usage")
Visit = Callable[..., Any]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("site")) as one:
        yield one


@pytest.fixture(scope="module")
def ann(site: Served) -> str:
    """The token of a user who has two jobs at first, and gets more."""
    return with_two_jobs(site, "ann")


def with_two_jobs(site: Served, name: str) -> str:
    """Return the token of a new user whose jobs are a tuned one, and one with a hostile name."""
    token = site.token(name)
    for job in (TUNED, {**TUNED, "model": f"fake:{HOSTILE}?tasks=1", "budget": "8trials"}):
        assert site.ended(token, job)["state"] == "done"
    return token


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as opened:
        yield opened


@pytest.fixture
def visit(site: Served, browser: Any) -> Iterator[Visit]:
    """Opens a page for the holder of a token; an error in a page fails the test."""
    contexts, errors = [], []

    def one(token: str, place: str = "jobs", **more: Any) -> Any:
        contexts.append(browser.new_context(**more))
        page = contexts[-1].new_page()
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda said: errors.append(said.text) if "Content Security" in said.text else None)
        log_in(page, site, token, place)
        return page

    yield one
    for context in contexts:
        context.close()
    assert errors == []


def row(page: Any, text: str) -> Any:
    return page.get_by_role("row").filter(has_text=text)


def test_a_wrong_token_is_refused_and_a_right_one_ends_with_the_session(visit: Visit, ann: str) -> None:
    page = visit(ann)
    assert page.context.cookies() == []
    page.get_by_role("button", name="Log out").click()
    page.get_by_label("Token").fill("tunery_wrong")
    page.get_by_role("button", name="Log in").click()
    page.get_by_role("alert").wait_for()
    assert page.evaluate("sessionStorage.length") == 0
    page.reload()
    page.get_by_label("Token").wait_for()


def test_a_job_is_submitted_watched_compiled_downloaded_and_loads(visit: Visit, ann: str, tmp_path: Path) -> None:
    page = visit(ann, "new")
    page.get_by_label("Dialect").fill("fake")
    page.get_by_label("Threads").fill("1")
    page.get_by_label("Budget").fill("12trials")
    page.get_by_label("Or a model by name").fill("fake:dropped?tasks=2")
    page.get_by_role("button", name="Show operators").click()
    row(page, "matmul_0").wait_for()
    page.get_by_role("button", name="Start tuning").click()
    page.get_by_role("heading", name="dropped").wait_for()
    path = fetch_file(page, tmp_path)
    network = load_compiled(path)
    assert network.inputs


def test_a_file_that_is_no_model_is_told_so(visit: Visit, ann: str) -> None:
    page = visit(ann, "new")
    page.get_by_label("Dialect").fill("fake")
    drop(page, f"{HOSTILE}.onnx", b"no model")
    page.get_by_role("alert").wait_for()
    assert HOSTILE in page.locator("form").inner_text()
    assert page.locator("img").count() == 0


def test_the_report_of_a_job_is_the_same_page_and_asks_nobody(
    site: Served, ann: str, browser: Any, tmp_path: Path
) -> None:
    with site.client(ann) as client:
        jobs = client.get("/v1/jobs").json()["jobs"]
        [hostile] = [job["id"] for job in jobs if HOSTILE in job["model"]]
        (tmp_path / "report.html").write_text(client.get(f"/v1/jobs/{hostile}/report").text)
    page, asked, errors = browser.new_page(), list[str](), list[str]()
    page.on("request", lambda request: asked.append(request.url))
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto((tmp_path / "report.html").as_uri())
    page.get_by_role("heading", name="Stages").wait_for()
    row(page, "matmul_0").wait_for()
    assert page.locator("img").count() == 0
    assert page.title() != "owned"
    assert errors == []
    assert [url for url in asked if not url.startswith(("file:", "data:"))] == []
    page.close()


def test_jobs_are_searched_sorted_and_two_of_them_compared(visit: Visit, site: Served) -> None:
    page = visit(with_two_jobs(site, "bea"))
    row(page, "net").first.wait_for()
    page.get_by_label("Search").fill("img src")
    playwright.expect(page.locator("tbody tr")).to_have_count(1)
    page.get_by_label("Search").fill("no such job")
    page.get_by_text("No job fits").wait_for()
    page.get_by_label("Search").fill("")
    page.get_by_label("State").select_option("done")
    head = page.get_by_role("button", name="Trials")
    trials = page.locator("tbody tr td:nth-child(8)")
    head.click()
    playwright.expect(trials).to_have_text(["24", "8"])
    head.click()
    playwright.expect(trials).to_have_text(["8", "24"])
    head.click()  # the two that tried most
    playwright.expect(trials).to_have_text(["24", "8"])
    for box in page.get_by_role("checkbox").all()[:2]:
        box.check()
    page.get_by_role("link", name="Compare these two").click()
    page.get_by_role("heading", name="Two jobs").wait_for()
    row(page, "matmul_0").wait_for()
    assert page.locator("img").count() == 0


def test_an_operator_has_a_page_and_a_job_a_note_that_the_list_finds(visit: Visit, site: Served, ann: str) -> None:
    page = visit(ann, "operators")
    page.get_by_role("link", name="matmul_0").first.click()
    page.get_by_role("heading", name="Parameters of the best").wait_for()
    assert page.locator("pre").inner_text().strip()
    assert page.get_by_role("img").count() >= 1, "the best over time, and candidates by score where there is a model"
    page.get_by_role("navigation").get_by_role("link", name="Jobs").click()
    row(page, "net").get_by_role("link").first.click()
    page.get_by_label("What is to be remembered of it").fill("the one for Monday")
    page.get_by_label("Tags").fill("demo, two words")
    page.get_by_role("button", name="Keep the note").click()
    page.get_by_text("Kept.").wait_for()
    page.get_by_role("navigation").get_by_role("link", name="Jobs").click()
    for text in ("monday", "two words"):
        page.get_by_label("Search").fill(text)
        page.wait_for_function("document.querySelectorAll('tbody tr').length === 1")
    row(page, "net").locator(".tag").get_by_text("demo").wait_for()


def test_an_administrator_sees_accounts_with_tokens_and_uploads_and_logs(visit: Visit, site: Served) -> None:
    cleo = site.token("cleo")
    assert visit(cleo).get_by_role("link", name="Accounts").count() == 0
    with site.client(cleo) as client:
        digest = f"sha256:{hashlib.sha256(b'a model').hexdigest()}"
        assert client.put(f"/v1/blobs/{digest}", content=b"a model").status_code == 201
    page = visit(site.admin_token, "people")
    page.get_by_role("table", name="Accounts").get_by_role("link", name="cleo").wait_for()
    assert "7 B" in row(page, "cleo").inner_text()
    page.get_by_role("button", name="Show").first.click()
    page.locator("pre").wait_for()
    assert axe.Axe().run(page).violations_count == 0
    page.get_by_role("link", name="cleo").click()
    page.get_by_role("table", name="Uploads").wait_for()
    assert row(page, "never").count() == 1
    assert axe.Axe().run(page).violations_count == 0


def test_a_running_job_is_seen_to_go_on_and_is_cancelled(visit: Visit, site: Served, ann: str) -> None:
    with site.client(ann) as client:
        job = client.post("/v1/jobs", json=ENDLESS).json()["id"]
    page = visit(ann, f"jobs/{job}")
    page.get_by_role("progressbar").wait_for()
    page.get_by_role("img", name="latencies falls").wait_for()
    page.get_by_role("img", name="stages").wait_for()
    trials = page.locator("dt", has_text="Trials").locator("+ dd")
    before = trials.inner_text()
    playwright.expect(trials).not_to_have_text(before)
    page.once("dialog", lambda dialog: dialog.accept())
    page.get_by_role("button", name="Cancel").click()
    page.locator(".state.cancelled").wait_for()
    page.get_by_role("link", name="Jobs").first.click()
    row(page, "endless").get_by_text("cancelled").wait_for()


def test_one_stream_keeps_a_page_up_to_date(visit: Visit, site: Served, ann: str) -> None:
    page = visit(ann)
    page.get_by_text("live").wait_for()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    site.ended(ann, {**TUNED, "model": "fake:newcomer?tasks=1", "budget": "8trials"})
    row(page, "newcomer").get_by_text("done").wait_for()
    assert asked == []


def test_nobody_sees_the_jobs_and_operators_of_another_account(visit: Visit, site: Served, ann: str) -> None:
    page = visit(site.token("bob"))
    page.get_by_text("No jobs yet").wait_for()
    page.get_by_role("link", name="Operators").click()
    page.get_by_text("No operator was measured").wait_for()
    page.get_by_role("link", name="Usage").click()
    page.get_by_text("No job was submitted").wait_for()
    with site.client(ann) as client:
        job = client.get("/v1/jobs").json()["jobs"][0]["id"]
    page.goto(f"{site.url}/#/jobs/{job}")
    page.get_by_text("there is no job").wait_for()


def test_what_a_stranger_calls_things_is_text(visit: Visit, ann: str) -> None:
    page = visit(ann)
    row(page, HOSTILE).get_by_role("link").click()
    page.get_by_role("heading", name=HOSTILE).wait_for()
    assert page.locator("img").count() == 0
    assert "onerror" in page.title()
    refused = page.evaluate("() => { try { document.body.innerHTML = '<b>'; } catch (error) { return error.name; } }")
    assert refused == "TypeError"


@pytest.mark.parametrize("name", ["</td><script>document.title='owned'</script>", "\u05d0\u05d1 1"])
def test_a_name_stays_in_its_place(visit: Visit, site: Served, ann: str, name: str) -> None:
    job = site.ended(ann, {**TUNED, "model": f"fake:{name}?tasks=1", "budget": "8trials"})
    page = visit(ann)
    link = page.locator(f"a[href='#/jobs/{job['id']}']").first
    link.wait_for()
    assert link.text_content() == name
    link.click()
    page.get_by_role("heading", level=1).filter(has_text=name[:4]).wait_for()
    assert page.locator("body script").count() == 0
    assert page.title() != "owned"


@pytest.mark.parametrize(("look", "width"), [("light", 390), ("dark", 1280)])
def test_pages_are_accessible_and_fit_the_screen(visit: Visit, site: Served, ann: str, look: str, width: int) -> None:
    with site.client(ann) as client:
        jobs = client.get("/v1/jobs").json()["jobs"]
        task = client.get("/v1/operators").json()["operators"][0]["task"]
    tuned = next(job["id"] for job in jobs if job["network"] == "net")
    page = visit(ann, color_scheme=look, viewport={"width": width, "height": 844})
    for place in (*PAGES, f"jobs/{tuned}", f"operators/{task}"):
        page.goto(f"{site.url}/#/{place}")
        page.locator("table, form").first.wait_for()
        assert page.evaluate("document.documentElement.scrollWidth") == width, place
        found = axe.Axe().run(page)
        assert found.violations_count == 0, (place, found.generate_report())
    page.get_by_role("button", name="Log out").click()
    page.get_by_label("Token").wait_for()
    assert axe.Axe().run(page).violations_count == 0
    ink = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (ink == "rgb(255, 255, 255)") == (look == "light")


def test_the_keyboard_is_enough(visit: Visit, ann: str) -> None:
    page = visit(ann)
    row(page, "net").first.wait_for()

    def tab_to(name: str) -> None:
        for _ in range(60):
            page.keyboard.press("Tab")
            if page.evaluate("document.activeElement.textContent || document.activeElement.id") == name:
                return
        raise AssertionError(f"no tab stop {name}")

    tab_to("New job")
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="New job").wait_for()
    tab_to("file")
    tab_to("field-or-a-model-by-name")
    page.keyboard.type("fake:typed?tasks=1")
    tab_to("field-threads-of-a-kernel")
    page.keyboard.type("1")
    for name, text in (("field-dialect", "fake"), ("field-budget", "8trials")):
        tab_to(name)
        page.keyboard.press("Control+a")
        page.keyboard.type(text)
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="typed").wait_for()
    page.get_by_role("button", name="Download").wait_for()
