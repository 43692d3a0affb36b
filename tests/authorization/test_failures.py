"""Every known failure of bridges like ours, by its name."""

import json
import socket

import anyio
import pytest
from yarl import URL

from multitap.authorization.clients import (
    FETCHES,
    NOBODY,
    OWN_FETCHES,
    Clients,
    ClientUnknownNow,
)
from multitap.authorization.grants import FILE_NAME, Grants, Stolen
from multitap.config.access import AccessSettings
from multitap.errors import RequestFailed
from multitap.gateway.fronts.resource_server import ResourceServer
from multitap.http.server.peer import Peer
from multitap.http.server.request import RequestHead
from multitap.identity.access_tokens import TokenRefused
from multitap.identity.people import People
from multitap.identity.verifier import Verifier
from multitap.oauth.endpoints import AddressRules, FetchedReply, GuardedFetch
from multitap.oauth.errors import LoginFailed
from tests.authorization.organisation import REDIRECT, Browser, Organisation, answer_in, sign_ins
from tests.waiting import PATIENCE
from tests.wire import http_zoo as zoo

pytestmark = pytest.mark.anyio

ACCEPT = "/authorize/consent"


@pytest.fixture
async def front(tmp_path):
    async with sign_ins(tmp_path) as opened:
        yield opened


async def test_cve_2026_27124_a_consent_does_not_count_in_another_browser(front):
    client_id = await front.register("https://attacker.example/cb")
    question = front.question(client_id, redirect_uri="https://attacker.example/cb")
    async with Browser() as attacker, Browser() as victim:
        page = await front.agree(attacker, question)
        at_provider = await victim.open(page.onward)
        back = await victim.open(at_provider.headers["location"])

    assert back.status == 403
    assert "location" not in back.headers


async def test_cve_2026_27124_a_form_of_another_browser_is_refused(front):
    question = front.question(await front.register())
    async with Browser() as attacker, Browser() as victim:
        theirs = await attacker.open(question)
        await victim.open(question)
        page = await victim.send(f"{front.url}{ACCEPT}", {**theirs.form, "decision": "allow"})

    assert page.status == 403
    assert page.onward is None


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://attacker.example"},
        {"Origin": "null", "Sec-Fetch-Site": "cross-site"},
    ],
    ids=["origin", "site"],
)
async def test_a_form_that_another_site_sends_is_refused(front, headers):
    async with Browser() as browser:
        page = await browser.open(front.question(await front.register()))
        page = await browser.send(
            f"{front.url}{ACCEPT}", {**page.form, "decision": "allow"}, headers=headers
        )

    assert page.status == 403


async def test_a_person_is_asked_every_time_before_the_provider_is(front):
    """Also after an earlier consent: a stranger's page could use it (GHSA-6x8h-498w-gv8c)."""
    client_id = await front.register()
    async with Browser() as browser:
        await front.sign_in(browser, front.question(client_id))
        again = await browser.open(front.question(client_id))

    assert again.status == 200
    assert "Allow" in again
    assert len(front.organisation.pages) == 1


async def test_cve_2025_69196_a_token_for_another_resource_is_refused(front):
    client_id = await front.register()
    token = (await front.tokens(client_id))["access_token"]

    with pytest.raises(TokenRefused, match="another audience"):
        await front.server.verify(token, [f"{front.url}/mcp/admins"])
    with pytest.raises(TokenRefused, match="another audience"):
        await front.server.verify(token, ["https://other.example/mcp"])


@pytest.mark.parametrize(
    "resource",
    [
        "https://other.example/mcp",
        "{url}.evil.example/mcp",
        "{url}/mcpx",
        "{url}/mcp?x=1",
        "{url}/mcp#x",
        "{url}/mcp/a/../../x",
        "not a url",
    ],
)
async def test_cve_2025_69196_no_token_is_issued_for_a_resource_of_others(front, resource):
    client_id = await front.register()
    async with Browser() as browser:
        question = front.question(client_id, resource=resource.format(url=front.url))
        back = await browser.open(question)

    assert answer_in(back)["error"] == "invalid_target"
    assert answer_in(back)["iss"] == front.url


