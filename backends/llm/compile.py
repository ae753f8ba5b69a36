"""Compiles the CPU kernels on the machine that runs them, once, and loads them.

What is fast differs between CPUs of one architecture (a dot product of bf16 pairs exists on some), and a compiler that sees
the machine makes the most of it from one source. A wheel with a binary for each kind of CPU was refused: it would need a build
farm, and would still know fewer kinds than the compiler does. torch's own way (`cpp_extension`) was refused, too: its headers
take half a minute to compile; ours take three seconds, since they know addresses and sizes and no tensors.

A compiled object is kept in the user's cache folder, under a name that says all it depends on: sources, compiler, flags and
CPU. It carries a digest of itself: one that was cut short or changed is compiled again, never loaded.
"""

import ctypes
import hashlib
import os
import platform
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch

SOURCES = Path(__file__).parent / "kernels"
FLAGS = ("-std=c++17", "-O3", "-march=native", "-fPIC", "-fopenmp", "-fno-math-errno", "-Wno-psabi", "-w")
COMPILE_TIMEOUT_S = 120.0
"""Compiling takes about 3 s; a compiler that takes this long is stuck."""
COMPILERS = ("g++", "c++", "clang++")
"""Tried in this order after $CXX: torch's wheels bring GCC's OpenMP runtime, which code of other compilers cannot use."""
_DIGEST_BYTES = 32


class CannotCompile(Exception):
    """This machine cannot compile the kernels, or not load them; the text says why, in one line."""


def load_kernels(cache: Path | None = None) -> ctypes.CDLL:
    """The compiled kernels, from the cache if they are there; `cache` is the user's cache folder unless given.

    Raises CannotCompile. Safe in several processes at once: each compiles for itself, and the last one's object stays."""
    compiler = _find_compiler()
    folder = _default_cache() if cache is None else cache
    runtime = _share_openmp()
    name = f"kernels-{_key(compiler, runtime)}.so"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return _load_or_build(folder / name, lambda at: _build(compiler, at, links_openmp=runtime is None))
    except OSError as error:
        # A folder that cannot be written, or a full disk: the kernels are compiled for this process alone.
        first = error
    with tempfile.TemporaryDirectory() as own:
        try:
            return _load_or_build(Path(own) / name, lambda at: _build(compiler, at, links_openmp=runtime is None))
        except OSError as error:
            raise CannotCompile(f"the kernels were compiled but cannot be loaded: {error} (and {first})") from error


def _default_cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(base) / "batcher"


def _find_compiler() -> list[str]:
    named = shlex.split(os.environ.get("CXX", ""))
    if named and shutil.which(named[0]):
        return named
    for name in COMPILERS:
        if path := shutil.which(name):
            return [path]
    raise CannotCompile("no C++ compiler was found (g++, c++ or clang++ on the PATH, or $CXX)")


def _key(compiler: list[str], openmp: str | None) -> str:
    """Whatever the object depends on, as 32 hex digits."""
    digest = hashlib.sha256()
    for part in (" ".join(compiler), _run([*compiler, "--version"]), *FLAGS, _cpu(), "shared" if openmp else "linked"):
        digest.update(part.encode() + b"\0")
    for source in sorted(SOURCES.iterdir()):
        digest.update(source.name.encode() + b"\0" + source.read_bytes() + b"\0")
    return digest.hexdigest()[:32]


def _cpu() -> str:
    """What `-march=native` sees: the model and the instruction sets of the first CPU."""
    try:
        first = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").split("\n\n")[0]
    except OSError:
        first = platform.processor()
    told = re.findall(r"(?m)^(?:vendor_id|cpu family|model|model name|stepping|flags|Features|CPU \w+)\s*:.*$", first)
    return "\n".join([platform.machine(), *told] if told else [platform.machine(), platform.processor()])


def _share_openmp() -> str | None:
    """Makes the OpenMP runtime that torch loaded resolvable for the kernels; its path, or None if torch has none.

    A second runtime would have a second pool of threads, which spin for work on the cores that the first one's need."""
    try:
        mapped = Path("/proc/self/maps").read_text(encoding="utf-8")
    except OSError:
        return None
    found = dict.fromkeys(re.findall(r"(/\S*/lib(?:gomp|iomp5|omp)[^/\s]*\.so[^/\s]*)$", mapped, re.MULTILINE))
    if not found:
        return None
    # Other packages bring runtimes of their own: torch's lies in its folder, or in `torch.libs` beside it.
    home = str(Path(torch.__file__).parent)
    path: str = next((path for path in found if path.startswith(home)), next(iter(found)))
    ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
    return path


def _load_or_build(at: Path, build: Callable[[Path], None]) -> ctypes.CDLL:
    """Raises CannotCompile if the compiler fails, OSError if a file or the loader does."""
    if not _is_whole(at):
        build(at)
    return ctypes.CDLL(str(at))


def _is_whole(at: Path) -> bool:
    try:
        data = at.read_bytes()
    except FileNotFoundError:
        return False
    return hashlib.sha256(data[:-_DIGEST_BYTES]).digest() == data[-_DIGEST_BYTES:]


def _build(compiler: list[str], at: Path, *, links_openmp: bool) -> None:
    """Compiles into `at`, which appears whole or not at all."""
    sources = sorted(SOURCES.glob("*.cpp"))
    with tempfile.TemporaryDirectory(dir=at.parent) as folder:
        built = Path(folder) / "kernels.so"
        objects = [str(Path(folder) / f"{source.stem}.o") for source in sources]
        for source, target in zip(sources, objects, strict=True):
            _run([*compiler, *FLAGS, "-c", str(source), "-o", target])
        # Linked without OpenMP's library, its functions are those of whichever runtime is loaded already: torch's.
        _run([*compiler, "-shared", *objects, "-o", str(built), *(["-fopenmp"] if links_openmp else [])])
        # What follows the sections of a shared object is nobody's: room for the digest.
        data = built.read_bytes()
        built.write_bytes(data + hashlib.sha256(data).digest())
        os.replace(built, at)


def _run(command: list[str]) -> str:
    """Its output. Raises CannotCompile."""
    environment = {**os.environ, "LC_ALL": "C"}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=COMPILE_TIMEOUT_S, check=False, env=environment
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CannotCompile(f"{command[0]} could not be run: {error}") from error
    if done.returncode != 0:
        complaint = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr.strip()[-200:])
        raise CannotCompile(f"{command[0]} failed: {complaint}")
    return done.stdout
