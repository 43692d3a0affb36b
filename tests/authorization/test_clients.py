from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as some

from multitap.authorization.clients import describe_target, is_registered, why_refused


@pytest.mark.parametrize(
    "uri",
    [
        "https://app.example/callback",
        "https://app.example:8443/callback?tenant=1",
        "http://127.0.0.1:3334/oauth/callback",
        "http://localhost/callback",
        "http://[::1]:1/cb",
        "cursor://anysphere.cursor-retrieval/oauth/callback",
        "com.example.app:/oauth",
    ],
)
def test_clients_may_come_back_to_the_usual_places(uri):
    assert why_refused(uri) is None
    assert is_registered(uri, [uri])


@given(some.text(max_size=40), some.sampled_from(["https://app.example/cb", "http://localhost/cb"]))
def test_nothing_but_the_registered_address_matches(uri, registered):
    if is_registered(uri, [registered]):
        assert urlsplit(uri).hostname == urlsplit(registered).hostname
        assert urlsplit(uri).path == urlsplit(registered).path


@given(some.text(alphabet="htps:/@.\\#?%[]127applexmcb \t\n", max_size=40))
def test_a_refused_address_never_matches(uri):
    assert why_refused(uri) is None or not is_registered(uri, [uri])


def test_people_are_told_where_the_answer_goes():
    assert describe_target("https://app.example/cb") == "app.example"
    assert "your own computer" in describe_target("http://localhost:1/cb")
    assert "cursor:" in describe_target("cursor://x/cb")
