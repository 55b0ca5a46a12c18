"""The platform's address, as commands find it, and the answers, as they read them."""

from __future__ import annotations

import httpx
import pytest

from moorage.cli.client import Client, ClientSettings, UnreachableError, WaitedTooLongError, connect, origin_of
from moorage.kernel.errors import (
    BadRequestError,
    ConflictError,
    InvalidRequestError,
    MoorageError,
    NotFoundError,
    UnauthenticatedError,
)

VARIABLES = [
    "MOORAGE_URL",
    "MOORAGE_API_KEY",
    "LANGSMITH_ENDPOINT",
    "LANGSMITH_API_KEY",
    "LANGSMITH_WORKSPACE_ID",
    "LANGSMITH_TENANT_ID",
]


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch):
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


def answering(respond, *, has_key=True) -> Client:
    """Return a client whose platform is this function of a request."""
    http = httpx.Client(base_url="http://moorage.test", transport=httpx.MockTransport(respond))
    return Client(http, has_key=has_key)


@pytest.mark.parametrize(
    ("url", "origin"),
    [
        ("http://127.0.0.1:8080", "http://127.0.0.1:8080"),
        ("https://moorage.example.com/api/v1", "https://moorage.example.com"),
        ("https://moorage.example.com/api/v1/", "https://moorage.example.com"),
        (" https://moorage.example.com/api ", "https://moorage.example.com"),
        ("https://example.com/moorage/api/v1", "https://example.com/moorage"),
    ],
)
def test_the_origin_is_found_in_what_the_sdks_are_given(url, origin):
    assert origin_of(url) == origin


@pytest.mark.parametrize(
    "url", ["moorage.example.com", "ftp://example.com", "", "http://", "http://[::1", "http://:80", "http://x:99999"]
)
def test_what_is_no_address_is_said_to_be_none(url):
    with pytest.raises(BadRequestError, match="MOORAGE_URL"):
        origin_of(url)


def test_our_variables_win_over_those_of_the_sdks(monkeypatch):
    monkeypatch.setenv("LANGSMITH_ENDPOINT", "https://theirs.example.com/api/v1")
    monkeypatch.setenv("LANGSMITH_API_KEY", "theirs")
    monkeypatch.setenv("LANGSMITH_WORKSPACE_ID", "a-workspace")
    assert ClientSettings().url == "https://theirs.example.com/api/v1"
    assert ClientSettings().api_key.get_secret_value() == "theirs"
    monkeypatch.setenv("MOORAGE_URL", "https://ours.example.com")
    monkeypatch.setenv("MOORAGE_API_KEY", "ours")
    settings = ClientSettings()
    assert (settings.url, settings.api_key.get_secret_value()) == ("https://ours.example.com", "ours")
    assert "ours" not in repr(settings.api_key)
    with connect(settings) as client:
        assert client._http.headers["X-Api-Key"] == "ours"
        assert client._http.headers["X-Tenant-Id"] == "a-workspace"


@pytest.mark.parametrize("key", ["lsv2_pt_\N{LATIN SMALL LETTER U WITH DIAERESIS}", "lsv2_pt_1\nlsv2_pt_2", "a\x01b"])
def test_a_key_that_cannot_be_sent_is_refused_without_printing_it(key):
    with pytest.raises(UnauthenticatedError, match="MOORAGE_API_KEY holds characters") as told, connect(keyed(key)):
        pass
    assert key not in str(told.value)


def test_white_space_around_a_key_is_left_out():
    with connect(keyed("\tlsv2_pt_1 \r\n")) as client:
        assert client._http.headers["X-Api-Key"] == "lsv2_pt_1"


def keyed(key: str) -> ClientSettings:
    return ClientSettings.model_validate({"MOORAGE_API_KEY": key})


def test_an_empty_variable_is_as_good_as_none(monkeypatch):
    monkeypatch.setenv("MOORAGE_URL", "")
    monkeypatch.setenv("MOORAGE_API_KEY", "")
    assert ClientSettings().url == "http://127.0.0.1:8080"
    assert ClientSettings().api_key is None


@pytest.mark.parametrize(
    ("status", "body", "kind", "told"),
    [
        (404, {"detail": "Not here"}, NotFoundError, "Not here"),
        (409, {"error": "Taken"}, ConflictError, "Taken"),
        (400, {"title": "Bad", "status": 400}, BadRequestError, "Bad"),
        (
            422,
            {
                "detail": [
                    {"loc": ["body", "name"], "msg": "too long", "type": "x"},
                    {"loc": [], "msg": "Value error, odd"},
                ]
            },
            InvalidRequestError,
            "^name: too long; odd$",
        ),
        (418, {"detail": "Teapot"}, MoorageError, "Teapot .HTTP 418."),
    ],
)
def test_an_error_has_the_class_of_its_status_and_the_words_of_the_server(status, body, kind, told):
    with pytest.raises(kind, match=told) as caught:
        answering(lambda _: httpx.Response(status, json=body)).get("/x")
    assert type(caught.value) is kind


def test_an_error_without_words_names_the_request():
    with pytest.raises(MoorageError, match=r"GET /x failed: Bad Gateway .HTTP 502."):
        answering(lambda _: httpx.Response(502, text="<html>")).get("/x")


def test_without_a_key_a_refusal_says_where_to_put_one():
    def refuse(_):
        return httpx.Response(401, json={"detail": "No API key"})

    with pytest.raises(UnauthenticatedError, match="MOORAGE_API_KEY"):
        answering(refuse, has_key=False).get("/x")
    with pytest.raises(UnauthenticatedError, match="No API key; set MOORAGE_API_KEY to a key from"):
        answering(refuse).get("/x")


def test_nothing_at_the_address_is_said_with_the_next_step():
    with (
        connect(ClientSettings(MOORAGE_URL="http://127.0.0.1:9")) as client,
        pytest.raises(UnreachableError, match="moorage up"),
    ):
        client.get("/x")


def test_an_answer_that_takes_too_long_is_told_apart():
    def wait(request):
        raise httpx.ReadTimeout("late", request=request)

    with pytest.raises(WaitedTooLongError):
        answering(wait).get("/x")


def test_something_else_at_the_address_is_noticed():
    with pytest.raises(MoorageError, match="is it the address of a moorage server"):
        answering(lambda _: httpx.Response(200, text="<html>")).get("/x")


def test_an_empty_answer_is_none_and_a_query_leaves_out_what_is_none():
    asked = []

    def respond(request):
        asked.append(str(request.url.query, "ascii"))
        return httpx.Response(204)

    assert answering(respond).delete("/x", a=None, b=[1, 2], c=True) is None
    assert asked == ["b=1&b=2&c=true"]


def test_pages_are_read_until_one_is_short():
    rows = list(range(250))

    def respond(request):
        offset, limit = int(request.url.params["offset"]), int(request.url.params["limit"])
        return httpx.Response(200, json=rows[offset : offset + limit])

    assert list(answering(respond).pages("/x")) == rows
