"""Texts to tokenize: those that have tripped tokenizers before, and any others."""

from hypothesis import settings
from hypothesis import strategies as st

TEXTS = (
    "",
    " ",
    "\n",
    "hello there",
    "  hello",
    "hello  ",
    "\n\nhello the user\n\n",
    "x  12",
    "in 2024 there were 1234567 of 10,000",
    "tabs\tand\r\nlines\r",
    "日本語と한국어 и кириллица",
    "👩‍👩‍👧‍👦 flags 🇪🇺",
    "don't we'll I'm",
    "\x00\x07\x1b[0m\ufeff",
    "e\u0301 ﬁ ½ Ⅻ ١٢٣",
    "def f(x):\n    return x ** 2\n",
)

many = settings(derandomize=True, max_examples=200, deadline=None)
ordinary = st.text(st.characters(exclude_categories=["Cs"]), max_size=60) | st.text("the user says 12\n ", max_size=40)
