"""An organisation: its provider, a sign-in front of ours, a client, and a person with a browser."""

import base64
import hashlib
import html
import json
import re
import secrets
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from urllib.parse import parse_qs, parse_qsl, urlencode, urlsplit

import aiohttp
import anyio

from multitap.authorization.clients import Clients
from multitap.authorization.endpoints import AuthorizationEndpoints
from multitap.authorization.grants import FileRecords, Grants
from multitap.authorization.server import AuthorizationServer
from multitap.config.access import OidcIssuer, SignInSettings
from multitap.http.server.server import open_http_server, open_listener, url_of
from multitap.identity.issuer import Issuer
from multitap.identity.sign_in import ProviderSignIn
from multitap.trust.single_use import Seal
from tests.identity.tiny_issuer import METADATA, TinyIssuer
from tests.wire import http_zoo as zoo

CLIENT, SECRET = "multitap-at-org", "known to both"
REDIRECT = "http://127.0.0.1:7777/callback"


@dataclass
class Organisation(TinyIssuer):
    """A provider at which everybody is signed in as `user` already."""

    user: str = "alice"
    person: dict = field(default_factory=lambda: {"groups": ["dev"], "email": "a@example.com"})
    names_itself: bool = True
    gives_refresh: bool = True
    iss: str | None = None
    """What it says in `iss` of an answer, if not its own name."""
    nonce: str | None = None
    """What it writes into ID tokens, if not what it was asked to."""
    forms: list = field(default_factory=list)
    pages: list = field(default_factory=list)
    removed: bool = False
    answers_about_people: bool = True
    """Whether it can be asked about them, besides giving tokens."""
    renews_id: bool = True
    has_pages: bool = False
    """Whether it has pages of its own, for browsers with its cookie."""
    described: dict = field(default_factory=dict)
    """What its metadata say otherwise."""
    error: str | None = None
    """What its token endpoint answers."""
    denies: str | None = None
    """The error with which it sends people back."""
    pause: anyio.Event | None = None
    """What a renewal waits for."""
    reached: anyio.Event = field(default_factory=anyio.Event)
    codes: dict = field(default_factory=dict)
    refresh: dict = field(default_factory=dict)
    issued: set = field(default_factory=set)
    """Its access tokens."""

    async def answer(self, request, caller):
        path, _, query = request.path.partition("?")
        if self.is_down or path not in {METADATA, "/authorize", "/token", "/userinfo"}:
            await super().answer(request, caller)
        elif path == METADATA:
            await caller.respond(
                {
                    "issuer": self.origin,
                    "authorization_endpoint": f"{self.origin}/authorize",
                    "token_endpoint": f"{self.origin}/token",
                    "userinfo_endpoint": f"{self.origin}/userinfo",
                    "jwks_uri": f"{self.origin}/jwks",
                    "scopes_supported": ["openid", "offline_access"],
                    "token_endpoint_auth_methods_supported": ["client_secret_post"],
                    "code_challenge_methods_supported": ["S256"],
                    "authorization_response_iss_parameter_supported": self.names_itself,
                    **self.described,
                }
            )
        elif path == "/authorize":
            asked = dict(parse_qsl(query))
            self.pages.append(asked)
            if self.has_pages:
                await caller.respond(b"", status=303, location="/interaction")
                return
            code = secrets.token_hex(8)
            self.codes[code] = asked
            outcome = {"error": self.denies} if self.denies else {"code": code}
            answer = {**outcome, "state": asked["state"]}
            if self.names_itself:
                answer["iss"] = self.iss or self.origin
            await caller.respond(
                b"", status=302, location=f"{asked['redirect_uri']}?{urlencode(answer)}"
            )
        elif path == "/userinfo":
            is_known = not self.removed
            if not self.answers_about_people:
                await caller.respond({}, status=500)
                return
            person = {"sub": self.user, **self.person} if is_known else {}
            await caller.respond(person, status=200 if is_known else 401)
        else:
            await self._token(request, caller)

    async def _token(self, request, caller):
        form = {name: values[0] for name, values in parse_qs(request.body.decode()).items()}
        self.forms.append(form)
        asked = self.codes.pop(form.get("code"), None)
        if self.error is not None:
            await caller.respond({"error": self.error}, status=400)
            return
        if form.get("client_secret") != SECRET:
            await caller.respond({"error": "invalid_client"}, status=401)
            return
        if form["grant_type"].endswith("token-exchange"):
            # only what it issued itself: nobody else's token is worth anything here
            assert form["subject_token"] in self.issued
            token = f"exchanged-of-{self.user}"
            kind = {"issued_token_type": form["requested_token_type"], "token_type": "Bearer"}
            await caller.respond({"access_token": token, "expires_in": 300, **kind})
            return
        if form["grant_type"] == "authorization_code" and asked is not None:
            assert challenge(form["code_verifier"]) == asked["code_challenge"]
            nonce = self.nonce or asked["nonce"]
        elif form["grant_type"] == "refresh_token" and not self.removed:
            nonce = None
            if self.refresh.pop(form["refresh_token"], None) is None:
                await caller.respond({"error": "invalid_grant"}, status=400)
                return
            self.reached.set()
            if self.pause is not None:
                await self.pause.wait()
        else:
            await caller.respond({"error": "invalid_grant"}, status=400)
            return
        id_token = self.token(
            header={"typ": "JWT"}, aud=CLIENT, sub=self.user, nonce=nonce, groups=None, scope=None
        )
        answer = {"access_token": secrets.token_hex(8), "token_type": "Bearer", "expires_in": 300}
        self.issued.add(answer["access_token"])
        if self.gives_refresh:
            answer["refresh_token"] = secrets.token_hex(8)
            self.refresh[answer["refresh_token"]] = True
        if nonce is not None or self.renews_id:
            answer["id_token"] = id_token
        await caller.respond(answer)