async def test_cve_2025_62800_nothing_that_strangers_write_becomes_markup(front):
    evil = '"><script>alert(1)</script>'
    client_id = await front.register(client_name=evil)
    async with Browser() as browser:
        asked = await browser.open(front.question(client_id, state=evil))
        unknown = await browser.open(front.question(evil))
        back = await browser.open(
            f"{front.url}/authorize/callback?error={evil}&error_description={evil}&state={evil}"
        )
        wrong = await browser.open(front.question(client_id, redirect_uri=f"https://x/{evil}"))

    for page in (asked, unknown, back, wrong):
        assert "<script" not in page
        policy = page.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "script-src" not in policy
        assert "frame-ancestors 'none'" in policy
        assert page.headers["cache-control"] == "no-store"


async def test_the_double_get_race_does_not_invalidate_the_page(front):
    question = front.question(await front.register())
    async with Browser() as browser:
        first = await browser.open(question)
        await browser.open(question)
        page = await browser.send(f"{front.url}{ACCEPT}", {**first.form, "decision": "allow"})
        twice = await browser.send(f"{front.url}{ACCEPT}", {**first.form, "decision": "allow"})
        at_provider = await browser.open(page.onward)
        back = await browser.open(at_provider.headers["location"])

    assert (page.status, twice.status) == (200, 200)
    assert "code" in answer_in(back)


async def test_an_answer_of_the_provider_counts_once(front):
    question = front.question(await front.register())
    async with Browser() as browser:
        page = await front.agree(browser, question)
        location = (await browser.open(page.onward)).headers["location"]
        first, second = await browser.open(location), await browser.open(location)

    assert (first.status, second.status) == (302, 403)


@pytest.mark.parametrize(
    "uri",
    [
        "javascript:alert(1)",
        "data:text/html,x",
        "http://evil.example/callback",
        "http://localhost.evil.example/callback",
        "http://127.0.0.1.evil.example/callback",
        "https://user@evil.example/callback",
        "https://evil.example/callback#x",
        "file:///etc/passwd",
        "https://",
        "ms-msdt:/id+PCWDiagnostic",
        "search-ms:query=x",
        "chrome-extension://abc/x",
        "JavaScript:alert(1)",
    ],
)
async def test_redirect_tricks_are_not_registered(front, uri):
    status, answer = await front.post(
        "/register", body={"redirect_uris": [uri], "token_endpoint_auth_method": "none"}
    )

    assert status == 400
    assert answer["error"] in {"invalid_redirect_uri", "invalid_client_metadata"}


@pytest.mark.parametrize(
    "uri",
    [
        "https://app.example.evil.example/cb",
        "https://app.example/cb/../other",
        "https://app.example/cb/",
        "https://app.example/cb?x=1",
        "https://app.example/cb%2f..",
        "https://app.example@evil.example/cb",
        "https://app.example\\@evil.example/cb",
        "//app.example/cb",
        "https://APP.example.evil/cb",
        "https://app.example:444/cb",
        "http://app.example/cb",
        "",
    ],
)
async def test_redirect_tricks_lead_nowhere(front, uri):
    client_id = await front.register("https://app.example/cb")
    async with Browser() as browser:
        page = await browser.open(front.question(client_id, redirect_uri=uri))

    assert page.status == 400
    assert "location" not in page.headers


async def test_a_program_may_listen_on_any_port_of_its_machine(front):
    client_id = await front.register("http://127.0.0.1/callback")
    async with Browser() as browser:
        page = await browser.open(front.question(client_id))
        other = await browser.open(
            front.question(client_id, redirect_uri="http://localhost:7777/callback")
        )

    assert page.status == 200
    assert other.status == 400


@pytest.mark.parametrize(
    "changes",
    [
        {"code_challenge_method": "plain"},
        {"code_challenge_method": None},
        {"code_challenge": None},
        {"code_challenge": "short"},
        {"response_type": "token"},
    ],
    ids=["plain", "no method", "no challenge", "short", "implicit"],
)
async def test_only_codes_with_s256_are_given(front, changes):
    client_id = await front.register()
    async with Browser() as browser:
        back = await browser.open(front.question(client_id, **changes))

    assert "error" in answer_in(back)
    assert answer_in(back)["state"] == "of the client"


async def test_a_link_to_us_leads_to_no_site_before_somebody_agrees(front):
    """Anybody may register an address, so a redirect with an error would be an open one."""
    evil = "https://evil.example/phishing"
    client_id = await front.register(evil)
    async with Browser() as browser:
        page = await browser.open(
            front.question(client_id, redirect_uri=evil, response_type="token")
        )

    assert page.status == 400
    assert "location" not in page.headers
    assert page.onward is None
    assert "evil.example" in page


