"""Judging: cells first, text second, exit code last; kinds of output beyond the recorded ones."""

from __future__ import annotations

import pytest

from torchtap.selftest.causes import CAUSES
from torchtap.selftest.smi import Verdict, judge
from torchtap.selftest.smi.rules import RULES
from torchtap.selftest.smi.texts import EXIT_CODES, NVML_ERRORS, SENTENCES, XIDS

UUID = "GPU-11111111-2222-3333-4444-555555555500"


def query(**cells: str):
    """Judge one GPU with these cells (`__` stands for a dot)."""
    names = {name.replace("__", "."): text for name, text in cells.items()}
    command = f"nvidia-smi --query-gpu=index,{','.join(names)} --format=csv,noheader,nounits"
    return judge(f"0, {', '.join(names.values())}\n", rc=0, command=command)


@pytest.mark.parametrize(
    ("cells", "verdict", "cause"),
    [
        ({"ecc__errors__uncorrected__volatile__total": "3"}, "fail", "ecc_uncorrected"),
        ({"ecc__errors__uncorrected__aggregate__total": "2"}, "warn", "ecc_uncorrected_earlier"),
        ({"ecc__errors__uncorrected__aggregate__sram__thresholdExceeded": "Yes"}, "fail", "ecc_threshold"),
        ({"remapped_rows__pending": "Yes"}, "fail", "remap_pending"),
        ({"remapped_rows__pending": "1"}, "fail", "remap_pending"),
        ({"remapped_rows__failure": "Yes"}, "fail", "remap_failed"),
        ({"unrepairable_memory": "Yes"}, "fail", "remap_failed"),
        ({"inforom__checksum_validation": "invalid"}, "warn", "inforom_corrupt"),
        ({"inforom__checksum_validation": "Xyzzy"}, "unknown", "smi_unreadable"),
        ({"remapped_rows__uncorrectable": "512"}, "fail", "remap_exhausted"),
        ({"retired_pages__pending": "Yes"}, "fail", "retirement_pending"),
        ({"retired_pages__double_bit__count": "63"}, "fail", "pages_retired"),
        ({"retired_pages__double_bit__count": "15"}, "warn", "pages_retired"),
        ({"gpu_recovery_action": "Drain and Reset"}, "fail", "recovery_needed"),
        ({"reset_status__reset_required": "Yes"}, "fail", "gpu_requires_reset"),
        ({"reset_status__drain_and_reset_recommended": "Yes"}, "fail", "recovery_needed"),
        ({"clocks_throttle_reasons__active": "0x0000000000000048"}, "warn", "thermal_slowdown"),
        ({"clocks_event_reasons__active": "0x0000000000000088"}, "warn", "power_brake"),
        ({"clocks_throttle_reasons__active": "0x0000000000000020"}, "warn", "thermal_slowdown"),
        ({"clocks_throttle_reasons__active": "0x0000000000000008"}, "warn", "hw_slowdown"),
        ({"clocks_throttle_reasons__hw_slowdown": "Active"}, "warn", "hw_slowdown"),
        (
            {
                "clocks_event_reasons__hw_slowdown": "Active",
                "clocks_event_reasons__hw_power_brake_slowdown": "Active",
            },
            "warn",
            "power_brake",
        ),
        ({"clocks_throttle_reasons__hw_slowdown": "Perhaps"}, "unknown", "smi_unreadable"),
        ({"ecc__errors__uncorrected__volatile__dram": "3"}, "fail", "ecc_uncorrected"),
        ({"ecc__errors__uncorrected__aggregate__sram__parity": "3"}, "warn", "ecc_uncorrected_earlier"),
        ({"fabric__health__summary": "Unhealthy"}, "fail", "fabric_not_ready"),
        ({"fabric__health__summary": "Limited Capacity"}, "warn", "fabric_not_ready"),
        ({"repair__channel": "Yes"}, "fail", "recovery_needed"),
        ({"repair__tpc": "Yes"}, "fail", "recovery_needed"),
        ({"temperature__gpu": "85"}, "warn", "too_hot"),
        ({"temperature__gpu": "70", "temperature__gpu__tlimit": "4"}, "warn", "too_hot"),
        ({"temperature__gpu": "95", "temperature__gpu__tlimit": "0"}, "fail", "too_hot"),
        ({"pcie__link__width__current": "8", "pcie__link__width__max": "16"}, "warn", "pcie_narrow"),
        ({"pcie__link__width__current": "4", "pcie__link__width__max": "16"}, "fail", "pcie_narrow"),
        ({"compute_mode": "Prohibited"}, "fail", "compute_prohibited"),
        ({"compute_mode": "Exclusive_Process"}, "warn", "compute_exclusive"),
        ({"fabric__state": "In Progress", "fabric__status": "N/A"}, "fail", "fabric_not_ready"),
        ({"fabric__state": "state  Not Started"}, "fail", "fabric_not_ready"),
        (
            {"fabric__state": "Completed", "fabric__status": "Insufficient Resources"},
            "fail",
            "fabric_not_ready",
        ),
        ({"fabric__state": "[N/A]", "fabric__status": "Failure"}, "fail", "fabric_not_ready"),
        ({"fabric__state": "error Completed", "fabric__status": "Success"}, "fail", "fabric_not_ready"),
        ({"fabric__state": "Completed", "fabric__status": "No Success"}, "fail", "fabric_not_ready"),
        ({"pcie__link__width__current": "1", "pcie__link__width__max": "1"}, "warn", "pcie_slot"),
        ({"pcie__link__width__current": "16", "pcie__link__width__max": "8"}, "unknown", "smi_unreadable"),
        ({"memory__total": "1", "memory__used": "0"}, "unknown", "smi_unreadable"),
        ({"memory__total": "16384", "memory__used": "16385"}, "unknown", "smi_unreadable"),
        ({"memory__total": "[Unknown Error]"}, "fail", "gpu_unreadable"),
        ({"temperature__gpu": "ERR!"}, "fail", "gpu_unreadable"),
        ({"fan__speed": "[Unknown Error]", "temperature__gpu": "33"}, "warn", "field_unreadable"),
        ({"memory__total": "[GPU requires reset]"}, "fail", "gpu_requires_reset"),
        ({"memory__total": "lorem"}, "unknown", "smi_unreadable"),
        ({"gpu_recovery_action": "[Unknown Error]"}, "unknown", "smi_unreadable"),
        ({"fabric__state": "Completed", "fabric__status": "[Unknown Error]"}, "unknown", "smi_unreadable"),
        ({"reset_status__reset_required": "ERR!"}, "unknown", "smi_unreadable"),
        ({"compute_mode": "[Timeout]"}, "unknown", "smi_unreadable"),
    ],
)
def test_a_value_gives_its_verdict_and_cause(cells: dict[str, str], verdict: str, cause: str):
    """One bad value at GPU 0."""
    said = query(**cells)
    assert (said.verdict.value, said.causes) == (verdict, ((0, cause),))


