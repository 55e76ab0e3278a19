"""Every number a check compares with, and where it comes from.

One place, so that a limit can be found, questioned and changed without reading the checks.
"""

from __future__ import annotations

# -- Waiting -------------------------------------------------------------------------------------------------
# nvidia-smi waits 45 s for each answer of a GPU whose firmware is stuck (Xid 119: open-gpu-kernel-modules#1111); a
# healthy 8-GPU host without persistence mode answers within 10 s.
SMI_TIMEOUT_S = 20.0
# A step that starts something: import torch from a cold disk, or the first CUDA context on every GPU of an 8-GPU host.
STEP_START_S = 60.0
# A step that takes less than a second; the first call of a library loads it from disk.
STEP_SHORT_S = 30.0
# After SIGKILL. A process that waits inside the kernel (state D) takes no signal: report it and go on.
KILL_WAIT_S = 2.0
# nvidia-smi names one refused field at a time; each refusal costs one more call.
MAX_REFUSALS = 8
# Enough for hundreds of GPUs; more is not an answer.
MAX_OUTPUT_BYTES = 1 << 20
# Of the kernel log: the newest lines of NVIDIA's drivers.
MAX_EVIDENCE_LINES = 40
# Of each raw text that is kept in a report.
MAX_EVIDENCE_CHARS = 4000

# -- Host ----------------------------------------------------------------------------------------------------
# /dev/shm: NCCL takes about 9.6 MB a channel, a DataLoader a few batches a worker. 64 MiB is Docker's default, which
# ends NCCL with "failed to extend /dev/shm/nccl-..." as soon as two GPUs talk.
SHARED_MEMORY_WARN = 1 << 30
SHARED_MEMORY_DEFAULT = 64 << 20
# Open files: each DataLoader worker passes tensors as file descriptors (torch.multiprocessing).
OPEN_FILES_WARN = 4096

# -- Who else uses the GPU -----------------------------------------------------------------------------------
# An idle GPU uses a few MiB, a CUDA context some hundred. nvidia-smi is asked for processes only above the first.
PROCESSES_ASKED_MIB = 256
MEMORY_IN_USE_MIB = 1024

# -- Driver --------------------------------------------------------------------------------------------------
# The driver that each CUDA toolkit brought with it (CUDA release notes, table of toolkit driver versions; 13.3 from one
# public report). An older driver of the same CUDA major runs it too; only what is compiled at run time (PTX) may not.
TOOLKIT_DRIVERS = {
    (11, 0): (450, 36, 6),
    (11, 1): (455, 23),
    (11, 2): (460, 27, 3),
    (11, 4): (470, 42, 1),
    (11, 6): (510, 39, 1),
    (11, 7): (515, 43, 4),
    (11, 8): (520, 61, 5),
    (12, 0): (525, 60, 13),
    (12, 1): (530, 30, 2),
    (12, 2): (535, 54, 3),
    (12, 3): (545, 23, 6),
    (12, 4): (550, 54, 14),
    (12, 5): (555, 42, 2),
    (12, 6): (560, 28, 3),
    (12, 8): (570, 26),
    (12, 9): (575, 51, 3),
    (13, 0): (580, 65, 6),
    (13, 1): (590, 44, 1),
    (13, 2): (595, 45, 4),
    (13, 3): (610, 43, 2),
}

# -- Kernel log ----------------------------------------------------------------------------------------------
# The newest part; its ring is 128 KiB to a few MiB (CONFIG_LOG_BUF_SHIFT, log_buf_len). Read in one call, or in ~0.1 s.
MAX_KERNEL_LOG_BYTES = 4 << 20
KERNEL_LOG_TIMEOUT_S = 2.0
# Of NVIDIA's drivers, the newest: a program that faults in a loop writes thousands.
MAX_KERNEL_LOG_LINES = 2000
# An error of the last two hours is judged as what it is (the window of Azure's node health checks). After that the
# GPU has shown what it is worth in all other checks: a warning for a week, then only counted.
XID_RECENT_S = 2 * 3600.0
XID_FORGOTTEN_S = 7 * 86400.0

# -- GPU memory (NVIDIA DCGM, nvvs/src/Software.cpp: retired pages, row remaps) ------------------------------
RETIRED_PAGES_FAIL = 63
RETIRED_PAGES_WARN = 15
REMAPPED_ROWS_FAIL = 512

