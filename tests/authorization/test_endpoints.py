"""A client that knows only a URL signs a person in."""

import base64
import json

import pytest

from multitap.authorization.endpoints import open_sign_in
from multitap.authorization.grants import FileRecords, Grants
from multitap.config.access import AccessSettings, OidcIssuer, SignInSettings
from multitap.errors import ConfigError
from multitap.identity.access_tokens import TokenRefused
from multitap.identity.verifier import Verifier
from multitap.oauth.endpoints import FetchedReply
from tests.authorization.organisation import (
    REDIRECT,
    Browser,
    Organisation,
    answer_in,
    sign_ins,
)

pytestmark = pytest.mark.anyio

DOCUMENT = "https://client.example/oauth.json"


@pytest.fixture
async def front(tmp_path):
    async with sign_ins(tmp_path) as opened:
        yield opened


async def test_a_client_registers_and_signs_a_person_in(front):
    client_id = await front.register()
    async with Browser() as browser:
        back = await front.sign_in(browser, front.question(client_id))

    answer = answer_in(back)
    assert back.headers["location"].startswith("http://127.0.0.1:7777/callback?")
    assert (answer["state"], answer["iss"]) == ("of the client", front.url)
    status, tokens = await front.post("/token", front.code_form(client_id, answer["code"]))
    assert status == 200
    assert tokens["token_type"] == "Bearer"
    verified = await front.server.verify(tokens["access_token"], [f"{front.url}/mcp"])
    assert (verified.issuer, verified.subject) == (front.organisation.origin, "alice")
    assert verified.groups == {"dev"}
    assert verified.client.startswith("mtc_")
    assert not verified.is_machine


async def test_the_metadata_says_what_clients_look_for(front):
    async with Browser() as browser:
        pages = [
            await browser.open(f"{front.url}/.well-known/{name}")
            for name in ("oauth-authorization-server", "openid-configuration")
        ]
    metadata = json.loads(pages[0])

    assert pages[0] == pages[1]
    assert pages[0].headers["content-type"] == "application/json"
    assert pages[0].headers["access-control-allow-origin"] == "*"
    assert metadata["issuer"] == front.url
    assert metadata["code_challenge_methods_supported"] == ["S256"]
    assert metadata["token_endpoint_auth_methods_supported"][0] == "none"
    assert metadata["client_id_metadata_document_supported"] is True
    assert metadata["authorization_response_iss_parameter_supported"] is True
    assert "offline_access" not in metadata["scopes_supported"]


async def test_a_person_who_cancels_is_not_sent_to_the_provider(front):
    client_id = await front.register()
    async with Browser() as browser:
        page = await front.agree(browser, front.question(client_id), decision="cancel")

    assert page.onward.startswith("http://127.0.0.1:7777/callback?error=access_denied")
    assert "state=of+the+client" in page.onward
    assert not front.organisation.pages


async def test_the_provider_is_asked_again_at_each_refresh(front):
    client_id = await front.register()
    tokens = await front.tokens(client_id)
    front.organisation.person["groups"] = ["ops"]

    status, renewed = await front.refresh(client_id, tokens["refresh_token"])

    assert status == 200
    verified = await front.server.verify(renewed["access_token"], [f"{front.url}/mcp"])
    assert verified.groups == {"ops"}
    assert front.organisation.forms[-1]["grant_type"] == "refresh_token"


async def test_a_person_whom_the_provider_removed_is_out_at_the_next_refresh(front):
    client_id = await front.register()
    tokens = await front.tokens(client_id)
    front.organisation.removed = True

    status, answer = await front.refresh(client_id, tokens["refresh_token"])

    assert (status, answer["error"]) == (400, "invalid_grant")
    with pytest.raises(TokenRefused):
        await front.server.verify(tokens["access_token"], [f"{front.url}/mcp"])


async def test_a_provider_that_is_down_costs_nobody_the_sign_in(front):
    client_id = await front.register()
    tokens = await front.tokens(client_id)
    front.organisation.is_down = True
    away = await front.refresh(client_id, tokens["refresh_token"])
    front.organisation.is_down = False
    back = await front.refresh(client_id, tokens["refresh_token"])

    assert (away[0], away[1]["error"]) == (503, "temporarily_unavailable")
    assert back[0] == 200