@pytest.mark.parametrize(
    "cells",
    [
        {"ecc__errors__uncorrected__volatile__total": "0", "remapped_rows__pending": "0"},
        {"remapped_rows__uncorrectable": "511", "retired_pages__double_bit__count": "14"},
        {"clocks_throttle_reasons__active": "0x0000000000000117"},  # idle, clocks, cap, sync, display
        {"clocks_throttle_reasons__hw_slowdown": "Not Active", "fabric__health__summary": "Healthy"},
        {"temperature__gpu": "84"},
        {"temperature__gpu": "90", "temperature__gpu__tlimit": "6"},
        {"pcie__link__gen__current": "1", "pcie__link__gen__max": "4"},
        {"persistence_mode": "Disabled", "mig__mode__current": "Enabled"},
        {"memory__total": "16384", "ecc__mode__current": "[N/A]", "power__limit": "[Not Supported]"},
        {"fabric__state": "state  Completed", "fabric__status": "Success"},
        {"fabric__state": "state  Completed", "fabric__status": "status  Success"},
        {"fabric__state": "N/A", "fabric__status": "Success"},
        {"memory__used": "71000", "temperature__gpu": "60"},
        {"memory__total": "16384", "memory__used": "16384", "memory__free": "0"},
        {"pcie__link__width__current": "4", "pcie__link__width__max": "4"},
        # GB10: memory is the host's, and the link is made up.
        {
            "memory__total": "[N/A]",
            "pcie__link__width__current": "1",
            "pcie__link__width__max": "16",
            "temperature__gpu": "40",
        },
    ],
)
def test_values_at_their_limits_pass(cells: dict[str, str]):
    """Just below every limit, and what is a note only."""
    said = query(**cells)
    assert (said.verdict.value, said.causes) == ("pass", ())


