"""The grammar of `POST /v1/run` (DESIGN D6): `{"input"}` -> `{"id", "output", "usage"}`. Errors are the native grammar's."""

import msgspec

from batcher.service.wire.decoding import wrong_document


class RunBody(msgspec.Struct, forbid_unknown_fields=True):
    input: str


class RunUsage(msgspec.Struct):
    """What was delivered, in characters: batch mode's plain contract knows no tokens."""

    input_characters: int
    output_characters: int


class RunAnswer(msgspec.Struct):
    id: str
    output: str
    usage: RunUsage


_decoder = msgspec.json.Decoder(RunBody)
_encoder = msgspec.json.Encoder()


def decode_run(body: bytes | bytearray) -> RunBody:
    """Raises InvalidRequest for whatever is not a JSON object with a string `input` and nothing else.

    Text that has no UTF-8 form (lone surrogates, overlong bytes) is refused here, before it can meet a batch.
    """
    try:
        return _decoder.decode(body)
    except msgspec.DecodeError as error:
        raise wrong_document(error, body, example='{"input": "text"}') from None


def encode_run(request_id: str, input_: str, output: str) -> bytes:
    return _encoder.encode(RunAnswer(request_id, output, RunUsage(len(input_), len(output))))
