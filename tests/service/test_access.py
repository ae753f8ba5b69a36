"""Who may ask for what: without a key only the public pages, and nothing by a path that looks like another (B77, B78)."""

import pytest

from tests.service.errors import assert_error
from tests.service.serving import quick, serving
from tests.service.wire_client import connected, request, run

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


# Where there is nothing, and where one may not (B78)


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
    ],
)
async def test_another_method_is_not_allowed(method: str, path: str, allow: set[str]) -> None:
    async with serving(quick()) as server:
        response = await server.ask(request(method, path))
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