def test_every_rule_is_reached_by_the_values_above():
    """No rule that no test has seen speak."""
    (parameters,) = [
        mark.args[1]
        for mark in test_a_value_gives_its_verdict_and_cause.pytestmark
        if mark.name == "parametrize"
    ]
    asked = {name.replace("__", ".") for cells, _, _ in parameters for name in cells}
    assert {rule.fields[0] for rule in RULES} <= asked


def test_new_errors_are_not_reported_twice_as_old_ones():
    """Volatile errors are part of the aggregate count."""
    said = query(
        ecc__errors__uncorrected__volatile__total="1", ecc__errors__uncorrected__aggregate__total="1"
    )
    assert said.causes == ((0, "ecc_uncorrected"),)


def test_two_gpus_of_one_uuid_are_one_that_was_not_read():
    """Whatever their indexes say; a query that answers over and over shows each again."""
    uuid = "GPU-11111111-2222-3333-4444-5555555555"
    command = "nvidia-smi --query-gpu=index,uuid,memory.total --format=csv,noheader,nounits"
    both = judge(f"0, {uuid}00, 81559\n1, {uuid}00, 81559\n", 0, command)
    assert (both.verdict.value, both.causes) == ("unknown", ((1, "smi_unreadable"),))
    assert judge(f"0, {uuid}00, 81559\n1, {uuid}01, 81559\n", 0, command).verdict.value == "pass"
    again = "nvidia-smi --query-gpu=uuid,memory.total --format=csv,noheader -l 5"
    assert judge(f"{uuid}00, 81559\n{uuid}00, 81559\n", 0, again).verdict.value == "pass"


@pytest.mark.parametrize(
    "text", ["Timeout waiting", "uninitialised", "Reset", "Unhealthy", "State Completed"]
)
def test_an_error_where_a_name_should_be_is_no_name(text: str):
    """Asked for names alone, every sentence would have their shape."""
    said = judge(text, 0, "nvidia-smi --query-gpu=name --format=csv,noheader")
    assert said.verdict.value == "unknown"


def test_a_lost_gpu_is_only_lost():
    """Its other cells say no more, and the other GPU's row is still judged."""
    command = (
        "nvidia-smi --query-gpu=index,temperature.gpu,memory.total,fan.speed --format=csv,noheader,nounits"
    )
    said = judge(
        "0, 90, 81920, 30\n1, [GPU is lost], [Unknown Error], [GPU is lost]\n", rc=0, command=command
    )
    assert said.causes == ((0, "too_hot"), (1, "gpu_lost"))


@pytest.mark.parametrize("strange", ["1, 8155", "lorem ipsum", "1", "1, 81559, 34, 0"])
def test_a_warning_does_not_explain_a_row_that_cannot_be_read(strange: str):
    """Only what ends the answer does: a damaged infoROM comes beside whole rows."""
    command = "nvidia-smi --query-gpu=index,memory.total,temperature.gpu --format=csv,noheader,nounits"
    warning = "WARNING: infoROM is corrupted at gpu 0000:3B:00.0"
    whole, half = f"0, 81559, 34\n{warning}\n", f"0, 81559, 34\n{strange}\n{warning}\n"
    for rc in (0, 14):
        assert judge(whole, rc, command).verdict is Verdict.WARN
        assert judge(half, rc, command).verdict is Verdict.UNKNOWN
    assert judge(
        half + "Unable to determine the device handle for GPU 0000:3B:00.0: GPU is lost", 15, command
    ).causes == (
        (None, "inforom_corrupt"),
        (None, "gpu_lost"),
    )


def test_only_unpermitted_cells_are_a_fault_some_are_not():
    """A container with one MIG instance may not read everything."""
    assert query(memory__total="[Insufficient Permissions]", temperature__gpu="33").verdict.value == "pass"
    command = "nvidia-smi --query-gpu=memory.total,temperature.gpu --format=csv,noheader"
    said = judge("[Insufficient Permissions], [Insufficient Permissions]\n", rc=0, command=command)
    assert said.causes == ((0, "no_permission"),)


