"""What is said where there is no route: what to mend, if a client library has another vendor's kind of base_url."""

import pytest

from tests.service.errors import assert_error
from tests.service.serving import quick, serving
from tests.service.wire_client import request

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("quiet")]


@pytest.mark.parametrize(
    ("path", "hint"),
    [
        ("/chat/completions", "the base_url of OpenAI's client ends in /v1"),
        ("/models", "the base_url of OpenAI's client ends in /v1"),
        ("/v1/v1/messages", "the base_url of Anthropic's client has no /v1, that of OpenAI's ends in one /v1"),
        ("/v1/nothing", ""),
        ("/messages", "this is /v1/messages here, and the base_url of Anthropic's client has no /v1"),
    ],
)
async def test_a_wrong_base_url_is_told_so(path: str, hint: str) -> None:
    async with serving(quick()) as server:
        message = assert_error(await server.ask(request("POST", path)), 404, "not_found_error")
    assert message == f"there is no {path}" + (f": {hint}" if hint else "")
