"""NVML by ctypes, with a library made for the test."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest

from torchtap.selftest.child.nvml import Nvml

SOURCE = """
#include <string.h>
int nvmlInit_v2(void) { return 0; }
int nvmlDeviceGetHandleByUUID(const char *uuid, void **handle) {
    if (strcmp(uuid, "GPU-1")) return 6;
    *handle = (void *)0x123456789abcUL; return 0; }
int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, void **handle) {
    if (strcmp(bus, "00000000:41:00.0")) return 6;
    *handle = (void *)0x123456789abcUL; return 0; }
int nvmlDeviceGetCurrPcieLinkGeneration(void *handle, unsigned *value) {
    if (handle != (void *)0x123456789abcUL) return 2;
    *value = 5; return 0; }
int nvmlDeviceGetMaxPcieLinkGeneration(void *handle, unsigned *value) { (void)handle; *value = 6; return 0; }
int nvmlDeviceGetCurrPcieLinkWidth(void *handle, unsigned *value) { (void)handle; (void)value; return 3; }
int nvmlDeviceGetClockInfo(void *handle, int kind, unsigned *value) { (void)handle; *value = 1000 + kind; return 0; }
int nvmlDeviceGetCurrentClocksThrottleReasons(void *handle, unsigned long long *value) {
    (void)handle; *value = 0x4000000000000008UL; return 0; }
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """Compiled here; it lacks nvmlDeviceGetMaxClockInfo, as an old one might."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    folder: Path = tmp_path_factory.mktemp("nvml")
    (folder / "nvml.c").write_text(SOURCE)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", folder / "nvml.so", folder / "nvml.c"], check=True)
    return ctypes.CDLL(str(folder / "nvml.so"))


@pytest.mark.parametrize(
    ("uuid", "bus_id"), [("GPU-1", None), (None, "00000000:41:00.0"), ("GPU-7", "00000000:41:00.0")]
)
def test_a_gpu_is_found_and_read(library: ctypes.CDLL, uuid: str | None, bus_id: str | None):
    """By UUID or bus id; a reading that fails, or that this NVML does not have, is None."""
    nvml = Nvml(uuid=uuid, bus_id=bus_id, library=library)
    assert nvml.read("pcie_gen", "max_pcie_gen", "pcie_width", "sm_mhz", "max_sm_mhz", "reasons") == {
        "pcie_gen": 5,
        "max_pcie_gen": 6,
        "pcie_width": None,
        "sm_mhz": 1001,
        "max_sm_mhz": None,
        "reasons": 0x4000000000000008,
    }


def test_a_gpu_that_nvml_does_not_know_tells_nothing(library: ctypes.CDLL):
    """No number of another GPU."""
    assert Nvml(uuid="GPU-7", bus_id=None, library=library).read("pcie_gen", "sm_mhz") == {
        "pcie_gen": None,
        "sm_mhz": None,
    }


def test_without_nvml_nothing_is_told(monkeypatch: pytest.MonkeyPatch):
    """As in a container with the compute capability alone."""

    def missing(_: str) -> ctypes.CDLL:
        raise OSError("libnvidia-ml.so.1: cannot open shared object file")

    monkeypatch.setattr("torchtap.selftest.child.nvml.ctypes.CDLL", missing)
    assert Nvml(uuid="GPU-1", bus_id=None).read("sm_mhz") == {"sm_mhz": None}