@pytest.mark.parametrize("reason", [reason for reason, _ in NVML_ERRORS])
def test_nvmls_words_mean_the_same_at_start_and_for_one_gpu(reason: str):
    """After "Failed to initialize NVML:" and after "Unable to determine the device handle"."""
    cause = dict(NVML_ERRORS)[reason]
    for text in (
        f"Failed to initialize NVML: {reason.capitalize()}",
        f"Unable to determine the device handle for GPU 0000:3B:00.0: {reason.capitalize()}",
    ):
        said = judge(text, rc=255, command="nvidia-smi")
        assert (said.verdict.value, said.causes) == ("fail", ((None, cause),))


@pytest.mark.parametrize(
    "text",
    [
        "Unable to determine the device handle for GPU 0000:3B:00.0: Unknown Error",
        "Unable to determine the device handle for GPU0000:5E:00.0: Unknown Error",
        "Unable to determine the device handle for GPU0: 0000:61:00.0: Unknown Error",
        "Unable to determine the device handle for gpu 00000000:61:00.0: Unknown Error",
    ],
)
def test_every_spelling_of_a_missing_handle_names_the_bus(text: str):
    """Old, 535-550, from 572; the bus id is in all of them."""
    said = judge(text, command="nvidia-smi")
    assert said.causes == ((None, "gpu_fell_off_bus"),)
    assert str(said.findings[0].values["bus"]).endswith(("3B:00.0", "5E:00.0", "61:00.0"))


def test_an_nvml_error_that_nobody_knows_is_still_a_failure():
    """With its words kept."""
    said = judge("Failed to initialize NVML: The moon is full", rc=255)
    assert said.causes == ((None, "nvml_error"),)
    assert said.findings[0].values["reason"] == "The moon is full"


@pytest.mark.parametrize(("rc", "expected"), EXIT_CODES.items())
def test_an_exit_code_decides_where_nothing_else_does(rc: int, expected: tuple[Verdict, str]):
    """Nothing printed. A warning proves nothing else to be well, so it stays unknown."""
    verdict, cause = expected
    said = judge("", rc=rc, command="nvidia-smi")
    assert said.verdict.value == ("unknown" if verdict.value == "warn" else verdict.value)
    assert said.causes[0] == (None, cause)


def test_an_exit_code_does_not_overrule_a_cell():
    """A lost GPU with exit code 4 is a lost GPU."""
    command = "nvidia-smi --query-gpu=index,temperature.gpu --format=csv,noheader"
    assert judge("0, [GPU is lost]\n", rc=4, command=command).causes == ((0, "gpu_lost"),)


@pytest.mark.parametrize(
    ("rc", "verdict", "cause"),
    [(15, "fail", "gpu_lost"), (14, "warn", "inforom_corrupt"), (77, "unknown", "smi_exit_code")],
)
def test_good_rows_with_a_bad_exit_code_are_no_pass(rc: int, verdict: str, cause: str):
    """It has something to say that its output does not show."""
    said = judge(
        "0, 33\n", rc=rc, command="nvidia-smi --query-gpu=index,temperature.gpu --format=csv,noheader"
    )
    assert (said.verdict.value, said.causes) == (verdict, ((None, cause),))


@pytest.mark.parametrize("rc", [-11, 139, -6, 134])
def test_a_signal_is_a_crash(rc: int):
    """As Python and as a shell write it."""
    assert judge("", rc=rc, command="nvidia-smi").causes == ((None, "smi_crashed"),)


@pytest.mark.parametrize("rc", [124, 137, -9])
def test_an_empty_answer_of_a_killed_process_is_a_hang(rc: int):
    """`timeout` leaves 124, SIGKILL 137."""
    assert judge("", rc=rc, command="nvidia-smi").causes == ((None, "smi_hung"),)


def test_good_rows_and_a_sentence_both_count():
    """The second GPU has no handle; the first one's row was printed."""
    text = (
        "0, 33\nUnable to determine the device handle for GPU 0000:86:00.0: GPU is lost.  Reboot the system\n"
    )
    said = judge(text, rc=15, command="nvidia-smi --query-gpu=index,temperature.gpu --format=csv,noheader")
    assert said.causes == ((None, "gpu_lost"),)


def test_a_line_that_nobody_knows_is_no_health():
    """Good rows and a new message: unknown, until somebody has read it."""
    command = "nvidia-smi --query-gpu=index,temperature.gpu --format=csv,noheader"
    assert judge("0, 33\nWARNING: something new\n", rc=0, command=command).verdict.value == "unknown"