def challenge(verifier):
    digest = hashlib.sha256(verifier.encode()).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


class Front:
    """Only the pages of a sign-in, without a gateway; see `HttpApp`.

    Of several replicas, each answers in turn.
    """

    def __init__(self):
        self.replicas = []

    def admit(self, head):
        self.replicas.append(self.replicas.pop(0))
        head.handler = self.replicas[0].route(head)

    def handle(self, http_request):
        if http_request.head.handler is None:
            http_request.say(404)
            return None
        return http_request.head.handler(http_request)


class Page(str):  # noqa: SLOT000 - it has attributes
    """An HTML page, and how it came."""

    status: int
    headers: dict

    @property
    def form(self):
        pairs = re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)"', self)
        return {name: html.unescape(value) for name, value in pairs}

    @property
    def onward(self):
        found = re.search(r'content="0;url=([^"]+)"', self)
        return html.unescape(found[1]) if found else None


class Browser:
    """A person's browser: it keeps cookies, and stops before it leaves for a client."""

    def __init__(self):
        self._session = aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True))

    async def __aenter__(self):
        return self

    async def __aexit__(self, *exc):
        await self._session.close()

    async def open(self, url, **options):
        async with self._session.get(url, allow_redirects=False, **options) as response:
            return await _page(response)

    async def send(self, url, form, **options):
        async with self._session.post(url, data=form, allow_redirects=False, **options) as response:
            return await _page(response)


async def _page(response):
    page = Page(await response.text())
    page.status, page.headers = response.status, response.headers
    return page


@dataclass
class SignIns:
    """Everything together; `url` is the public URL of the gateway."""

    url: str
    organisation: Organisation
    server: AuthorizationServer
    grants: Grants
    verifier: str = field(default_factory=lambda: secrets.token_urlsafe(48))

    async def post(self, path, form=None, *, body=None, headers=None):
        """The answer to a client: status and JSON."""
        async with (
            aiohttp.ClientSession() as session,
            session.post(self.url + path, data=form, json=body, headers=headers) as response,
        ):
            text = await response.text()
            return response.status, json.loads(text) if text else {}

    async def register(self, *redirects, **more):
        body = {
            "client_name": "Some client",
            "redirect_uris": [*(redirects or [REDIRECT])],
            "token_endpoint_auth_method": "none",
            **more,
        }
        status, answer = await self.post("/register", body=body)
        assert status == 201, answer
        return answer["client_id"]

    def question(self, client_id, **changes):
        """The address to which a client sends a person."""
        asked = {
            "response_type": "code",
            "client_id": client_id,
            "redirect_uri": REDIRECT,
            "state": "of the client",
            "code_challenge": challenge(self.verifier),
            "code_challenge_method": "S256",
            "resource": f"{self.url}/mcp",
            **changes,
        }
        present = {name: value for name, value in asked.items() if value is not None}
        return f"{self.url}/authorize?{urlencode(present)}"

    async def agree(self, browser, question, decision="allow"):
        """The page after the person has agreed."""
        page = await browser.open(question)
        assert page.status == 200, page
        return await browser.send(
            f"{self.url}/authorize/consent", {**page.form, "decision": decision}
        )

    async def sign_in(self, browser, question):
        """Where the person ends: the client's address, with a code."""
        page = await self.agree(browser, question)
        at_provider = await browser.open(page.onward)
        return await browser.open(at_provider.headers["location"])

    async def code(self, client_id, **changes):
        async with Browser() as browser:
            back = await self.sign_in(browser, self.question(client_id, **changes))
        assert back.status == 302, back
        return answer_in(back)["code"]

    def code_form(self, client_id, code, **changes):
        return {
            "grant_type": "authorization_code",
            "client_id": client_id,
            "code": code,
            "redirect_uri": REDIRECT,
            "code_verifier": self.verifier,
            **changes,
        }

    async def tokens(self, client_id):
        status, answer = await self.post(
            "/token", self.code_form(client_id, await self.code(client_id))
        )
        assert status == 200, answer
        return answer

    async def refresh(self, client_id, token, **more):
        form = {"grant_type": "refresh_token", "client_id": client_id, "refresh_token": token}
        return await self.post("/token", {**form, **more})


def answer_in(page):
    """What a client reads in the address to which the browser is sent."""
    pairs = parse_qsl(urlsplit(page.headers["location"]).query)
    assert len(dict(pairs)) == len(pairs)
    return dict(pairs)


@asynccontextmanager
async def sign_ins(folder, *, fetch=None, organisation=None, refusal=None, shared=(), **settings):
    """Sign-ins at one place; `shared` are the records of its replicas, if it has several."""
    organisation = organisation or Organisation()
    front = Front()
    with open_listener("127.0.0.1", 0) as listener:
        url = url_of(listener, is_secure=False)
        async with (
            zoo.serve(organisation.answer) as provider,
            open_http_server(front, listener),
        ):
            organisation.origin = provider.url.removesuffix("/mcp")
            chosen = SignInSettings(provider="org", **settings)
            corp = OidcIssuer(issuer=organisation.origin, client_id=CLIENT, client_secret=SECRET)
            seal = Seal(b"k" * 32)
            for records in shared or [FileRecords(folder)]:
                grants = Grants(records, lambda: [seal], chosen.refresh_life)
                server = AuthorizationServer(
                    chosen,
                    url,
                    ["tools"],
                    clients=Clients(chosen, grants, fetch),
                    grants=grants,
                    provider=ProviderSignIn(Issuer("org", corp), chosen.scopes),
                    refusal=refusal or (lambda _holder: None),
                )
                front.replicas.append(AuthorizationEndpoints(server))
            yield SignIns(url, organisation, server, grants)
