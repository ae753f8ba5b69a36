"""The floor that a Python service stands on: Starlette under uvicorn, answering a constant.

It reads nothing, decides nothing and waits for nothing. What batcher costs beyond it is the price of what it does.
"""

import argparse
import socket
import sys

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

_ANSWER = b'{"id":"req_0","output":"constant","usage":{"input_tokens":0,"output_tokens":0}}'


async def answer(_: Request) -> Response:
    return Response(_ANSWER, media_type="application/json")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=0)
    port = parser.parse_args().port
    app = Starlette(routes=[Route("/v1/run", answer, methods=["POST"]), Route("/ready", answer)])
    listener = socket.create_server(("127.0.0.1", port), backlog=2048)
    entry = {"event": "listening", "url": f"http://127.0.0.1:{listener.getsockname()[1]}"}
    print(msgspec.json.encode(entry).decode(), file=sys.stderr, flush=True)
    uvicorn.Server(uvicorn.Config(app, access_log=False, log_level="warning")).run(sockets=[listener])


if __name__ == "__main__":
    main()