TABLE = """\
+-----------------------------------------------------------------------------+
| NVIDIA-SMI 470.82.01    Driver Version: 470.82.01    CUDA Version: {cuda:8} |
|-------------------------------+----------------------+----------------------+
|   0  GeForce GTX 1080    {p:5} | 00000000:01:00.0 Off |                {ecc:>5} |
| {fan:4} {temp:4}  P8    {power:>4} / 180W |  {memory:>19} |      0%      Default |
|                               |                      |                  N/A |
+-----------------------------------------------------------------------------+
"""
FINE = {
    "cuda": "11.4",
    "p": "Off",
    "ecc": "N/A",
    "fan": "27%",
    "temp": "36C",
    "power": "7W",
    "memory": "1MiB /  8119MiB",
}


@pytest.mark.parametrize(
    ("changes", "verdict", "causes"),
    [
        ({}, "pass", ()),
        ({"cuda": "ERR!"}, "fail", ((None, "wrong_libcuda"),)),
        ({"cuda": "N/A"}, "fail", ((None, "libcuda_not_injected"),)),
        ({"power": "ERR!"}, "warn", ((0, "field_unreadable"),)),
        ({"fan": "ERR!"}, "warn", ((0, "field_unreadable"),)),
        ({"temp": "ERR!"}, "fail", ((0, "gpu_unreadable"),)),
        ({"memory": "Unknown Error"}, "fail", ((0, "gpu_unreadable"),)),
        ({"ecc": "ERR!"}, "fail", ((0, "gpu_unreadable"),)),
        ({"ecc": "4"}, "fail", ((0, "ecc_uncorrected"),)),
        ({"memory": "GPU is lost", "temp": "ERR!", "p": "ERR!"}, "fail", ((0, "gpu_lost"),)),
        ({"memory": "Requires reset"}, "fail", ((0, "gpu_requires_reset"),)),
        ({"temp": "91C"}, "warn", ((0, "too_hot"),)),
    ],
)
def test_the_table_is_read_for_error_words(changes: dict[str, str], verdict: str, causes: object):
    """An older driver's table with one cell changed."""
    said = judge(TABLE.format(**{**FINE, **changes}), rc=0, command="nvidia-smi")
    assert (said.verdict.value, said.causes) == (verdict, causes)


def test_a_banner_without_a_gpu_is_no_pass():
    """Cut off, or a form that we do not know."""
    assert (
        judge(TABLE.format(**FINE).split("|   0")[0], rc=0, command="nvidia-smi").verdict.value == "unknown"
    )


def test_a_process_named_like_an_error_is_no_error():
    """The list of processes is not searched."""
    text = TABLE.format(**FINE) + "|  Processes:  |\n|  0  N/A  N/A  123  C  ./GPU is lost  3MiB |\n"
    assert judge(text, rc=0, command="nvidia-smi").verdict.value == "pass"


def test_no_mig_devices_in_the_table_is_the_same_as_in_the_list():
    """The table says it in words."""
    text = TABLE.format(**FINE) + "| MIG devices: |\n|  No MIG devices found |\n"
    assert judge(text, rc=0, command="nvidia-smi").causes == ((None, "mig_no_instance"),)


def test_a_gpu_without_instances_beside_one_with_is_a_warning():
    """CUDA has a device then."""
    text = (
        f"GPU 0: NVIDIA A100 (UUID: {UUID})\n"
        "  MIG 3g.20gb     Device  0: (UUID: MIG-11111111-2222-3333-4444-555555555500)\n"
        f"GPU 1: NVIDIA A100 (UUID: {UUID[:-1]}1)\n"
    )
    said = judge(text, rc=0, command="nvidia-smi -L", mig_enabled=[0, 1])
    assert (said.verdict.value, said.causes) == ("warn", ((1, "mig_no_instance"),))