async def test_a_person_who_left_all_groups_is_in_none_after_the_next_refresh(front):
    """Also if the provider does not send empty lists."""
    client_id = await front.register()
    tokens = await front.tokens(client_id)
    del front.organisation.person["groups"]

    _, renewed = await front.refresh(client_id, tokens["refresh_token"])

    verified = await front.server.verify(renewed["access_token"], [f"{front.url}/mcp"])
    assert verified.groups == frozenset()


async def test_a_provider_without_new_id_tokens_is_asked_about_the_person(tmp_path):
    async with sign_ins(tmp_path, organisation=Organisation(renews_id=False)) as front:
        client_id = await front.register()
        tokens = await front.tokens(client_id)
        front.organisation.person["groups"] = ["ops"]
        _, renewed = await front.refresh(client_id, tokens["refresh_token"])
        verified = await front.server.verify(renewed["access_token"], [f"{front.url}/mcp"])

    assert verified.groups == {"ops"}


@pytest.mark.parametrize("error", ["server_error", "invalid_client", "slow_down"])
async def test_what_is_not_about_the_person_costs_nobody_the_sign_in(front, error):
    client_id = await front.register()
    tokens = await front.tokens(client_id)
    front.organisation.error = error
    away = await front.refresh(client_id, tokens["refresh_token"])
    front.organisation.error = None

    assert (away[0], away[1]["error"]) == (503, "temporarily_unavailable")
    assert (await front.refresh(client_id, tokens["refresh_token"]))[0] == 200


async def test_what_the_provider_gave_is_kept_if_it_cannot_be_asked_about_the_person(front):
    """It has used up its old token, and would end the sign-in if that came again."""
    client_id = await front.register()
    tokens = await front.tokens(client_id)
    front.organisation.answers_about_people = False
    away = await front.refresh(client_id, tokens["refresh_token"])
    front.organisation.answers_about_people = True

    assert away[0] == 503
    assert (await front.refresh(client_id, tokens["refresh_token"]))[0] == 200


async def test_a_person_who_was_refused_here_gets_no_tokens(tmp_path):
    reasons = []
    async with sign_ins(tmp_path, refusal=lambda _holder: reasons[0] if reasons else None) as front:
        client_id = await front.register()
        tokens = await front.tokens(client_id)
        code = await front.code(client_id)
        reasons.append("the person has logged out")
        with pytest.raises(TokenRefused, match="logged out"):
            await front.server.verify((tokens["access_token"]), [f"{front.url}/mcp"])
        renewed = await front.refresh(client_id, tokens["refresh_token"])
        new = await front.post("/token", front.code_form(client_id, code))

    for status, answer in (renewed, new):
        assert (status, answer["error"]) == (400, "invalid_grant")


@pytest.mark.parametrize(
    ("error", "passed"),
    [("access_denied", "access_denied"), ("login_required", "access_denied"),
     ("temporarily_unavailable", "temporarily_unavailable")],
)  # fmt: skip
async def test_a_client_is_told_that_the_person_did_not_sign_in(tmp_path, error, passed):
    """Or it waits for an answer that never comes."""
    async with (
        sign_ins(tmp_path, organisation=Organisation(denies=error)) as front,
        Browser() as browser,
    ):
        back = await front.sign_in(browser, front.question(await front.register()))

    answer = answer_in(back)
    assert (answer["error"], answer["state"]) == (passed, "of the client")
    assert answer["iss"] == front.url


async def test_without_a_way_to_ask_the_provider_again_there_is_no_refresh_token(tmp_path):
    async with sign_ins(tmp_path, organisation=Organisation(gives_refresh=False)) as front:
        tokens = await front.tokens(await front.register())

    assert "refresh_token" not in tokens


async def test_a_sign_in_outlives_the_process(tmp_path):
    organisation = Organisation()
    async with sign_ins(tmp_path, organisation=organisation) as front:
        client_id = await front.register()
        tokens = await front.tokens(client_id)
        again = Grants(FileRecords(tmp_path), front.grants._seals, 100.0)
        claim = again.read_access(tokens["access_token"])

        assert (await again.find(claim.id)).subject == "alice"