async def test_strangers_write_nothing_on_our_pages(front):
    async with Browser() as browser:
        page = await browser.open(front.question("Call 555-0100 for help"))

    assert page.status == 400
    assert "555" not in page


async def test_a_long_state_is_refused_before_anybody_agrees(front):
    client_id = await front.register()
    async with Browser() as browser:
        fits = await front.agree(browser, front.question(client_id, state="s" * 4000))
        back = await browser.open(front.question(client_id, state="s" * 5000))

    assert fits.status == 200
    assert answer_in(back)["error"] == "invalid_request"


async def test_a_repeated_parameter_is_refused(front):
    question = front.question(await front.register())
    async with Browser() as browser:
        page = await browser.open(f"{question}&redirect_uri=https://evil.example/")

    assert page.status == 400


async def test_code_injection_fails_and_uses_up_the_code(front):
    """A code that somebody else got is of no use in a client with another verifier."""
    client_id = await front.register()
    code = await front.code(client_id)

    wrong = await front.post("/token", front.code_form(client_id, code, code_verifier="v" * 43))
    right = await front.post("/token", front.code_form(client_id, code))

    assert (wrong[0], wrong[1]["error"]) == (400, "invalid_grant")
    assert (right[0], right[1]["error"]) == (400, "invalid_grant")


async def test_a_code_of_another_client_is_of_no_use(front):
    client_id, thief = await front.register(), await front.register()
    code = await front.code(client_id)

    stolen = await front.post("/token", front.code_form(thief, code))
    own = await front.post("/token", front.code_form(client_id, code))

    assert (stolen[0], own[0]) == (400, 200)


async def test_a_code_that_is_used_twice_ends_what_came_of_it(front):
    client_id = await front.register()
    code = await front.code(client_id)
    _, tokens = await front.post("/token", front.code_form(client_id, code))
    again = await front.post("/token", front.code_form(client_id, code))

    assert again[0] == 400
    with pytest.raises(TokenRefused):
        await front.server.verify(tokens["access_token"], [f"{front.url}/mcp"])
    assert (await front.refresh(client_id, tokens["refresh_token"]))[0] == 400


async def test_a_code_that_is_used_twice_at_once_gives_nothing_that_lasts(front):
    client_id = await front.register()
    form = front.code_form(client_id, await front.code(client_id))
    answers = []

    async def use():
        answers.append(await front.post("/token", form))

    async with anyio.create_task_group() as tasks:
        for _ in range(8):
            tasks.start_soon(use)

    for status, tokens in answers:
        if status == 200:
            with pytest.raises(TokenRefused):
                await front.server.verify(tokens["access_token"], [f"{front.url}/mcp"])


async def test_a_code_is_void_if_it_came_again_before_the_sign_in_began(front):
    client_id = await front.register()
    text = await front.code(client_id)
    code = await front.grants.take_code(text, client_id)
    with pytest.raises(Stolen):
        await front.grants.take_code(text, client_id)

    assert not await front.grants.begin(code.id, code.sign_in, 100.0)
    assert await front.grants.find(code.id) is None


class Untouched:
    """Records that nobody may look at."""

    async def read(self, key):
        raise AssertionError(key)

    swap = delete = read


async def test_invented_codes_states_and_tokens_cost_no_look_at_the_records(front):
    grants = Grants(Untouched(), front.grants._seals, 100.0)

    assert await grants.take_code("invented", "any") is None
    assert await grants.take_code(grants.new_state(), "any") is None
    assert await grants.take_hop("invented", "b" * 43) is None
    assert grants.read_access("mta_invented") is None
    assert grants.read_refresh("mtr_invented") is None


async def test_mix_up_an_answer_of_another_provider_is_refused(tmp_path):
    organisation = Organisation(iss="https://other.example")
    async with sign_ins(tmp_path, organisation=organisation) as front, Browser() as browser:
        back = await front.sign_in(browser, front.question(await front.register()))

    assert back.status == 403
    assert not organisation.forms