QUERY = """\

==============NVSMI LOG==============

Timestamp                                 : Mon Nov 30 10:00:00 2026
Driver Version                            : 550.163.01
CUDA Version                              : 12.4

Attached GPUs                             : 1
GPU 00000000:41:00.0
    Product Name                          : NVIDIA A100-SXM4-40GB
    vGPU Software Licensed Product
        Product Name                      : NVIDIA RTX Virtual Workstation
        License Status                    : {license}
    ECC Errors
        Volatile
            SRAM Correctable              : 0
            SRAM Uncorrectable            : {volatile}
            DRAM Uncorrectable            : 0
        Aggregate
            SRAM Uncorrectable            : {aggregate}
            DRAM Uncorrectable            : 0
    Remapped Rows
        Uncorrectable Error               : 0
        Pending                           : {pending}
        Remapping Failure Occurred        : No
    Clocks Event Reasons
        Idle                              : Active
        HW Slowdown                       : Not Active
        HW Thermal Slowdown               : {thermal}
    Fabric
        State                             : {fabric}
        Status                            : Success
"""
QUIET = {
    "license": "Licensed (Expiry: 2027-1-1)",
    "volatile": "0",
    "aggregate": "0",
    "pending": "No",
    "thermal": "Not Active",
    "fabric": "Completed",
}


@pytest.mark.parametrize(
    ("changes", "verdict", "causes"),
    [
        ({}, "pass", ()),
        ({"license": "Unlicensed (Restricted)"}, "warn", ((None, "vgpu_unlicensed"),)),
        ({"volatile": "1"}, "fail", ((0, "ecc_uncorrected"),)),
        ({"aggregate": "1"}, "warn", ((0, "ecc_uncorrected_earlier"),)),
        ({"volatile": "N/A", "aggregate": "N/A"}, "pass", ()),
        ({"volatile": "GPU is lost"}, "fail", ((0, "gpu_lost"),)),
        ({"pending": "Yes"}, "fail", ((0, "remap_pending"),)),
        ({"thermal": "Active"}, "warn", ((0, "thermal_slowdown"),)),
        ({"fabric": "In Progress"}, "fail", ((0, "fabric_not_ready"),)),
    ],
)
def test_the_long_query_is_judged_by_the_same_rules(changes: dict[str, str], verdict: str, causes: object):
    """`nvidia-smi -q` with one leaf changed."""
    said = judge(QUERY.format(**{**QUIET, **changes}), rc=0, command="nvidia-smi -q")
    assert (said.verdict.value, said.causes) == (verdict, causes)


@pytest.mark.parametrize("xids", XIDS, ids=lambda xids: xids.cause or "harmless")
def test_an_xid_gives_its_cause(xids):
    """Numbers of NVIDIA's catalogue; a fault of the program that ran is none of the GPU's."""
    for number in xids.numbers:
        said = judge(
            f"[  10.5] NVRM: Xid (PCI:0000:1a:00): {number}, pid=1, name=python, words", command="dmesg"
        )
        expected = ("pass", ()) if xids.verdict is None else (xids.verdict.value, ((None, xids.cause),))
        assert (said.verdict.value, said.causes) == expected


def test_a_new_xid_is_a_warning():
    """Unknown numbers are shown, not judged."""
    assert judge("NVRM: Xid (PCI:0000:1a:00): 999, words", command="dmesg").causes == ((None, "xid_other"),)


def test_a_log_that_is_no_kernel_log_proves_nothing():
    """Also an empty one."""
    assert judge("", kind="dmesg").verdict.value == "unknown"
    assert judge("hello\n", kind="dmesg").verdict.value == "unknown"


def test_every_cause_the_tables_name_is_one_of_the_products():
    """Sentences, NVML's words, exit codes, Xid numbers."""
    named = {sentence.cause for sentence in SENTENCES} | {cause for _, cause in NVML_ERRORS}
    named |= {cause for _, cause in EXIT_CODES.values()} | {xids.cause for xids in XIDS if xids.cause}
    assert named <= CAUSES.keys()


LISTED = "GPU 0: {name} (UUID: GPU-00000074-0000-0000-0000-000000000000)\n"


@pytest.mark.parametrize(
    "name",
    [
        "[Unknown Error]",
        "[N/A]",
        "[Timeout]",
        "ERR!",
        "Unknown Error",
        "GPU is lost",
        "Driver Not Loaded",
        "Not Found",
    ],
)
def test_an_error_in_the_place_of_a_name_is_no_name(name: str):
    """In `-L` and in csv; a real name passes both."""
    command = "nvidia-smi --query-gpu=index,name --format=csv,noheader"
    assert judge(LISTED.format(name="NVIDIA T4"), 0, "nvidia-smi -L").verdict is Verdict.PASS
    assert judge("0, NVIDIA T4\n", 0, command).verdict is Verdict.PASS
    for said in (judge(LISTED.format(name=name), 0, "nvidia-smi -L"), judge(f"0, {name}\n", 0, command)):
        assert said.verdict in (Verdict.UNKNOWN, Verdict.FAIL)


