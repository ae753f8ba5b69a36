"""Both event loops for every asynchronous test here, and what each test must leave behind: nothing."""

import asyncio
import gc
import logging
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import psutil
