"""Decoder-only transformers in torch, with paged KV: a StepBackend of the real kind."""