@pytest.mark.parametrize(
    "cells",
    [
        {"ecc__errors__uncorrected__volatile__total": "-1"},
        {"ecc__errors__uncorrected__aggregate__total": "-2147483648"},
        {"remapped_rows__uncorrectable": "-1"},
        {"retired_pages__double_bit__count": "-5"},
        {"memory__total": "0"},
        {"memory__total": "-1"},
        {"memory__used": "-1 MiB"},
        {"power__draw": "-7.5 W"},
        {"temperature__gpu": "-300"},
        {"temperature__gpu": "65535"},
        {"pcie__link__width__max": "-1"},
    ],
)
def test_a_number_that_cannot_be_is_unreadable(cells: dict[str, str]):
    """Fewer than no errors, no memory at all."""
    assert query(**cells).causes == ((0, "smi_unreadable"),)
    assert query(**cells).verdict is Verdict.UNKNOWN


@pytest.mark.parametrize("cells", ["[N/A], [N/A]", "[Not Supported], N/A", ", "])
def test_an_index_alone_proves_no_gpu(cells: str):
    """It counts rows."""
    command = "nvidia-smi --query-gpu=index,memory.total,temperature.gpu --format=csv,noheader"
    assert judge(f"0, {cells}\n", 0, command).verdict is Verdict.UNKNOWN
    assert judge("0, [N/A], 33\n", 0, command).verdict is Verdict.PASS


VERSIONS = (
    "NVIDIA-SMI version  : 550.163.01\nNVML version        : 550.163\nDRIVER version      : 550.163.01\n"
)


@pytest.mark.parametrize(
    ("text", "verdict", "cause"),
    [
        ("CUDA Version        : 12.4\n", "pass", None),
        ("CUDA Version        : N/A\n", "fail", "libcuda_not_injected"),
        ("CUDA Version        : ERR!\n", "fail", "wrong_libcuda"),
        ("CUDA Version        : [Unknown Error]\n", "fail", "wrong_libcuda"),
        ("CUDA Version        : lorem\n", "unknown", "smi_unreadable"),
        ("Failed to initialize NVML: Driver/library version mismatch\n", "fail", "driver_library_mismatch"),
        ("NVML version : GPU is lost\n", "fail", "gpu_lost"),
        ("No devices were found\n", "fail", "no_devices"),
        ("lorem ipsum\n", "unknown", "smi_unreadable"),
        ("KMD version : [Unknown Error]\n", "unknown", "smi_unreadable"),
    ],
)
def test_a_version_proves_nothing_beside_an_error(text: str, verdict: str, cause: str | None):
    """Whichever stands first."""
    for whole in (VERSIONS + text, text + VERSIONS):
        said = judge(whole, 0, "nvidia-smi --version")
        assert (said.verdict.value, dict.fromkeys(each for _, each in said.causes)) == (
            verdict,
            {cause: None} if cause else {},
        )


@pytest.mark.parametrize("cuda", ["ERR!", "[Unknown", "[Unknown Error]"])
def test_the_table_names_the_same_cause_for_cuda(cuda: str):
    """As `--version` does; cut off it is unknown at least."""
    said = judge(TABLE.format(**{**FINE, "cuda": cuda}), 0, "nvidia-smi")
    assert said.verdict in (Verdict.FAIL, Verdict.UNKNOWN)


GOOD_BLOCK = TABLE.format(**FINE)
BLOCK = """\
|   1  GeForce GTX 1080    Off   | 00000000:02:00.0 Off |                  N/A |
| 27%   36C    P8      7W / 180W |    1MiB /  8119MiB   |      0%      Default |
+-----------------------------------------------------------------------------+
"""