async def test_mix_up_an_answer_without_a_name_is_refused(tmp_path):
    async with sign_ins(tmp_path) as front, Browser() as browser:
        page = await front.agree(browser, front.question(await front.register()))
        location = (await browser.open(page.onward)).headers["location"]
        back = await browser.open(location.partition("&iss=")[0])

    assert back.status == 403
    assert not front.organisation.forms


async def test_an_id_token_of_another_sign_in_is_refused(tmp_path):
    organisation = Organisation(nonce="another")
    async with sign_ins(tmp_path, organisation=organisation) as front, Browser() as browser:
        back = await front.sign_in(browser, front.question(await front.register()))

    assert back.status == 403


async def test_a_stolen_refresh_token_ends_its_family(front):
    ended = []
    front.server.on_end = lambda person, _tokens: ended.append(person[1])
    client_id = await front.register()
    tokens = await front.tokens(client_id)
    _, renewed = await front.refresh(client_id, tokens["refresh_token"])

    stolen = await front.refresh(client_id, tokens["refresh_token"])

    assert (stolen[0], stolen[1]["error"]) == (400, "invalid_grant")
    assert ended == ["alice"]
    for access in (tokens["access_token"], renewed["access_token"]):
        with pytest.raises(TokenRefused):
            await front.server.verify(access, [f"{front.url}/mcp"])
    assert (await front.refresh(client_id, renewed["refresh_token"]))[0] == 400


async def test_a_refresh_token_that_is_being_used_ends_nothing(front):
    """A client that lost its patience is not a thief."""
    client_id = await front.register()
    tokens = await front.tokens(client_id)
    front.organisation.pause = anyio.Event()
    answers = []

    async def renew():
        answers.append(await front.refresh(client_id, tokens["refresh_token"]))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(renew)
        with anyio.fail_after(PATIENCE):
            await front.organisation.reached.wait()
            again = await front.refresh(client_id, tokens["refresh_token"])
        front.organisation.pause.set()

    assert (again[0], again[1]["error"]) == (503, "temporarily_unavailable")
    assert answers[0][0] == 200
    assert (await front.refresh(client_id, answers[0][1]["refresh_token"]))[0] == 200


async def test_two_refreshes_at_once_give_one_token(front):
    client_id = await front.register()
    tokens = await front.tokens(client_id)
    answers = []

    async def renew():
        answers.append(await front.refresh(client_id, tokens["refresh_token"]))

    async with anyio.create_task_group() as tasks:
        for _ in range(8):
            tasks.start_soon(renew)

    assert [status for status, _ in answers].count(200) <= 1
    assert len([form for form in front.organisation.forms if "refresh_token" in form]) <= 1


async def test_a_renewal_goes_on_without_its_client(front):
    """The provider has used up its old token: what it gave must not be lost."""
    client_id = await front.register()
    tokens = await front.tokens(client_id)
    claim = front.grants.read_refresh(tokens["refresh_token"])
    front.organisation.pause = anyio.Event()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(front.refresh, client_id, tokens["refresh_token"])
        with anyio.fail_after(PATIENCE):
            await front.organisation.reached.wait()
        tasks.cancel_scope.cancel()
    front.organisation.pause.set()
    with anyio.fail_after(PATIENCE):
        while (await front.grants.find(claim.id)).generation == 0:
            await anyio.lowlevel.checkpoint()

    newest = front.grants.refresh_token(claim.id, 1)
    assert (await front.refresh(client_id, newest))[0] == 200


async def test_a_refresh_token_of_another_client_is_of_no_use(front):
    client_id, thief = await front.register(), await front.register()
    tokens = await front.tokens(client_id)

    assert (await front.refresh(thief, tokens["refresh_token"]))[0] == 400
    assert (await front.refresh(client_id, tokens["refresh_token"]))[0] == 200


async def test_a_refresh_gives_no_scope_that_was_not_granted(front):
    client_id = await front.register()
    tokens = await front.tokens(client_id)

    status, answer = await front.refresh(client_id, tokens["refresh_token"], scope="tools admin")

    assert (status, answer["error"]) == (400, "invalid_scope")


async def test_tokens_are_not_interchangeable(front):
    client_id = await front.register()
    tokens = await front.tokens(client_id)

    with pytest.raises(TokenRefused):
        await front.server.verify(tokens["refresh_token"], [f"{front.url}/mcp"])
    assert (await front.refresh(client_id, tokens["access_token"]))[0] == 400
    sealed = "mta_" + tokens["refresh_token"].removeprefix("mtr_")
    with pytest.raises(TokenRefused):
        await front.server.verify(sealed, [f"{front.url}/mcp"])