# -- Clocks: bits of clocks_event_reasons.active (nvml.h, nvmlClocksEventReasons*) ---------------------------
# Only these four make DCGM's diagnostic fail; idle 0x1, application clocks 0x2, power cap 0x4, sync boost 0x10 and
# display 0x100 are normal.
HW_SLOWDOWN = 0x8
SW_THERMAL = 0x20
HW_THERMAL = 0x40
POWER_BRAKE = 0x80
POWER_CAP = 0x4  # normal under load

# -- PCIe ----------------------------------------------------------------------------------------------------
# Lanes that card and slot have between them: no discrete GPU of today's CUDA has fewer than four (MX and laptop
# boards; unverified), so it is a riser, a slot for other cards, or a VM's virtual slot.
PCIE_LANES_WARN = 2

# -- Temperature ---------------------------------------------------------------------------------------------
# temperature.gpu.tlimit: degrees left before the GPU slows down (drivers from 535, boards that report it).
TLIMIT_FAIL_C = 0
TLIMIT_WARN_C = 5
# Where tlimit is not reported: data-centre boards slow down at 83-90 C.
TEMPERATURE_WARN_C = 85

# -- Numbers from the GPU ------------------------------------------------------------------------------------
# The checked product: rows and columns of the result, terms in each sum, largest entry, by type. Entries are whole
# numbers, chosen so that every sum of any of the terms can be written exactly in the type that may hold it: 512 * 64 =
# 32768 < 2^24 in fp32 (TF32 products sum in fp32), 256 * 1 = 256 = 2^8 in bf16, in which cuBLAS may add up parts. So
# no tolerance is needed, in whatever order a library adds.
PRODUCTS = {"float32": (512, 512, 8), "bfloat16": (512, 256, 1)}
# Largest difference over the largest reference value. cuDNN may pick an algorithm that rounds (Winograd, FFT).
CONVOLUTION_TOLERANCE = 1e-3
# fp32, TF32 off. Ten steps of an LSTM on two libraries differ by about 1e-6 (measured, CPU against a formula).
LSTM_TOLERANCE = 1e-3

# What people are told of level full: as long as DCGM's and other fleets' tests of that reach take (unverified here).
FULL_TAKES = "2 to 5 min"

# -- Burning -------------------------------------------------------------------------------------------------
BURN_MINUTES = 10.0
# Half a minute is about 30 readings of nvidia-smi, the least that a share of 5 % can be told from. A week is enough.
BURN_MINUTES_RANGE = (0.5, 10_080.0)
# Of a GPU's free memory, filled with operands (gpu-burn takes as much).
BURN_MEMORY_SHARE = 0.9
# No sign of life from a device for so long: it hangs. A product takes a tenth of a second, filling a memory a second.
BURN_SILENCE_S = 60.0
# Start, contexts, filling the memory and the end of a load, beyond the time that it is to last.
BURN_SLACK_S = 180.0
# Largest entry of the operands, by type. Whole numbers, 8192 terms a sum: 8192 * 15 * 15 = 1,843,200 < 2^21 is exact in
# the fp32 in which tensor cores add, with three bits to spare; in fp16 8192 * 2 * 2 = 32,768 is also below its largest
# number, 65,504. So the result, rounded once to its type, does not depend on the order in which a library adds.
BURN_ENTRY = {"float32": 15, "bfloat16": 15, "float16": 2}
# The course of the speed: so many equal parts of the time.
BURN_SLICES = 20
# nvidia-smi while it lasts.
BURN_SAMPLE_EVERY_S = 1.0
BURN_COURSE_POINTS = 120
# It gave no answer in its time so often without a break: the driver hangs, and asking on would not help.
BURN_TIMEOUTS_IN_A_ROW = 3
# Fewer readings than this, or a smaller share of those that were asked for, prove nothing. Our choice.
BURN_LEAST_SAMPLES = 10
BURN_READABLE_SHARE = 0.9
# NVIDIA DCGM's limit for PCIe replays in its PCIe test (nvvs: max_pcie_replays).
BURN_REPLAYS_FAIL = 80
# Share of the readings with a thermal bit. A warm host touches its limit now and then; longer, its cooling is too weak.
BURN_THERMAL_SHARE = 0.05
# Beginning and end: so many of the BURN_SLICES parts of the time. They are compared by the limits for equal GPUs
# (SLOWER_WARN, SLOWER_FAIL): a GPU loses a few per cent while it warms up (unverified), and a tenth is too much.
BURN_ENDS = 2
# Xids that a program causes, not the GPU: 13 and 31 (its own bug), 43 (stopped), 45 (cleaned up after it).
XIDS_OF_PROGRAMS = frozenset({13, 31, 43, 45})

