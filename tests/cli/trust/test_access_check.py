"""What a client will see of a shared gateway, and what to do about it."""

import pytest

from multitap.cli.problems.checks import CheckResult
from multitap.cli.trust.access_check import ClientWalk
from multitap.config import HttpServer, Settings
from multitap.config.access import AccessRule, AccessSettings, OidcIssuer, SignInSettings
from multitap.config.models import Serve, TokenExchange
from tests.authorization.organisation import CLIENT, SECRET
from tests.authorization.test_clients_sign_in import gateway, organisation_at_work

pytestmark = pytest.mark.anyio

RULES = (AccessRule(name="everybody"),)


def access(issuer, secret=SECRET, **more):
    provider = OidcIssuer(issuer=issuer, client_id=CLIENT, client_secret=secret)
    return AccessSettings(
        oidc={"org": provider}, rules=RULES, **{"sign_in": SignInSettings(provider="org"), **more}
    )


async def walk(public, settings, **servers):
    everything = Settings(serve=Serve(public_url=public), servers=servers)
    checks = await ClientWalk(everything, settings).run()
    return [(check.phase, check.verdict, check.text, check.hint) for check in checks]


def warnings(checks):
    return {text: hint for _, verdict, text, hint in checks if verdict is CheckResult.WARN}


def failures(checks):
    return {step: hint for step, verdict, _, hint in checks if verdict is CheckResult.FAILED}


async def test_a_gateway_that_is_in_order_passes_every_step(tmp_path):
    async with (
        organisation_at_work() as organisation,
        gateway(tmp_path, organisation) as (public, _),
    ):
        checks = await walk(public, access(organisation.origin))
        wrong = await walk(public, access(organisation.origin, secret="another"))

    assert failures(checks) == {}
    steps = [step for step, *_ in checks]
    assert [*dict.fromkeys(steps)] == [
        "settings", "reach", "challenge", "resource", "server", "register", "org",
    ]  # fmt: skip
    assert "client_secret" in failures(wrong)["org"]


@pytest.mark.parametrize(
    ("public", "advice"),
    [(None, "public_url"), ("http://tap.example", "use https")],
    ids=["no url", "no tls"],
)
async def test_wrong_settings_are_named_with_the_fix(public, advice):
    async with organisation_at_work() as organisation:
        checks = await walk(public, access(organisation.origin))

    assert advice in failures(checks)["settings"]


async def test_without_a_provider_there_is_nothing_to_check():
    checks = await walk("https://tap.example", AccessSettings())

    assert "[access.oidc.NAME]" in failures(checks)["settings"]


async def test_a_gateway_that_does_not_run_is_named_with_the_fix():
    async with organisation_at_work() as organisation:
        checks = await walk("http://127.0.0.1:1", access(organisation.origin))

    assert "multitap serve --http" in failures(checks)["reach"]


async def test_a_provider_that_calls_itself_differently_is_named_with_the_fix():
    async with organisation_at_work() as organisation:
        checks = await walk("http://127.0.0.1:1", access(f"{organisation.origin}/"))

    assert "issuer" in failures(checks)["org"]


def exchanging(provider="org"):
    return HttpServer(
        url="https://files.example/mcp",
        credentials="exchange",
        exchange=TokenExchange(provider=provider, audience="files"),
    )


async def test_a_provider_that_exchanges_nothing_is_named_with_the_fix():
    async with organisation_at_work() as organisation:
        settings = access(organisation.origin)
        unknown = await walk("http://127.0.0.1:1", settings, files=exchanging())
        organisation.described["grant_types_supported"] = ["authorization_code"]
        without = await walk("http://127.0.0.1:1", settings, files=exchanging())
        other = await walk("http://127.0.0.1:1", settings, files=exchanging("another"))

    assert warnings(unknown) == {}
    (text,) = [text for text in warnings(without) if "files" in text]
    assert "exchange tokens" in warnings(without)[text]
    assert "[access.oidc.another]" in warnings(other)["files names a provider that is not known"]


async def test_a_provider_without_refresh_tokens_is_named_with_the_fix():
    async with organisation_at_work() as organisation:
        grants = {"grant_types_supported": ["authorization_code"], "scopes_supported": ["openid"]}
        organisation.described.update(grants)
        checks = await walk("http://127.0.0.1:1", access(organisation.origin))

    hint = warnings(checks)["people have to sign in again every 15 minutes"]
    assert "offline_access" in hint


async def test_a_provider_whose_pages_need_a_cookie_passes():
    async with organisation_at_work() as organisation:
        organisation.has_pages = True
        checks = await walk("http://127.0.0.1:1", access(organisation.origin))

    assert failures(checks).keys() == {"reach"}


async def test_both_addresses_are_tried_to_which_people_are_sent_back():
    personal = HttpServer(url="https://notes.example/mcp", credentials="per-user")
    async with organisation_at_work() as organisation:
        checks = await walk("http://127.0.0.1:1", access(organisation.origin), notes=personal)
        tried = [page["redirect_uri"] for page in organisation.pages]

    assert failures(checks).keys() == {"reach"}
    assert tried == [
        "http://127.0.0.1:1/authorize/callback", "http://127.0.0.1:1/accounts/signed-in"
    ]  # fmt: skip