@pytest.mark.parametrize(
    ("block", "verdict", "cause"),
    [
        (BLOCK, "pass", None),
        (BLOCK.replace("00000000:02:00.0 Off", "ERR!                "), "unknown", "smi_unreadable"),
        (BLOCK.splitlines()[0] + "\n", "unknown", "smi_unreadable"),
        (BLOCK[:40] + "\n", "unknown", "smi_unreadable"),
        (BLOCK.replace("27%   36C    P8      7W / 180W", "lorem"), "unknown", "smi_unreadable"),
        (BLOCK.replace("1MiB /  8119MiB", "lorem"), "unknown", "smi_unreadable"),
        ("| lorem ipsum                                |\n", "unknown", "smi_unreadable"),
        ("|   1  ERR!                                  |\n", "unknown", "smi_unreadable"),
        (
            "| Unable to determine the device handle for GPU 0000:02:00.0: Unknown Error |\n",
            "fail",
            "gpu_fell_off_bus",
        ),
        ("| GPU is lost.  Reboot the system to recover this GPU |\n", "fail", "gpu_lost"),
    ],
)
def test_a_block_of_the_table_that_cannot_be_read_is_no_health(block: str, verdict: str, cause: str | None):
    """Beside a good one, before and after it."""
    head, one = GOOD_BLOCK.split("|   0  ")
    processes = "| Processes:                    |\n|    0   N/A  N/A   1234   C   GPU is lost   1MiB |\n"
    for text in (GOOD_BLOCK + block, GOOD_BLOCK + block + processes, head + block + "|   0  " + one):
        said = judge(text, 0, "nvidia-smi")
        assert (said.verdict.value, {each for _, each in said.causes}) == (
            verdict,
            {cause} if cause else set(),
        )


@pytest.mark.parametrize(
    ("line", "verdict", "cause"),
    [
        (
            "Unable to determine the device handle for GPU 0000:02:00.0: Unknown Error\n",
            "fail",
            "gpu_fell_off_bus",
        ),
        ("    Some Leaf                 : GPU is lost\n", "fail", "gpu_lost"),
        ("        HW Slowdown           : GPU is lost\n", "fail", "gpu_lost"),
        ("lorem ipsum\n", "unknown", "smi_unreadable"),
        ("            Name              : GPU is lost\n", "pass", None),
    ],
)
def test_the_long_query_is_judged_by_its_sentences_too(line: str, verdict: str, cause: str | None):
    """Among its leaves; a process may have any name."""
    said = judge(QUERY.format(**QUIET).rstrip("\n") + "\n" + line, 0, "nvidia-smi -q")
    assert (said.verdict.value, {each for _, each in said.causes}) == (verdict, {cause} if cause else set())


@pytest.mark.parametrize(
    ("head", "verdict"),
    [
        ("Attached GPUs                             : 1", "pass"),
        ("Attached GPUs                             : 2", "unknown"),
        ("CUDA Version                              : ERR!", "fail"),
        ("CUDA Version                              : Not Found", "fail"),
        ("vGPU Driver Capability\n        Heterogenous Multi-vGPU           : Supported", "pass"),
        ("lorem ipsum", "unknown"),
        ("Driver Version                            : [Unknown Error]", "unknown"),
    ],
)
def test_the_head_of_the_long_query_counts(head: str, verdict: str):
    """Two GPUs and one block: the other one is nowhere."""
    text = QUERY.format(**QUIET)
    at = text.index("GPU 0000")
    assert judge(f"{head}\n\n{text[at:]}", 0, "nvidia-smi -q").verdict.value == verdict
    of_one = judge(f"{head}\n\n{text[at:]}", 0, "nvidia-smi -q -i 0").verdict.value
    assert of_one == ("pass" if head.endswith(": 2") else verdict)


@pytest.mark.parametrize(
    "line",
    [
        "NVRM: GPU 0000:01:00.0: rm_init_adapter failed, device minor number 0",
        "NVRM: No NVIDIA GPU found.",
        "NVRM: The NVIDIA probe routine failed for 1 device(s).",
        "NVRM: None of the NVIDIA devices were initialized.",
        "NVRM: installed in this system is not supported by the\n[    4.1] NVRM: NVIDIA 580.65.06 driver release.",
    ],
)
def test_a_driver_that_does_not_bring_up_a_gpu_is_a_failure(line: str):
    """In the kernel log, in its other words."""
    said = judge(f"[    4.000000] {line}\n", None, "dmesg")
    assert (said.verdict.value, said.causes) == ("fail", ((None, "init_failed"),))
