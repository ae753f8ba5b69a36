"""Who may ask for what: without a key only the public pages, and nothing by a path that looks like another (B77, B78)."""

import re
from typing import Any
from urllib.parse import unquote

import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.types import Message

from batcher.config import Switch
from batcher.service.guard import Guard
from tests.service.errors import assert_error
from tests.service.serving import Serving, quick, serving
from tests.service.wire_client import KEY, OPERATOR, Client, connected, request, run

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("quiet")]


# Who may ask

NO_KEYS: dict[str, dict[str, str]] = {
    "none": {},
    "empty": {"x-api-key": ""},
    "unknown": {"x-api-key": "sk-live"},
    "prefix": {"x-api-key": "dev-"},
    "suffix": {"x-api-key": "dev-paid "[:-1] + "x"},
    "case": {"x-api-key": "DEV-PAID"},
    "other tier": {"x-api-key": "dev-gold"},
    "empty name": {"x-api-key": "dev-paid-"},
    "bad name": {"x-api-key": "dev-paid-a b"},
    "latin-1": {"x-api-key": "dev-paid-\u00fc"},
    "long": {"x-api-key": "dev-paid-" + "a" * 10_000},
    "basic": {"authorization": "Basic ZGV2LXBhaWQ6"},
    "with nothing": {"authorization": "Bearer"},
}


@pytest.mark.parametrize("headers", NO_KEYS.values(), ids=NO_KEYS)
async def test_without_a_key_nothing_is_served(path: str, headers: dict[str, str]) -> None:
    async with serving(quick()) as server, connected(server.port) as client:
        response = await client.ask(request(path=path, body=b'{"input": "hello"}', headers=headers))
        assert_error(response, 401, "authentication_error")
        assert (await client.ask(run("next", path=path))).status == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"x-api-key": "dev-free"},
        {"X-API-Key": "dev-paid-somebody"},
        {"authorization": "Bearer dev-paid"},
        {"authorization": "bearer dev-paid"},
        {"authorization": "Basic ZGV2LXBhaWQ6", "x-api-key": "dev-paid"},
    ],
    ids=lambda headers: " ".join(headers.values()),
)
async def test_each_way_to_give_a_key(path: str, headers: dict[str, str]) -> None:
    async with serving(quick()) as server:
        assert (await server.ask(request(path=path, body=b'{"input": "hello"}', headers=headers))).status == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"content-length": "20000"},
        {"content-length": "100000000"},
        {"transfer-encoding": "chunked"},
        {"content-encoding": "gzip", "content-length": "20000"},
        {"expect": "100-continue", "content-length": "20000"},
    ],
    ids=lambda headers: " ".join(headers),
)
async def test_who_has_no_key_learns_nothing_else_and_at_once(path: str, headers: dict[str, str]) -> None:
    """B77: 401 before the body, of which nothing is sent here. (A small one would be waited for, to keep the connection.)"""
    async with serving(quick()) as server:
        response = await server.ask(request(path=path, headers=headers))
    assert_error(response, 401, "authentication_error")


# Every route there is, and those there are not (B78)

PUBLIC = {"/health", "/ready", "/openapi.json"}
"""Paths whose GET needs no key. A route that is added is either here, or it is closed."""
OPERATORS = ("/metrics", "/load", "/admin")
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
LOOK_ALIKES = (
    *(
        "/",
        "/nope",
        "//v1/messages",
        "/V1/messages",
        "/v1/messages/",
        "/v1/./messages",
        "/v1/%6dessages",
        "/v1/messages?key=dev-paid",
    ),
    *("//health", "/Health", "/health/", "/health/../v1/run", "/health%0a", "/health%00", "/ready;/v1/run", "/%2fhealth", "*"),
    *(
        "//metrics",
        "/metrics%0a",
        "/metrics/",
        "/METRICS",
        "/load%0A",
        "/load?x",
        "/admin",
        "/admin/keys",
        "http://test/metrics",
    ),
)


