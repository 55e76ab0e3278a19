"""Steps of level full that measure: copies within a GPU, copies to and from it, matrix products."""

from __future__ import annotations

import time

import torch

from torchtap.selftest.child.devices import each_gpu, nvml_of
from torchtap.selftest.child.products import LargeProduct, large_product
from torchtap.selftest.child.running import Reporter, Values
from torchtap.selftest.child.timing import median_seconds
from torchtap.selftest.limits import (
    COPY_BYTES,
    PRODUCT_SIZE,
    SMALL_GPU_BYTES,
    SMALL_PRODUCT_SIZE,
    TRANSFER_BYTES,
)

REPEATS = 20


def gpu_bandwidth(reporter: Reporter) -> Values:
    """GB/s of a copy within each GPU, reading and writing counted."""
    gpus = []
    for device in each_gpu(reporter):
        free, _ = torch.cuda.mem_get_info(device)
        size = min(COPY_BYTES, free // 4)
        gpus.append({"index": device.index, "gb_s": round(2 * copy_rate(device, device, size), 1)})
        torch.cuda.empty_cache()
    return {"gpus": gpus}


def gpu_transfer(reporter: Reporter) -> Values:
    """GB/s between pinned memory of the host and each GPU, both ways, and the PCIe link while it works."""
    gpus: list[Values] = []
    host = torch.device("cpu")
    for device in each_gpu(reporter):
        rates = {
            "to_gpu": copy_rate(host, device, TRANSFER_BYTES),
            "from_gpu": copy_rate(device, host, TRANSFER_BYTES),
        }
        link = _link_under_load(device)
        gpus.append({"index": device.index, **{name: round(rate, 2) for name, rate in rates.items()}, **link})
        torch.cuda.empty_cache()
    return {"gpus": gpus}


def copy_rate(source: torch.device, target: torch.device, size_bytes: int) -> float:
    """GB/s in one direction, median of 20 copies; memory of the host is pinned where the other side is a GPU."""
    gpu = source if source.type == "cuda" else target
    both = [
        torch.zeros(size_bytes, dtype=torch.uint8, device=device, pin_memory=device.type != gpu.type)
        for device in (source, target)
    ]
    return (
        size_bytes
        / median_seconds(gpu, lambda: both[1].copy_(both[0], non_blocking=True), repeats=REPEATS)
        / 1e9
    )


def _link_under_load(device: torch.device) -> Values:
    """The link's generation and width in the middle of copies: at rest the generation is lowered on purpose."""
    nvml = nvml_of(device)
    pinned = torch.zeros(TRANSFER_BYTES, dtype=torch.uint8, pin_memory=True)
    target = torch.empty_like(pinned, device=device)
    for _ in range(REPEATS):
        target.copy_(pinned, non_blocking=True)
    time.sleep(0.05)  # 5 GB take 0.1 s or more
    link = nvml.read("pcie_gen", "max_pcie_gen", "pcie_width")
    torch.cuda.synchronize(device)
    return dict(link)


def gpu_speed(reporter: Reporter) -> Values:
    """TFLOP/s of large matrix products by type, each result verified, and the clocks while they run."""
    gpus = []
    for device in each_gpu(reporter):
        properties = torch.cuda.get_device_properties(device)
        size = PRODUCT_SIZE if properties.total_memory >= SMALL_GPU_BYTES else SMALL_PRODUCT_SIZE
        rates: Values = {}
        wrong = 0
        types = types_of((properties.major, properties.minor))
        for what in types:
            reporter.say_where(f"GPU {device.index}, {what}")
            rates[what], bad = product_rate(device, what, size)
            wrong += bad
        clocks = _clocks_under_load(device, large_product(device, _DTYPES[types[-1]], size))
        gpus.append(
            {
                "index": device.index,
                "size": size,
                "checked": size * len(rates),
                "wrong": wrong,
                "tflops": rates,
                **clocks,
            }
        )
        torch.cuda.empty_cache()
    return {"gpus": gpus}


def types_of(capability: tuple[int, int]) -> list[str]:
    """What a GPU has fast units for: fp16 from Volta on, TF32 and bf16 from Ampere on.

    >>> types_of((7, 5)), types_of((9, 0))
    (['fp32', 'fp16'], ['fp32', 'tf32', 'fp16', 'bf16'])
    """
    if capability >= (8, 0):
        return ["fp32", "tf32", "fp16", "bf16"]
    return ["fp32", "fp16"] if capability >= (7, 0) else ["fp32"]


_DTYPES = {"fp32": torch.float32, "tf32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


def product_rate(device: torch.device, what: str, size: int) -> tuple[float, int]:
    """(TFLOP/s, wrong rows of the last product). The precision that was set is put back."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if what == "tf32" else "highest")
    try:
        product = large_product(device, _DTYPES[what], size)
        seconds = median_seconds(device, product.run, repeats=REPEATS)
        wrong = product.wrong_rows(product.run())
    finally:
        torch.set_float32_matmul_precision(before)
    return round(2 * size**3 / seconds / 1e12, 2), wrong


def _clocks_under_load(device: torch.device, product: LargeProduct) -> Values:
    """Clocks, and why they are held back, in the middle of about a second of the products that draw the most power."""
    nvml = nvml_of(device)
    ends = time.monotonic() + 1.0
    seen: list[dict[str, int | None]] = []
    while time.monotonic() < ends:
        for _ in range(32):  # 30 ms on an H200, and NVML takes some of them
            product.run()
        seen.append(nvml.read("sm_mhz", "max_sm_mhz", "reasons"))
        torch.cuda.synchronize(device)
    return dict(seen[-1])
