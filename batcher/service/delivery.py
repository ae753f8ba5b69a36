"""How much of an answer has left: what is billed, of an answer that did not leave whole.

A safety check holds text back, perhaps for good, so what was made is not what left. Of a text backend the bytes that left
count. An engine counts tokens, which have no place within the text of a delta: it counts whole once any of it has left.
"""

from collections import deque


class Delivery:
    """Of one answer."""

    def __init__(self, *, counts_bytes: bool) -> None:
        self._counts_bytes = counts_bytes
        self._held: deque[tuple[int, int]] = deque()
        """(characters that have not left, tokens if none of it has) of each piece, the oldest first. As much text as the safety
        check holds."""
        self.num_tokens = 0
        """Of what has left; bytes where those are counted."""

    def add(self, text: str, num_tokens: int) -> None:
        """More was made, and has not left."""
        if text and not self._counts_bytes:
            self._held.append((len(text), num_tokens))

    def leave(self, text: str) -> None:
        """The beginning of what has not left, leaves."""
        if self._counts_bytes:
            self.num_tokens += len(text.encode())
            return
        num_chars = len(text)
        while num_chars:
            num_held, num_tokens = self._held.popleft()
            self.num_tokens += num_tokens
            if num_held > num_chars:
                self._held.appendleft((num_held - num_chars, 0))
            num_chars -= min(num_held, num_chars)
