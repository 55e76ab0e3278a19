"""`nvidia-smi nvlink -s`: links by GPU, and nothing lost."""

from __future__ import annotations

import pytest

from torchtap.selftest.smi.nvlink import Links, read_nvlink

GPU = "GPU {n}: NVIDIA H100 80GB HBM3 (UUID: GPU-11111111-2222-3333-4444-55555555550{n})\n"


def test_links_belong_to_the_gpu_above_them():
    """Up with a speed, down with its number; a GPU without links has none."""
    text = GPU.format(n=0) + "\t Link 0: 26.562 GB/s\n\t Link 1: <inactive>\n" + GPU.format(n=1)
    name = "NVIDIA H100 80GB HBM3"
    assert read_nvlink(text) == ((Links(0, name, 1, (1,)), Links(1, name, 0, ())), ())


@pytest.mark.parametrize(
    "line",
    ["\t Link 0: fast\n", "\t Link 0: 26.562\n", "Link 0: 26.562 GB/s\n", "lorem ipsum\n", "GPU 1: words\n"],
)
def test_a_line_of_another_form_is_handed_back(line: str):
    """So that nobody takes it for a link that is up."""
    gpus, strays = read_nvlink(GPU.format(n=0) + line)
    assert (gpus[0].up, strays) == (0, (line.rstrip("\n"),))


def test_a_link_before_any_gpu_is_nobodys():
    """Text that begins in the middle."""
    assert read_nvlink("\t Link 0: 26.562 GB/s\n") == ((), ("\t Link 0: 26.562 GB/s",))
