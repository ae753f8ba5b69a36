"""A few hundred of the cases of `python -m benchmarks.conformance`, and that a service which does not conform is found out."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from batcher.config import Mode
from batcher.service.openapi import openapi_document
from benchmarks.conformance import FLAGS, ask
from loadtest.scenarios.server import serving

SEED = 7


@pytest.mark.timeout(120)
@pytest.mark.parametrize("mode", list(Mode))
def test_the_service_answers_as_its_document_says(mode: Mode) -> None:
    with serving(["serve", "--port", "0", "--request-log", "off", *FLAGS[mode]]) as server:
        asked = ask(server.url, num_cases=200, seed=SEED, has_coverage=False)
    assert not asked.findings, "\n".join(f"{found.operation}: {found.title}\n{found.told}" for found in asked.findings)
    assert asked.num_cases >= 150
    for operation, statuses in asked.statuses.items():
        assert statuses[200] or not statuses, operation


class _Broken(BaseHTTPRequestHandler):
    """Has the document, and answers everything else with an error that is none of ours."""

    def do_GET(self) -> None:
        document = openapi_document("batch", ["simulated"])
        is_document = self.path == "/openapi.json"
        self._reply(200 if is_document else 418, document if is_document else b"{}")

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", 0)))
        self._reply(500, b"{}")

    def _reply(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def broken_server() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Broken)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_service_that_does_not_conform_is_found_out() -> None:
    with broken_server() as url:
        asked = ask(url, num_cases=8, seed=SEED, has_coverage=False)
    found = {(finding.operation, finding.check) for finding in asked.findings}
    assert ("POST /v1/run", "not_a_server_error") in found
    assert ("POST /v1/run", "response_schema_conformance") in found
    assert ("GET /v1/models", "status_code_conformance") in found
