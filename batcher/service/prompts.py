"""Conversations to prompts, with the length checked, and never so that everybody else waits for it.

A long prompt takes tens of milliseconds to tokenize, and on the event loop every other caller would wait that long: health
checks, tokens of streams, refusals. So only short ones are tokenized there, others on threads (tokenizers leave the interpreter
lock to others meanwhile), and no more of them at once than can be answered soon. A process pool was refused: copying the ids
back costs more than it saves.
"""

import asyncio
from concurrent.futures import ThreadPoolExecutor

from backends.base import Tokenizer
from batcher.errors import Overloaded, PromptTooLong
from batcher.service.conversation import Conversation, default_max_tokens

_INLINE_BYTES = 2_048
"""About a millisecond of tokenizing: less than handing it to a thread and back may take on a busy machine."""

_TURN_BYTES = 16
"""What each turn costs a chat template beside its content, as bytes to tokenize: about 10 microseconds."""

_NUM_THREADS = 2
_MAX_PENDING_BYTES = 4 * 2**20
"""Of the prompts that threads work at or that wait for one: two seconds' work (a thread does about a megabyte a second)."""


class Prompter:
    """Lives on one event loop."""

    def __init__(self, tokenizer: Tokenizer, *, context_len: int) -> None:
        self._tokenizer = tokenizer
        self.context_len = context_len
        # No text of more bytes has a token for each: what is longer needs no tokenizing to be refused.
        self._max_token_bytes = max(1, max(len(tokenizer.token_bytes(token)) for token in range(tokenizer.vocab_size)))
        self._threads = ThreadPoolExecutor(_NUM_THREADS, thread_name_prefix="tokenizer")
        self.num_pending_bytes = 0
        """Of the conversations that threads work at or that wait for one, and that nobody has called off; with their turns'."""

    async def prepare(self, conversation: Conversation, *, room: float) -> tuple[list[int], int]:
        """The prompt's ids, and the most tokens that the answer may have; `room` is as in `default_max_tokens`.

        Raises PromptTooLong if the two do not fit the context, Overloaded at once if more prompts wait for a thread than may.
        Cancelled, it gives its place back.
        """
        content_bytes = conversation.num_bytes
        num_bytes = content_bytes + _TURN_BYTES * len(conversation.messages)
        if num_bytes <= _INLINE_BYTES:  # Cheap enough to be refused with its exact length.
            prompt = self._tokenizer.render(conversation.messages)
        else:
            self._check_length(-(-content_bytes // self._max_token_bytes), conversation.max_tokens, is_exact=False)
            prompt = await self._encode_on_thread(conversation, num_bytes)
        self._check_length(len(prompt), conversation.max_tokens, is_exact=True)
        if conversation.max_tokens is None:
            return prompt, min(default_max_tokens(len(prompt), room), self.context_len - len(prompt))
        return prompt, conversation.max_tokens

    async def count(self, conversation: Conversation) -> int:
        """Tokens of the prompt. Raises Overloaded as `prepare` does."""
        num_bytes = conversation.num_bytes + _TURN_BYTES * len(conversation.messages)
        if num_bytes <= _INLINE_BYTES:
            return len(self._tokenizer.render(conversation.messages))
        return len(await self._encode_on_thread(conversation, num_bytes))

    async def _encode_on_thread(self, conversation: Conversation, num_bytes: int) -> list[int]:
        if self.num_pending_bytes and self.num_pending_bytes + num_bytes > _MAX_PENDING_BYTES:
            raise Overloaded("too many long prompts at once", retry_after_s=1)
        self.num_pending_bytes += num_bytes
        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._threads, self._tokenizer.render, conversation.messages)
        finally:
            self.num_pending_bytes -= num_bytes

    def _check_length(self, num_prompt_tokens: int, max_tokens: int | None, *, is_exact: bool) -> None:
        """Nobody is told of a max_tokens that was not asked for; then there must be room for one token."""
        if num_prompt_tokens + (max_tokens or 1) <= self.context_len:
            return
        # Callers' libraries know either by these words, and shorten what is too long.
        prompt = f"{'' if is_exact else 'at least '}{num_prompt_tokens}"
        if max_tokens is None or num_prompt_tokens >= self.context_len:
            context = f"the model's context of {self.context_len} tokens"
            raise PromptTooLong(
                f"prompt is too long: {prompt} tokens leave no room for an answer in {context}", param="messages"
            )
        raise PromptTooLong(
            f"input length and `max_tokens` exceed context limit: {prompt} + {max_tokens} > {self.context_len}",
            param="max_tokens",
        )

    def close(self) -> None:
        """Forgets what no thread has begun."""
        self._threads.shutdown(wait=False, cancel_futures=True)