DOCUMENT = "https://client.example/oauth.json"


@pytest.mark.parametrize(
    "address",
    [
        "https://127.0.0.1/client.json",
        "https://[::1]/client.json",
        "https://169.254.169.254/latest/meta-data",
        "https://10.0.0.1/client.json",
        "https://192.168.1.1/client.json",
        "https://[::ffff:127.0.0.1]/client.json",
        "https://0x7f000001/client.json",
        "https://2130706433/client.json",
    ],
)
async def test_ssrf_by_metadata_documents_is_refused(front, address):
    async with Browser() as browser:
        page = await browser.open(front.question(address))

    assert page.status == 400


async def test_ssrf_by_a_name_that_leads_inside_is_refused(tmp_path):
    """Also by one that leads somewhere else at each question: what is checked is connected to."""
    answers = []

    async def resolve(loop, host, port):
        answers.append(host)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]

    fetch = GuardedFetch(NOBODY)
    fetch.rules = AddressRules(URL(NOBODY), resolve=resolve)
    with socket.create_server(("127.0.0.1", 0)) as inside:
        address = f"https://client.example:{inside.getsockname()[1]}/oauth.json"
        async with sign_ins(tmp_path, fetch=fetch) as front, Browser() as browser:
            page = await browser.open(front.question(address))
        inside.setblocking(False)
        with pytest.raises(BlockingIOError):
            inside.accept()

    assert page.status == 400
    assert answers == ["client.example"]


async def test_ssrf_by_a_redirect_of_a_metadata_document_is_refused():
    """Not even within its origin: the document has to be at the address that names the client."""

    async def move(request, caller):
        is_moved = request.path == "/moved"
        location = {} if is_moved else {"location": "/moved"}
        await caller.respond({}, status=200 if is_moved else 302, **location)

    async with zoo.serve(move) as site:
        fetch = GuardedFetch(site.url)
        with pytest.raises(LoginFailed, match="redirects"):
            await fetch.describe(site.url, {}, redirects=0)

        assert (await fetch.describe(site.url, {})).status == 200


async def test_a_flood_of_registrations_leaves_nothing(front, tmp_path):
    ids = {await front.register() for _ in range(300)}

    assert len(ids) == 300
    assert not (tmp_path / FILE_NAME).exists()


async def test_a_registration_is_bounded(front):
    many = {"redirect_uris": [f"https://a.example/{n}" for n in range(9)]}
    long = {"redirect_uris": ["https://a.example/" + "x" * 600]}
    large = {"redirect_uris": [REDIRECT], "client_name": "x" * 20_000}

    together = {"redirect_uris": [f"https://a.example/{n}{'x' * 480}" for n in range(8)]}
    assert (await front.post("/register", body=together))[0] == 400  # its id would be too long
    assert (await front.post("/register", body=many))[0] == 400
    assert (await front.post("/register", body=long))[0] == 400
    async with Browser() as browser:
        page = await browser.send(f"{front.url}/register", None, json=large)
    assert page.status == 413


class Unreachable:
    """Fetches nothing, and counts."""

    fetches = 0

    async def describe(self, address, headers, *, redirects):
        self.fetches += 1
        raise RequestFailed(f"{address} is away, whatever {headers}", sent=False)


async def test_a_flood_of_documents_causes_few_fetches(front):
    """Strangers choose the addresses, and each fetch is a request to somebody."""
    fetch = Unreachable()
    clients = Clients(front.server.settings, front.grants, fetch, clock=lambda: 1000.0)
    for number in range(500):
        with pytest.raises(ClientUnknownNow):
            await clients.find(f"https://{number % 50}.example/{number}")
    before = fetch.fetches
    for _ in range(10):  # a failure is remembered, too
        with pytest.raises(ClientUnknownNow):
            await clients.find("https://0.example/0")

    assert before == fetch.fetches <= FETCHES.requests