async def test_a_revoked_token_ends_the_sign_in(front):
    client_id = await front.register()
    tokens = await front.tokens(client_id)
    form = {"token": tokens["refresh_token"], "client_id": client_id}
    stranger = await front.post("/revoke", {**form, "client_id": await front.register()})
    await front.server.verify(tokens["access_token"], [f"{front.url}/mcp"])
    own = await front.post("/revoke", form)

    assert (stranger[0], own[0]) == (200, 200)
    with pytest.raises(TokenRefused):
        await front.server.verify(tokens["access_token"], [f"{front.url}/mcp"])


@pytest.mark.parametrize("way", ["basic", "post"])
async def test_a_client_with_a_secret_has_to_show_it(front, way):
    body = {"redirect_uris": [REDIRECT], "token_endpoint_auth_method": f"client_secret_{way}"}
    _, client = await front.post("/register", body=body)
    client_id, secret = client["client_id"], client["client_secret"]
    form = front.code_form(client_id, await front.code(client_id))
    without = await front.post("/token", form)
    headers = None
    if way == "basic":
        del form["client_id"]
        pair = base64.b64encode(f"{client_id}:{secret}".encode()).decode()
        headers = {"Authorization": f"Basic {pair}"}
    else:
        form["client_secret"] = secret
    right = await front.post("/token", form, headers=headers)

    assert (without[0], without[1]["error"]) == (401, "invalid_client")
    assert right[0] == 200


async def test_registration_can_be_switched_off(tmp_path):
    async with sign_ins(tmp_path, registration=False, documents=False) as front:
        async with Browser() as browser:
            page = await browser.open(f"{front.url}/.well-known/oauth-authorization-server")
            refused = await browser.send(f"{front.url}/register", None, json={})
        metadata = json.loads(page)

    assert "registration_endpoint" not in metadata
    assert metadata["client_id_metadata_document_supported"] is False
    assert refused.status == 404


def test_without_its_settings_there_is_no_sign_in():
    provider = OidcIssuer(issuer="https://login.example", client_id="tap")
    access = AccessSettings(oidc={"org": provider})

    assert open_sign_in(access, Verifier(access), "https://tap.example") is None


def test_nobody_signs_in_over_a_network_without_tls():
    provider = OidcIssuer(issuer="https://login.example", client_id="tap")
    access = AccessSettings(oidc={"org": provider}, sign_in=SignInSettings(provider="org"))

    with pytest.raises(ConfigError, match="no TLS"):
        open_sign_in(access, Verifier(access), "http://tap.example")


class Documents:
    """Has a client's document, as the web would."""

    def __init__(self, **changes):
        self.document = {
            "client_id": DOCUMENT,
            "client_name": "Known client",
            "redirect_uris": ["http://127.0.0.1/callback"],
            "token_endpoint_auth_method": "none",
            **changes,
        }
        self.fetches = 0

    async def describe(self, address, headers, *, redirects):
        assert (address, headers) == (DOCUMENT, {})
        self.fetches += 1
        return FetchedReply(200, {}, json.dumps(self.document).encode())


async def test_a_client_may_describe_itself_at_an_address(tmp_path):
    documents = Documents()
    async with sign_ins(tmp_path, fetch=documents) as front:
        tokens = await front.tokens(DOCUMENT)
        verified = await front.server.verify(tokens["access_token"], [f"{front.url}/mcp"])

    assert verified.client == DOCUMENT
    assert documents.fetches == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"client_id": f"{DOCUMENT}/"},
        {"token_endpoint_auth_method": "client_secret_basic"},
        {"client_secret": "public"},
        {"redirect_uris": []},
        {"redirect_uris": ["javascript:alert(1)"]},
        {"client_name": "x" * 6000},
        {"redirect_uris": "no list"},
    ],
    ids=["other", "secret", "has secret", "none", "script", "large", "wrong"],
)
async def test_a_wrong_document_is_no_client(tmp_path, changes):
    async with sign_ins(tmp_path, fetch=Documents(**changes)) as front, Browser() as browser:
        page = await browser.open(front.question(DOCUMENT))

    assert page.status == 400