def routes_of(server: Serving) -> list[str]:
    """All of them, with something in the place of each parameter."""
    paths = [re.sub(r"\{[^}]*\}", "x", route.path) for route in server.app.routes if isinstance(route, Route)]
    assert len(paths) == len(server.app.routes)
    return paths


async def status_of(client: Client, method: str, path: str, headers: dict[str, str]) -> int:
    client.write(request(method, path, headers=headers))
    return (await client.read(is_head=method == "HEAD")).status


@pytest.mark.parametrize(
    "headers", [{}, {"x-api-key": "wrong"}, {"authorization": "Bearer dev-operato"}], ids=["no", "bad", "near"]
)
async def test_all_but_a_short_list_needs_a_key(headers: dict[str, str]) -> None:
    async with serving(quick()) as server, connected(server.port) as client:
        for path in (*routes_of(server), *LOOK_ALIKES):
            for method in METHODS:
                is_open = path in PUBLIC and method in ("GET", "HEAD")
                status = await status_of(client, method, path, headers)
                assert (status == 401) is not is_open, (method, path, status)


async def test_with_a_key_what_is_not_there_is_not_found_and_the_operators_is_forbidden() -> None:
    async with serving(quick()) as server, connected(server.port) as client:
        routes = routes_of(server)
        for path in (*routes, *LOOK_ALIKES):
            bare = unquote(path.partition("?")[0].removeprefix("http://test"))
            for method in METHODS:
                status = await status_of(client, method, path, KEY)
                if bare.startswith(OPERATORS):
                    assert status == 403, (method, path, status)
                elif bare.strip() not in routes:
                    assert status == 404, (method, path, status)
                else:
                    assert status in (200, 400, 404, 405), (method, path, status)
                assert await status_of(client, method, path, OPERATOR) in (200, 400, 404, 405), (method, path)


async def test_the_operators_pages_are_the_operators() -> None:
    async with serving(quick()) as server:
        for path in ("/metrics", "/load"):
            message = assert_error(await server.ask(request("GET", path, headers=KEY)), 403, "permission_error")
            assert "operator" in message
            assert (await server.ask(request("GET", path, headers=OPERATOR))).status == 200
        # It is a key like others for the rest.
        assert (await server.ask(run("hello", x_api_key="dev-operator"))).status == 200


async def test_opened_pages_are_open_and_nothing_beside_them() -> None:
    async with serving(quick(open_metrics=Switch.ON)) as server, connected(server.port) as client:
        for headers in ({}, KEY, OPERATOR, {"x-api-key": "wrong"}):
            for path in ("/metrics", "/load"):
                assert await status_of(client, "GET", path, headers) == 200
        for method, path in (("POST", "/metrics"), ("GET", "/metrics%0a"), ("GET", "/load/"), ("GET", "/admin")):
            assert await status_of(client, method, path, {}) == 401
            assert await status_of(client, method, path, KEY) == 403


async def test_a_route_that_is_added_is_closed_by_itself() -> None:
    async def secret(request: Request) -> PlainTextResponse:
        return PlainTextResponse("secret")

    async with serving(quick()) as server:
        server.app.router.routes.append(Route("/v1/new", secret))
        assert_error(await server.ask(request("GET", "/v1/new", headers={})), 401, "authentication_error")
        assert (await server.ask(request("GET", "/v1/new"))).body == b"secret"


async def test_a_websocket_is_closed_before_anybody_sees_it() -> None:
    """No route takes one; were one added, the layer would not know how to ask for its key."""
    told: list[Message] = []

    async def never(*_: Any) -> Any:
        raise AssertionError("it came through")

    async def send(message: Message) -> None:
        told.append(message)

    guard = Guard(never, door=never, refuse=never, has_open_metrics=True)  # type: ignore[arg-type]
    await guard({"type": "websocket", "path": "/health", "headers": []}, never, send)
    assert told == [{"type": "websocket.close"}]


# Callers' texts come back nowhere that they could do harm (B76, B91)

