"""The pages of a sign-in in a real browser, with its rules about forms, frames and cookies."""

import pytest

from tests.authorization.organisation import sign_ins
from tests.screens import chromium
from tests.wire import http_zoo as zoo

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(chromium.PROGRAM is None, reason="there is no chromium"),
]


class Site:
    """A program on the person's computer, or a site of somebody else."""

    def __init__(self, content=b"Done"):
        self.content = content
        self.paths = []

    async def __call__(self, request, caller):
        self.paths.append(request.path)
        await caller.respond(self.content, content_type="text/html")


@pytest.mark.parametrize("scripts", [True, False], ids=["scripts", "no scripts"])
async def test_a_person_agrees_and_gets_back_to_the_program(tmp_path, scripts):
    program = Site()
    async with (
        sign_ins(tmp_path) as front,
        zoo.serve(program) as local,
        chromium.open_chromium() as browser,
        browser.page(scripts=scripts) as page,
    ):
        client_id = await front.register(local.url)
        await page.visit(front.question(client_id, redirect_uri=local.url))
        await page.sees("Some client")
        await page.click("Allow")
        await page.sees("Done")

    (path,) = [path for path in program.paths if "code=" in path]
    assert "state=of+the+client" in path
    assert page.complaints == []


async def test_a_person_who_cancels_gets_back_to_the_program(tmp_path):
    program = Site()
    async with (
        sign_ins(tmp_path) as front,
        zoo.serve(program) as local,
        chromium.open_chromium() as browser,
        browser.page() as page,
    ):
        client_id = await front.register(local.url)
        await page.visit(front.question(client_id, redirect_uri=local.url))
        await page.click("Cancel")
        await page.sees("Done")

    assert any("error=access_denied" in path for path in program.paths)
    assert front.organisation.pages == []


async def test_clickjacking_the_page_is_shown_in_no_frame(tmp_path):
    async with (
        sign_ins(tmp_path) as front,
        chromium.open_chromium() as browser,
        browser.page() as page,
    ):
        question = front.question(await front.register()).replace("&", "&amp;")
        async with zoo.serve(Site(f'Bait<iframe src="{question}"></iframe>'.encode())) as evil:
            await page.visit(evil.url)
            await page.sees("Bait")
            await page.until("document.readyState === 'complete'")

    assert any("frame-ancestors" in complaint for complaint in page.complaints), page.complaints


async def test_csrf_a_form_of_another_site_agrees_to_nothing(tmp_path):
    """Also with a question that is real, and was shown to the same browser."""
    async with (
        sign_ins(tmp_path) as front,
        chromium.open_chromium() as browser,
        browser.page() as page,
    ):
        await page.visit(front.question(await front.register()))
        await page.sees("Some client")
        sealed = await page.run("document.querySelector('input[name=request]').value")
        form = (
            f'<form method="post" action="{front.url}/authorize/consent">'
            f'<input name="request" value="{sealed}"><input name="decision" value="allow">'
            "<button>Win</button></form>"
        )
        async with zoo.serve(Site(form.encode())) as evil:
            # another site: a port alone does not make one
            await page.visit(evil.url.replace("127.0.0.1", "localhost"))
            await page.click("Win")
            await page.sees("This did not work")

    assert front.organisation.pages == []
