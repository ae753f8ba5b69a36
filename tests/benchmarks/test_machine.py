"""What /proc/cpuinfo says, where there is one."""

import torch

from benchmarks.machine import describe, read_cpu

CPUINFO = """\
processor\t: 0
model name\t: A Processor 9000
flags\t\t: fpu avx2 avx512f ssse3

processor\t: 1
model name\t: A Processor 9000
flags\t\t: fpu
"""


def test_the_first_core_speaks_for_all() -> None:
    assert read_cpu(CPUINFO) == ("A Processor 9000", ["avx2", "avx512f"])


def test_a_system_without_it_has_no_name() -> None:
    assert read_cpu("") == ("", [])
    assert "torch" in describe(torch.device("cpu"))