WILD = (
    *(
        "a\r\nx-evil: 1",
        "%0d%0ax-evil:%201",
        "b\nx-evil: 1",
        "\u00fc\u00df",
        "\U0001f642",
        "a b",
        "",
        "\x7f",
        "x" * 60_000,
        "x" * 100_000,
    ),
    *('"}, {"', "../../etc", "\x00", "{{7*7}}", "<script>"),
)


@pytest.mark.parametrize("name", ["x-api-key", "x-request-id", "authorization", "idempotency-key", "anthropic-version"])
async def test_a_wild_header_is_no_header_and_no_error_of_ours(name: str) -> None:
    """Some of these are no HTTP and end their connection with a 400; none makes a header, a 500 or a line of its own."""
    async with serving(quick()) as server:
        for text in WILD:
            for path in ("/v1/run", "/v1/messages", "/nope", "/metrics"):
                head = f"POST {path} HTTP/1.1\r\nhost: test\r\n"
                key = "" if name == "x-api-key" else "x-api-key: dev-paid\r\n"
                data = (head + key).encode() + f"{name}: {text}\r\ncontent-length: 2\r\n\r\n{{}}".encode()
                response = await server.ask(data)
                assert 400 <= response.status < 500, (text, path)
                assert "x-evil" not in response.headers
                assert re.fullmatch(r"[A-Za-z0-9._-]{1,128}", response.headers["x-request-id"])


async def test_a_wild_path_is_told_in_json_and_bounded() -> None:
    async with serving(quick()) as server:
        for text in ("%0d%0ax-evil:%201", "%F0%9F%99%82", "%fc", "%22%7d", "x" * 60_000, "%00"):
            response = await server.ask(request("GET", f"/{text}"))
            assert len(assert_error(response, 404, "not_found_error")) < 300
            assert "x-evil" not in response.headers


# Where there is nothing, and where one may not


@pytest.mark.parametrize(
    "path", ["/", "/v1", "/v1/run/", "//v1/run", "/V1/run", "/v1//run", "/v1/run/x", "/health/", "/nope?x=1"]
)
@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_an_unknown_path_is_not_found(method: str, path: str) -> None:
    async with serving(quick()) as server:
        response = await server.ask(request(method, path))
    message = assert_error(response, 404, "not_found_error")
    assert path.partition("?")[0] in message
    assert "location" not in response.headers


@pytest.mark.parametrize("host", ["[", "evil.example", "a b", "\u00fc"])
async def test_a_host_header_decides_nothing_and_comes_back_nowhere(host: str) -> None:
    async with serving(quick()) as server:
        data = request("GET", "/v1/run/").replace(b"host: test", f"host: {host}".encode("latin-1"))
        response = await server.ask(data)
    assert_error(response, 404, "not_found_error")
    assert not any("evil" in value for value in response.headers.values())


async def test_a_long_path_is_not_repeated() -> None:
    async with serving(quick()) as server:
        assert_error(await server.ask(request("GET", "/" + "x" * 20_000)), 404, "not_found_error")


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("GET", "/v1/run", {"POST"}),
        ("OPTIONS", "/v1/run", {"POST"}),
        ("PUT", "/v1/run?x", {"POST"}),
        ("POST", "/load", {"GET", "HEAD"}),
        ("POST", "/health", {"GET", "HEAD"}),
    ],
)
async def test_another_method_is_not_allowed(method: str, path: str, allow: set[str]) -> None:
    async with serving(quick()) as server:
        response = await server.ask(request(method, path, headers=OPERATOR))
    assert_error(response, 405, "invalid_request_error")
    assert set(response.headers["allow"].split(", ")) == allow


async def test_head_has_the_headers_alone() -> None:
    async with serving(quick()) as server, connected(server.port) as client:
        for path, status in (("/health", 200), ("/v1/run", 405), ("/nope", 404)):
            client.write(request("HEAD", path))
            response = await client.read(is_head=True)
            assert response.status == status
            assert int(response.headers["content-length"]) > 0
        assert (await client.ask(run("next"))).status == 200
