"""Taking outputs apart."""

from __future__ import annotations

import pytest

from torchtap.selftest.smi import fields_of, read_csv, read_list, read_table, read_version
from torchtap.selftest.smi.fields import NotThisFormError
from torchtap.selftest.smi.forms import names_every_gpu, read_query

TABLE = """\
| NVIDIA-SMI 535.54.03              Driver Version: 535.54.03    CUDA Version: 12.2     |
|   0  NVIDIA A100-SXM4-40GB          On  | 00000000:07:00.0 Off |                    0 |
| N/A   33C    P0              56W / 400W |      4MiB / 40960MiB |      0%      Default |
|                                         |                      |             Disabled |
|   1  NVIDIA A100-SXM4-40GB          ERR!| 00000000:0A:00.0 ERR! |                 ERR! |
|ERR!  ERR! ERR!             ERR! / ERR!  |  GPU is lost         |     ERR!        ERR! |
|                                         |                      |                 ERR! |
"""


def test_columns_come_from_the_command_by_their_first_names():
    """Also where the fields follow as a word of their own, and from an argument list."""
    assert fields_of("nvidia-smi --query-gpu=gpu_name,gpu_uuid") == ("name", "uuid")
    assert fields_of("nvidia-smi --query-gpu index,name --format csv") == ("index", "name")
    assert fields_of(["nvidia-smi", "--query-remapped-rows=gpu_bus_id"]) == ("pci.bus_id",)
    assert fields_of("nvidia-smi (device 'blocks)") == ()


def test_a_header_wins_and_units_are_read():
    """The header names the columns, with their units."""
    read = read_csv("memory.total [MiB], index\n81559 MiB, 3\n", ("index", "memory.total"))
    assert [(row.gpu, row.number("memory.total")) for row in read.rows] == [(3, 81559.0)]


def test_a_row_with_another_number_of_cells_is_a_stray():
    """It is handed back whole, and is no GPU."""
    read = read_csv("0, 34\nlorem, ipsum, dolor\n", ("index", "temperature.gpu"))
    assert len(read.rows) == 1
    assert read.strays == ("lorem, ipsum, dolor",)


def test_position_is_the_index_only_where_every_gpu_is_asked():
    """-i picks GPUs, and --query-remapped-rows is another query."""
    assert names_every_gpu("nvidia-smi --query-gpu=name --format=csv")
    assert not names_every_gpu("nvidia-smi -i 3 --query-gpu=name --format=csv")
    assert not names_every_gpu("nvidia-smi --query-remapped-rows=gpu_bus_id --format=csv")


def test_absent_and_unreadable_are_told_apart():
    """None for [N/A], an exception for garbage."""
    row = read_csv("[N/A], what\n", ("temperature.gpu", "memory.total")).rows[0]
    assert row.value("temperature.gpu") is None
    with pytest.raises(NotThisFormError):
        row.value("memory.total")


def test_mig_lines_belong_to_the_gpu_above_them():
    """New and old form of a MIG UUID; other lines are strays."""
    gpus, strays = read_list(
        "GPU 0: NVIDIA A100 (UUID: GPU-11111111-2222-3333-4444-555555555500)\n"
        "  MIG 3g.20gb     Device  0: (UUID: MIG-11111111-2222-3333-4444-555555555500)\n"
        "  MIG 3g.20gb     Device  1: (UUID: MIG-GPU-11111111-2222-3333-4444-555555555500/1/0)\n"
        "GPU 1: NVIDIA A100 (UUID: GPU-11111111-2222-3333-4444-555555555501)\n"
        "something else\n"
    )
    assert [(gpu.index, len(gpu.mig)) for gpu in gpus] == [(0, 2), (1, 0)]
    assert strays == ("something else",)


def test_deprecated_lines_are_no_versions():
    """610 says "Deprecated" where the version was."""
    said = read_version('DRIVER version : Deprecated, see "KMD version"\nKMD version : 610.57.04\n')
    assert said == {"kmd version": "610.57.04"}


def test_the_table_gives_gpus_and_their_errors():
    """A lost GPU keeps its index, and its words are found."""
    table = read_table(TABLE)
    assert [row.gpu for row in table.rows] == [0, 1]
    assert table.rows[0].number("memory.total") == 40960
    assert table.rows[1].cells["memory.used"].state.value == "lost"
    assert table.cuda_word == "12.2"


def test_query_leaves_carry_their_headings():
    """Headings are kept by indentation, GPUs by position."""
    leaves = read_query(
        "==============NVSMI LOG==============\n\nTimestamp   : now\nGPU 00000000:41:00.0\n"
        "    ECC Errors\n        Volatile\n            SRAM Uncorrectable : 0\n        Aggregate\n"
        "            SRAM Uncorrectable : 1\n"
    )
    assert leaves[-2:] == (
        (0, (("ECC Errors", "Volatile", "SRAM Uncorrectable"), "0")),
        (0, (("ECC Errors", "Aggregate", "SRAM Uncorrectable"), "1")),
    )