# -- GPUs of one kind, in one host or in many (--merge) ----------------------------------------------------------
# Below the median of equal GPUs, as a fraction. Equal GPUs differ by a few per cent (power limit, temperature); a GPU
# that lacks a tenth is worth a look, one that lacks a quarter is broken or throttled. Chosen, not measured here: no
# fleet was available.
SLOWER_WARN = 0.10
SLOWER_FAIL = 0.25
# Of two, the median lies in the middle of both: neither can be an outlier.
MEDIAN_LEAST_GPUS = 3

# -- Level full ----------------------------------------------------------------------------------------------
# A step that goes through all memory, or computes at full speed, for one GPU after another; counted for each. Reckoned,
# not measured: seconds on an H200, less than half a minute on a slow GPU with much memory.
STEP_LONG_S = 120.0
# What starts other programs: torch.compile with an empty cache (measured: 10 s, and 47 s beside a full CI run),
# processes that import torch again (workers, NCCL).
STEP_PROGRAMS_S = 300.0
# Products of matrices whose rows hold this many entries of 1 and -1: every sum is at most 256, exact in bf16.
LARGE_PRODUCT_TERMS = 256
PRODUCT_SIZE = 8192
SMALL_PRODUCT_SIZE = 4096
SMALL_GPU_BYTES = 8 << 30
# Of the memory that is free; the rest, and at least this much, is left for kernels and for comparing.
MEMORY_SHARE = 0.9
MEMORY_LEFT_BYTES = 768 << 20
SHARED_MEMORY_SHARE = 0.5  # of a GPU that has no memory of its own (GB10, Jetson)
# Less than this share of all memory tested is told: another process holds the rest.
MEMORY_TESTED_WARN = 0.5
COPY_BYTES = 1 << 30
TRANSFER_BYTES = 256 << 20
PEER_BYTES = 64 << 20
NCCL_BYTES = 256 << 20
NCCL_SILENCE_S = 120
# LSTM and GRU in bf16 or fp16 against fp32: bf16 keeps 8 bits, errors grow over 20 steps and two layers (measured on
# the CPU: 0.02 of the largest value).
AMP_TOLERANCE = 0.1
# Two batches a worker are under way: 192 MiB, three times Docker's default /dev/shm.
WORKERS = 4
WORKER_BATCH_BYTES = 24 << 20
WORKERS_SILENCE_S = 60  # a worker that is not forked imports torch first

# Shares of a reference (references.py). Measured: 73 to 87 % of the dense bf16 peak over eight kinds of data-centre GPU
# (stas00/ml-engineering); one H200 copies at 90 %. DCGM's own minima of bandwidth are 51 to 68 %.
BANDWIDTH_WARN, BANDWIDTH_FAIL = 0.70, 0.50
SPEED_WARN, SPEED_FAIL = 0.60, 0.45
TRANSFER_WARN, TRANSFER_FAIL = 0.70, 0.50
# GB/s of one lane in one direction by PCIe generation, after its line code (PCI-SIG: 2.5, 5, 8, 16, 32 GT/s; 64 GT/s
# with flits, unverified).
PCIE_LANE_GB_S = {1: 0.25, 2: 0.5, 3: 0.985, 4: 1.969, 5: 3.938, 6: 7.563}
# Under load a link runs at the highest generation that GPU and slot have in common. Each generation is twice as fast,
# so two below leave a quarter: a failure, by DCGM's rule for lanes; one below is a warning.
PCIE_GENERATIONS_FAIL = 2
# Of the highest clock, under load.
CLOCK_WARN = 0.80
# NCCL's bus bandwidth in GB/s, all unverified and so only warned about: what every PCIe 3.0 x8 path reaches; and for
# boards whose NVLinks are all wired, by their names: what eight of them reach (from memory of published figures), and
# what fewer must exceed, because more is what their PCIe link could carry at most.
NCCL_WARN_GB_S = 5.0
NCCL_NVLINK_GPUS = 8
NCCL_NVLINK_GB_S = {
    r"\bH[12]00\b(?! (?:PCIe|NVL))": (400.0, 16 * PCIE_LANE_GB_S[5]),
    r"\bA100-SXM": (180.0, 16 * PCIE_LANE_GB_S[4]),
}