async def test_one_host_does_not_use_up_the_fetches_of_others(front):
    fetch = Unreachable()
    clients = Clients(front.server.settings, front.grants, fetch, clock=lambda: 1000.0)
    for number in range(100):
        with pytest.raises(ClientUnknownNow):
            await clients.find(f"https://evil.example/{number}")
    evil = fetch.fetches
    with pytest.raises(ClientUnknownNow, match="cannot reach"):
        await clients.find("https://good.example/client.json")

    assert (evil, fetch.fetches) == (OWN_FETCHES.requests, OWN_FETCHES.requests + 1)


async def test_known_clients_do_not_wait_behind_slow_documents(front):
    slow = SlowDocuments()
    clients = Clients(front.server.settings, front.grants, slow)
    assert (await clients.find(DOCUMENT)).client_name == "Known"
    async with anyio.create_task_group() as tasks:
        for number in range(20):
            tasks.start_soon(clients.find, f"https://slow{number}.example/client")
        await slow.waiting.wait()

        with anyio.fail_after(PATIENCE):
            assert (await clients.find(DOCUMENT)).client_name == "Known"
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize("status", [None, 503], ids=["away", "error"])
async def test_a_client_whose_document_is_away_stays_known_for_a_day(front, status):
    now = [0.0]
    slow = SlowDocuments()
    clients = Clients(front.server.settings, front.grants, slow, clock=lambda: now[0])
    await clients.find(DOCUMENT)
    slow.status = status
    now[0] = 7200.0
    later = await clients.find(DOCUMENT)
    now[0] = 2 * 86400.0

    assert later.client_name == "Known"
    with pytest.raises(ClientUnknownNow):
        await clients.find(DOCUMENT)


async def test_people_read_that_a_program_cannot_be_checked_now(tmp_path):
    async with sign_ins(tmp_path, fetch=Unreachable()) as front, Browser() as browser:
        page = await browser.open(front.question(DOCUMENT))
        token = await front.post("/token", front.code_form(DOCUMENT, "any"))

    assert page.status == 503
    assert "cannot reach" in page
    # not `invalid_client`, for which clients forget what they have
    assert (token[0], token[1]["error"]) == (503, "temporarily_unavailable")


async def test_a_client_that_withdrew_its_document_is_not_known_any_more(front):
    now = [0.0]
    slow = SlowDocuments()
    clients = Clients(front.server.settings, front.grants, slow, clock=lambda: now[0])
    await clients.find(DOCUMENT)
    slow.status = 404
    now[0] = 7200.0

    assert await clients.find(DOCUMENT) is None


class SlowDocuments:
    """Knows one client; all other addresses never answer."""

    def __init__(self):
        self.waiting = anyio.Event()
        self.status = 200

    async def describe(self, address, headers, *, redirects):
        assert (headers, redirects) == ({}, 0)
        if address != DOCUMENT:
            self.waiting.set()
            await anyio.sleep_forever()
        if self.status is None:
            raise RequestFailed("it is away", sent=False)
        document = {"client_id": DOCUMENT, "client_name": "Known", "redirect_uris": [REDIRECT]}
        return FetchedReply(self.status, {}, json.dumps(document).encode())


@pytest.mark.parametrize(
    "address",
    [
        "https://client.example/a/../oauth.json",
        "https://client.example/%2e%2e/oauth.json",
        "https://client.example/./oauth.json",
        "https://user@client.example/oauth.json",
        "https://client.example/oauth.json#x",
        "https://client.example:x/oauth.json",
        "https://client.example/o\u0430uth.json",
        "https://client.example\\@evil.example/oauth.json",
        "https://client.example/",
        "http://client.example/oauth.json",
    ],
)
async def test_an_address_with_several_spellings_is_no_client(front, address):
    fetch = Unreachable()
    clients = Clients(front.server.settings, front.grants, fetch)

    assert await clients.find(address) is None
    assert fetch.fetches == 0


async def test_a_stream_goes_on_while_the_sign_ins_cannot_be_read(front, tmp_path):
    tokens = await front.tokens(await front.register())
    resources = ResourceServer(
        front.url,
        AccessSettings,
        dict,
        make_verifier=lambda access: Verifier(access, People(tmp_path)),
    )
    resources.verifier.own = front.server
    bearer = f"Bearer {tokens['access_token']}".encode()
    head = RequestHead(b"GET", b"/mcp", [(b"authorization", bearer)], peer=Peer())
    (tmp_path / FILE_NAME).write_bytes(b"damaged")

    assert not await resources.has_ended(head)
    assert (await resources.admit(head)).status == 503
