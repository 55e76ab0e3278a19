"""Every cause a check can name: what is wrong in one sentence, which act mends it, what to do, one line to paste.

The ids are Torchtap's own words for states, and stable: a fleet may match on them. `{slots}` are filled from the
values of the result. `{gpus}` is always there ("GPU 1", "GPUs 1 and 3", "the GPU"), and `{index}` for commands.

Texts are written for a person who has been called at night: what is known, then what to do first.
Sources: NVIDIA's documents and the public reports named in docs/selftest.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torchtap.selftest.host import SHARED_MEMORY
from torchtap.selftest.status import Remedy


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """One cause. `says` and `do` are sentences with slots; `paste` is a command, or empty where there is none."""

    says: str
    remedy: Remedy
    do: str
    paste: str = ""

    def fill(self, values: Mapping[str, object]) -> tuple[str, str, str]:
        """(says, do, paste) with their slots filled. A slot without a value shows as `?` and never raises.

        >>> CAUSES["smi_hung"].fill({"waited_s": 20})[0]
        'nvidia-smi gave no answer in 20 s: the driver waits for a GPU that does not respond'
        """
        slots = _Slots(values)
        return self.says.format_map(slots), self.do.format_map(slots), self.paste.format_map(slots)

    def told(self, check_id: str, values: Mapping[str, object]) -> tuple[str, str, str]:
        """(what is wrong, what to do with the line to paste below it, the remedy's id) for a result of this check.

        >>> CAUSES["smi_hung"].told("driver.smi", {"waited_s": 20})[2]
        'reboot_host'
        """
        says, do, paste = self.fill({"gpus": "the GPU", "index": 0, "check": check_id, **values})
        return says, f"{do}\n{paste}" if paste else do, self.remedy.value


# Slots for what is worth adding where it is known, and says nothing where it is not.
OPTIONAL_SLOTS = frozenset({"pci_note", "node_note", "versions", "where", "stuck"})


class _Slots(dict[str, object]):
    def __missing__(self, key: str) -> str:
        return "" if key in OPTIONAL_SLOTS else "?"


_GPUS_ALL = "make up        # or: docker run --gpus all IMAGE"
_KERNEL_LOG = "sudo dmesg | grep -iE 'nvrm|xid'"

CAUSES: dict[str, Cause] = {
    # ---- Is there a GPU at all? (device.nodes) -----------------------------------------------------------------
    "no_gpu_in_host": Cause(
        says="this machine has no NVIDIA GPU: no PCI device, no kernel driver, no /dev/nvidia*",
        remedy=Remedy.ATTACH_GPU,
        do="Use a machine (or a VM type) with a GPU. If none is wanted here, say so and the GPU checks are skipped",
        paste="torchtap selftest --device cpu",
    ),
    "no_gpu_in_container": Cause(
        says="this container has no GPU, and its host shows no NVIDIA GPU and no NVIDIA driver either",
        remedy=Remedy.ATTACH_GPU,
        do="Run nvidia-smi on the host. If it works there, recreate the container with a GPU; if there is none, "
        "use another host, or say that none is wanted: torchtap selftest --device cpu",
        paste=_GPUS_ALL,
    ),
    "container_without_gpu": Cause(
        says="the host runs the NVIDIA driver, but this container was started without a GPU",
        remedy=Remedy.RECREATE_CONTAINER,
        do="On the host, in the Torchtap folder, recreate the container with the GPU",
        paste=_GPUS_ALL,
    ),
    "gpu_hidden_from_container": Cause(
        says="NVIDIA_VISIBLE_DEVICES={visible} hides every GPU from this container",
        remedy=Remedy.RECREATE_CONTAINER,
        do="Recreate the container with the GPUs it may use",
        paste="docker run --gpus all -e NVIDIA_VISIBLE_DEVICES=all IMAGE",
    ),
    "nothing_visible": Cause(
        says="no /dev/nvidia* here, and neither /sys nor nvidia-smi says whether this host has a GPU",
        remedy=Remedy.RECREATE_CONTAINER,
        do="Run nvidia-smi on the host. If it works there, the container was started without a GPU: recreate it",
        paste=_GPUS_ALL,
    ),
    "driver_not_loaded": Cause(
        says="the NVIDIA kernel driver is not loaded{pci_note}",
        remedy=Remedy.INSTALL_DRIVER,
        do="On the host: load the driver. If that fails, install it (580 or newer suits the default image); after a "
        "kernel update a reboot is often all it needs",
        paste="sudo modprobe nvidia && nvidia-smi",
    ),
    "nouveau_bound": Cause(
        says="the GPU at {address} is held by the nouveau driver, not by NVIDIA's",
        remedy=Remedy.INSTALL_DRIVER,
        do="On the host: install NVIDIA's driver, keep nouveau out, reboot",
        paste="echo 'blacklist nouveau' | sudo tee /etc/modprobe.d/no-nouveau.conf",
    ),
    "vfio_bound": Cause(
        says="the GPU at {address} is reserved for a virtual machine (vfio-pci), so this host cannot use it",
        remedy=Remedy.CONFIGURE_HOST,
        do="Run this inside that virtual machine, or give the GPU back to the host",
    ),
    "nodes_missing": Cause(
        says="the NVIDIA driver is loaded, but its device nodes are missing: no /dev/nvidia*",
        remedy=Remedy.LOAD_DRIVER,
        do="Create the nodes on the host",
        paste="sudo nvidia-modprobe -u -c=0",
    ),
    "no_permission": Cause(
        says="the NVIDIA device nodes may not be opened by this user (uid {uid}){node_note}",
        remedy=Remedy.FIX_PERMISSIONS,
        do="Join the group that owns the nodes, or let SELinux allow containers to use devices; then start again",
        paste="ls -l /dev/nvidia*; sudo setsebool -P container_use_devices=true",
    ),
    "devices_revoked": Cause(
        says="the container lost its right to use the GPU devices{node_note} (often after systemctl daemon-reload)",
        remedy=Remedy.RECREATE_CONTAINER,
        do="Recreate the container: a restart is not enough. Against its return use CDI, or --device for each node",
        paste="docker run --device nvidia.com/gpu=all IMAGE  # or: make down && make up",
    ),
    "node_stale": Cause(
        says="{node} exists, but no driver answers behind it ({errno})",
        remedy=Remedy.LOAD_DRIVER,
        do="The kernel driver was unloaded or replaced. On the host: load it, then recreate the container",
        paste="sudo modprobe nvidia && nvidia-smi",
    ),
    "uvm_missing": Cause(
        says="/dev/nvidia-uvm is missing: CUDA cannot start without it, although nvidia-smi works",
        remedy=Remedy.LOAD_DRIVER,
        do="On the host: create the node (this loads its module too), then recreate the container",
        paste="sudo nvidia-modprobe -u -c=0",
    ),
    "uvm_not_loaded": Cause(
        says="the kernel module nvidia-uvm is not loaded: CUDA cannot start without it, although nvidia-smi works",
        remedy=Remedy.LOAD_DRIVER,
        do="On the host: load it, which creates its node; then recreate the container",
        paste="sudo nvidia-modprobe -u -c=0",
    ),
    "mig_nodes_missing": Cause(
        says="MIG is on, and the nodes of its instances (/dev/nvidia-caps) are not in this container",
        remedy=Remedy.RECREATE_CONTAINER,
        do="Recreate the container with an instance: its GPU and its number, or its UUID (nvidia-smi -L on the host)",
        paste="docker run --gpus '\"device=0:0\"' IMAGE",
    ),
    # ---- nvidia-smi and the driver (driver.smi, driver.version) ------------------------------------------------
    "smi_hung": Cause(
        says="nvidia-smi gave no answer in {waited_s} s: the driver waits for a GPU that does not respond",
        remedy=Remedy.REBOOT_HOST,
        do="Look for Xid 119 in the host's kernel log, then reboot the host; nothing inside a container mends this",
        paste=_KERNEL_LOG,
    ),
    "smi_missing": Cause(
        says="nvidia-smi is not here: the driver's tools were not added to this container",
        remedy=Remedy.RECREATE_CONTAINER,
        do="CUDA can work without it; monitoring cannot. Recreate the container with the utility capability",
        paste="docker run --gpus all -e NVIDIA_DRIVER_CAPABILITIES=all IMAGE",
    ),
    "smi_broken": Cause(
        says="nvidia-smi cannot be started: {error}",
        remedy=Remedy.FIX_IMAGE,
        do="Another file of that name stands first on PATH. Remove it; the driver's own comes from the host",
        paste="type -a nvidia-smi",
    ),
    "smi_crashed": Cause(
        says="nvidia-smi was ended by a signal ({signal}) before it answered",
        remedy=Remedy.REBOOT_HOST,
        do="Driver files that do not belong together, or a GPU in a bad state. Read the kernel log, then reboot",
        paste=_KERNEL_LOG,
    ),
    "smi_too_long": Cause(
        says="nvidia-smi printed more than {size} and did not come to an end, so it was ended: it proves nothing",
        remedy=Remedy.RUN_AGAIN,
        do="No machine has so much to say: another program of that name comes first on PATH, or it is broken",
        paste="type -a nvidia-smi; nvidia-smi -L | head",
    ),
    "smi_unreadable": Cause(
        says="nvidia-smi answered something that Torchtap cannot read, so it proves nothing",
        remedy=Remedy.RUN_AGAIN,
        do="Run nvidia-smi by hand. If its answer looks right, please report it together with this output",
        paste="nvidia-smi -L; nvidia-smi",
    ),
    "smi_exit_code": Cause(
        says="nvidia-smi printed its answer and then ended with exit code {rc}, which has no known meaning",
        remedy=Remedy.RUN_AGAIN,
        do="Run it by hand and read its last lines",
        paste="nvidia-smi; echo $?",
    ),
    "field_refused": Cause(
        says="this driver's nvidia-smi does not know the field {field}",
        remedy=Remedy.REPORT_BUG,
        do="This says nothing about the GPU: ask again without the field",
    ),
    "usage_error": Cause(
        says="nvidia-smi refused the way it was asked",
        remedy=Remedy.REPORT_BUG,
        do="This says nothing about the GPU. Please report the command and this output",
        paste="nvidia-smi --version",
    ),
    "driver_library_mismatch": Cause(
        says="the driver's libraries and its kernel module are of different versions{versions}",
        remedy=Remedy.REBOOT_HOST,
        do="The host's driver was updated while the old one was loaded: reboot the host, then recreate the container. "
        "If only one container has it, remove the driver libraries from its image",
        paste="cat /proc/driver/nvidia/version",
    ),
    "driver_libraries_missing": Cause(
        says="the driver's libraries (libnvidia-ml, libcuda) are not in this container",
        remedy=Remedy.RECREATE_CONTAINER,
        do="Start the container through the NVIDIA Container Toolkit: plain --device options add no libraries",
        paste=_GPUS_ALL,
    ),
    "no_devices": Cause(
        says="the driver is loaded, but it could bring up no GPU",
        remedy=Remedy.REBOOT_HOST,
        do="Look for RmInitAdapter in the host's kernel log. Blackwell GPUs need the open kernel modules; otherwise "
        "power-cycle the host",
        paste=_KERNEL_LOG,
    ),
    "wsl_blocked": Cause(
        says="Windows does not let WSL use the GPU",
        remedy=Remedy.CONFIGURE_HOST,
        do="In Windows: take the GPU out of TCC mode, which WSL cannot use (nvidia-smi -dm 0); else update its NVIDIA "
        "driver and WSL",
        paste="wsl --update        # in Windows",
    ),
    "wsl_no_gpu": Cause(
        says="WSL shows no GPU: there is no /dev/dxg",
        remedy=Remedy.CONFIGURE_HOST,
        do="In Windows: install or update NVIDIA's driver and WSL; WSL 1 has no GPU (wsl --set-version)",
        paste="wsl --update        # in Windows",
    ),
    "wsl_linux_driver": Cause(
        says="a Linux driver is installed in WSL or its image ({path}), and hides the one that Windows brings",
        remedy=Remedy.FIX_IMAGE,
        do="Remove NVIDIA driver packages there; WSL's own libcuda is in /usr/lib/wsl/lib",
        paste="dpkg -l | grep -iE 'nvidia|libcuda'",
    ),
    "foreign_nvml": Cause(
        says="nvidia-smi and libnvidia-ml do not belong together: one of them was built into the image",
        remedy=Remedy.FIX_IMAGE,
        do="Remove NVIDIA driver packages from the image; the driver's files come from the host at start",
        paste="dpkg -l | grep -iE 'nvidia|libcuda'",
    ),
    "libcuda_not_injected": Cause(
        says="nvidia-smi says CUDA Version: N/A, so libcuda was not added to this container",
        remedy=Remedy.RECREATE_CONTAINER,
        do="Recreate the container with the compute capability",
        paste="docker run --gpus all -e NVIDIA_DRIVER_CAPABILITIES=all IMAGE",
    ),
    "wrong_libcuda": Cause(
        says="nvidia-smi says CUDA Version: ERR!, so another libcuda comes first on the loader path",
        remedy=Remedy.FIX_ENVIRONMENT,
        do="Take stubs and compat folders out of LD_LIBRARY_PATH",
        paste="unset LD_LIBRARY_PATH",
    ),
    "power_cable": Cause(
        says="{gpus}: power cables are not properly attached",
        remedy=Remedy.CHECK_HARDWARE,
        do="Switch the host off and check the GPU's power cables",
    ),
    "interrupt_issue": Cause(
        says="the driver gets no interrupts from {gpus}",
        remedy=Remedy.REBOOT_HOST,
        do="Read the kernel log, then reboot the host; look for a BIOS update if it returns",
        paste=_KERNEL_LOG,
    ),
    "inforom_corrupt": Cause(
        says="the configuration store (infoROM) of {gpus} is damaged; the GPU itself may work",
        remedy=Remedy.REPLACE_GPU,
        do="Reset the GPU. If the message stays, ask the vendor to restore the infoROM or replace the GPU",
        paste="sudo nvidia-smi --gpu-reset -i {index}",
    ),
    "nvml_error": Cause(
        says="the driver's management library does not start: {reason}",
        remedy=Remedy.REBOOT_HOST,
        do="Read the kernel log, then reboot the host",
        paste=_KERNEL_LOG,
    ),
    "driver_too_old": Cause(
        says="driver {driver} is too old: {build} needs {floor} or newer, so torch.cuda.is_available() is False",
        remedy=Remedy.CHANGE_VARIANT,
        do="Use the image variant for this driver, or update the host's driver",
        paste="VARIANT={fits} make up",
    ),
    "driver_too_old_for_all": Cause(
        says="driver {driver} is too old: {build} needs {floor} or newer, and no image variant runs with this one",
        remedy=Remedy.UPDATE_DRIVER,
        do="Update the host's driver (580 or newer suits the default image), then reboot the host",
        paste="nvidia-smi --query-gpu=driver_version --format=csv",
    ),
    # ---- State of each GPU (gpu.state) -------------------------------------------------------------------------
    "gpu_lost": Cause(
        says='{gpus}: no answer any more ("GPU is lost")',
        remedy=Remedy.REBOOT_HOST,
        do="Stop the work on this host and reboot it. If it returns: check seating, power and cooling, then replace",
        paste=_KERNEL_LOG,
    ),
    "gpu_fell_off_bus": Cause(
        says="{gpus}: fell off the PCIe bus; known to the driver, but out of its reach",
        remedy=Remedy.REBOOT_HOST,
        do="Switch the host off and on (a warm reboot may not be enough). If it returns: check seating and power",
        paste=_KERNEL_LOG,
    ),
    "gpu_requires_reset": Cause(
        says="{gpus}: a reset is needed before it can be used",
        remedy=Remedy.RESET_GPU,
        do="On the host: end every process on it and reset it, or reboot the host",
        paste="sudo nvidia-smi --gpu-reset -i {index}",
    ),
    "recovery_needed": Cause(
        says="{gpus}: the driver asks for an action: {action}",
        remedy=Remedy.RESET_GPU,
        do="Do on the host what the driver asks for (for a reset: end every process on that GPU first)",
        paste="sudo nvidia-smi --gpu-reset -i {index}",
    ),
    "gpu_unreadable": Cause(
        says="{gpus}: an error instead of a value ({field})",
        remedy=Remedy.RESET_GPU,
        do="The GPU or its driver is in a bad state. On the host: reset the GPU or reboot",
        paste="sudo nvidia-smi --gpu-reset -i {index}",
    ),
    "cells_denied": Cause(
        says="{gpus}: nvidia-smi tells this user (uid {uid}) too little to know its state ([Insufficient Permissions])",
        remedy=Remedy.FIX_PERMISSIONS,
        do="Ask on the host, as root; or give this container the whole GPU and not one MIG instance of it",
        paste="sudo nvidia-smi -q -i {index}",
    ),
    "not_told": Cause(
        says="{gpus}: nvidia-smi does not report {field}, though {why}: nobody knows whether it is well",
        remedy=Remedy.RESET_GPU,
        do="Ask for this GPU alone. If it stays silent, reset the GPU, or reboot the host",
        paste="nvidia-smi -q -i {index}",
    ),
    "field_unreadable": Cause(
        says="{gpus}: an error instead of one reading ({field}); the rest can be read",
        remedy=Remedy.CHECK_HARDWARE,
        do="Often a fan or power sensor. Watch it; look at the card at the next opportunity",
        paste="nvidia-smi -q -i {index}",
    ),
    "mig_no_instance": Cause(
        says="{gpus}: MIG is on, but no MIG instance is here, so CUDA sees no device",
        remedy=Remedy.CONFIGURE_GPU,
        do="Create an instance on the host (or give this container one of those that exist), or switch MIG off: -mig 0",
        paste="sudo nvidia-smi mig -i {index} -cgi 0 -C",
    ),
    "compute_prohibited": Cause(
        says="{gpus}: compute mode Prohibited, so CUDA may not use it",
        remedy=Remedy.CONFIGURE_GPU,
        do="Allow compute on the host",
        paste="sudo nvidia-smi -i {index} -c DEFAULT",
    ),
    "compute_exclusive": Cause(
        says="{gpus}: compute mode {mode}: one process at a time, so a second notebook will fail",
        remedy=Remedy.CONFIGURE_GPU,
        do="Fine if intended. Otherwise, on the host",
        paste="sudo nvidia-smi -i {index} -c DEFAULT",
    ),
    "fabric_not_ready": Cause(
        says="{gpus}: the NVSwitch fabric is not ready ({state})",
        remedy=Remedy.CONFIGURE_HOST,
        do="Start the fabric manager on the host; it must be of the driver's exact version",
        paste="sudo systemctl restart nvidia-fabricmanager",
    ),
    # ---- GPU memory (gpu.ecc) ----------------------------------------------------------------------------------
    "ecc_uncorrected": Cause(
        says="{gpus}: {count} uncorrected memory errors since the driver was loaded; results may be wrong",
        remedy=Remedy.RESET_GPU,
        do="Stop work on it; reset the GPU or reboot the host. If errors return, replace the GPU",
        paste="sudo nvidia-smi --gpu-reset -i {index}",
    ),
    "ecc_uncorrected_earlier": Cause(
        says="{gpus}: {count} uncorrected memory errors over its life, none since the driver was loaded",
        remedy=Remedy.CHECK_HARDWARE,
        do="Usable. Watch it, and replace it if the number grows",
        paste="nvidia-smi -q -d ECC -i {index}",
    ),
    "ecc_threshold": Cause(
        says="{gpus}: more memory errors in SRAM than NVIDIA allows",
        remedy=Remedy.REPLACE_GPU,
        do="Take it out of use and ask the vendor for a replacement",
        paste="nvidia-smi -q -d ECC -i {index}",
    ),
    "remap_pending": Cause(
        says="{gpus}: bad memory rows, replaced only at the next reset",
        remedy=Remedy.RESET_GPU,
        do="On the host: end every process on it, then reset it, or reboot the host",
        paste="sudo nvidia-smi --gpu-reset -i {index}",
    ),
    "remap_failed": Cause(
        says="{gpus}: a bad memory row could not be replaced, no spare rows are left there",
        remedy=Remedy.REPLACE_GPU,
        do="Take it out of use and ask the vendor for a replacement",
        paste="nvidia-smi -q -d ROW_REMAPPER -i {index}",
    ),
    "remap_exhausted": Cause(
        says="{gpus}: {count} memory rows replaced after uncorrectable errors, at or above the limit of {limit}",
        remedy=Remedy.REPLACE_GPU,
        do="Ask the vendor for a replacement",
        paste="nvidia-smi -q -d ROW_REMAPPER -i {index}",
    ),
    "retirement_pending": Cause(
        says="{gpus}: bad memory pages, retired only at the next reset",
        remedy=Remedy.RESET_GPU,
        do="On the host: end every process on it, then reset it, or reboot the host",
        paste="sudo nvidia-smi --gpu-reset -i {index}",
    ),
    "pages_retired": Cause(
        says="{gpus}: {count} memory pages retired after double-bit errors (limit {limit})",
        remedy=Remedy.REPLACE_GPU,
        do="Plan its replacement",
        paste="nvidia-smi -q -d PAGE_RETIREMENT -i {index}",
    ),
    # ---- Speed (gpu.throttle, gpu.pcie) ------------------------------------------------------------------------
    "thermal_slowdown": Cause(
        says="{gpus}: slowed down by heat",
        remedy=Remedy.CHECK_HARDWARE,
        do="Check fans, dust and air flow",
        paste="nvidia-smi -q -d PERFORMANCE,TEMPERATURE -i {index}",
    ),
    "too_hot": Cause(
        says="{gpus}: hot, {temperature}",
        remedy=Remedy.CHECK_HARDWARE,
        do="Check fans, dust and air flow; it will slow down soon",
        paste="nvidia-smi -q -d TEMPERATURE -i {index}",
    ),
    "power_brake": Cause(
        says="{gpus}: held back by the power brake, because the host's power supply cannot keep up",
        remedy=Remedy.CHECK_HARDWARE,
        do="Check power supplies and the GPU's power cables",
        paste="nvidia-smi -q -d PERFORMANCE,POWER -i {index}",
    ),
    "hw_slowdown": Cause(
        says="{gpus}: held back by the hardware (heat, power or a brake signal)",
        remedy=Remedy.CHECK_HARDWARE,
        do="Check cooling and power supply",
        paste="nvidia-smi -q -d PERFORMANCE -i {index}",
    ),
    "pcie_narrow": Cause(
        says="{gpus}: {width} of {max_width} PCIe lanes in use, so copies are slower",
        remedy=Remedy.CHECK_HARDWARE,
        do="Reseat the card; check riser, slot and BIOS. Some slots are wired that way by design",
        paste="nvidia-smi -q -d PCIE -i {index}",
    ),
    "pcie_slot": Cause(
        says="{gpus}: card and slot have no more than {max_width} PCIe lanes between them, so copies are slow",
        remedy=Remedy.CHECK_HARDWARE,
        do="Put the card into another slot, without a riser. In a VM the width may be that of the virtual slot",
        paste="nvidia-smi -q -d PCIE -i {index}",
    ),
    "vgpu_unlicensed": Cause(
        says="this virtual GPU has no licence: it works now and slows down after some minutes",
        remedy=Remedy.CONFIGURE_HOST,
        do="Give the VM its licence token and restart nvidia-gridd",
        paste="nvidia-smi -q | grep -i license",
    ),
    "gpu_in_use": Cause(
        says="{gpus}: in use already, so there is less memory and speed for you",
        remedy=Remedy.FREE_GPU,
        do="Fine if it is your own work. Otherwise find the process (from a container only the host sees it)",
        paste="nvidia-smi",
    ),
    "visible_not_here": Cause(
        says="CUDA_VISIBLE_DEVICES={visible} names {missing}, which is not here: CUDA drops it and all that follow",
        remedy=Remedy.FIX_ENVIRONMENT,
        do="Name only GPUs that nvidia-smi -L lists, or unset it",
        paste="unset CUDA_VISIBLE_DEVICES; nvidia-smi -L",
    ),
    "nvlink_inactive": Cause(
        says="{gpus}: fewer NVLinks are up than on the others of its kind, so GPUs talk slowly or not at all",
        remedy=Remedy.CHECK_HARDWARE,
        do="Reset all GPUs together, or reboot the host. If it stays: check bridges or ask the vendor",
        paste="nvidia-smi nvlink -s",
    ),
    "nvlink_all_down": Cause(
        says="{gpus}: no NVLink is up, although these GPUs are joined by an NVSwitch",
        remedy=Remedy.CONFIGURE_HOST,
        do="Restart the fabric manager on the host, then reset all GPUs together; in a VM check its NVSwitch partition",
        paste="sudo systemctl restart nvidia-fabricmanager; nvidia-smi nvlink -s",
    ),
    "nvlink_down": Cause(
        says="{gpus}: some NVLinks are down, and on these boards all of them are wired",
        remedy=Remedy.CHECK_HARDWARE,
        do="Reset all GPUs together, or reboot the host. If it stays: ask the vendor",
        paste="nvidia-smi nvlink -s",
    ),
    "nvlink_partly": Cause(
        says="{gpus}: some NVLinks are down, on all GPUs of the kind alike",
        remedy=Remedy.CHECK_HARDWARE,
        do="Normal where only some bridges are fitted, and on boards that lead out only some links. Otherwise check "
        "the bridges",
        paste="nvidia-smi nvlink -s",
    ),
    "firmware_differs": Cause(
        says="{gpus}: {what} differs from that of the other {name}",
        remedy=Remedy.CHECK_HARDWARE,
        do="Works; speed and limits may differ. Ask the vendor for one version on all of them",
        paste="nvidia-smi --query-gpu=index,name,vbios_version,inforom.img --format=csv",
    ),
    # ---- The host (host.*) -------------------------------------------------------------------------------------
    "shm_small": Cause(
        says=f"{SHARED_MEMORY} holds {{room}}: too little for many DataLoader workers, and for NCCL",
        remedy=Remedy.RECREATE_CONTAINER,
        do="Recreate the container with more (compose.yaml has it; Kubernetes: an emptyDir of medium Memory)",
        paste="docker run --gpus all --shm-size 8g IMAGE",
    ),
    "shm_too_small": Cause(
        says=f"{SHARED_MEMORY} holds {{room}}: NCCL fails between {{gpu_count}} GPUs, DataLoader workers die",
        remedy=Remedy.RECREATE_CONTAINER,
        do="Recreate the container with more (compose.yaml has it; Kubernetes: an emptyDir of medium Memory)",
        paste="docker run --gpus all --shm-size 8g IMAGE",
    ),
    "memlock_limited": Cause(
        says="{locked}: NCCL may not lock the memory that it shares between GPUs and over InfiniBand",
        remedy=Remedy.RECREATE_CONTAINER,
        do="Recreate the container without the limit (compose.yaml has it); on a bare host see limits.conf",
        paste="docker run --gpus all --ulimit memlock=-1 --ulimit stack=67108864 IMAGE",
    ),
    "few_open_files": Cause(
        says="{files}: workers of a DataLoader pass tensors as open files, and may run out of them",
        remedy=Remedy.RECREATE_CONTAINER,
        do="Raise the limit; or in Python: torch.multiprocessing.set_sharing_strategy('file_system')",
        paste="docker run --ulimit nofile=65536 IMAGE        # a shell: ulimit -n 65536",
    ),
    # ---- Kernel log --------------------------------------------------------------------------------------------
    "gsp_timeout": Cause(
        says="the GPU's firmware (GSP) stopped answering the driver (Xid 119/120)",
        remedy=Remedy.RESET_GPU,
        do="Reset the GPU or reboot the host. If it returns, update the driver",
        paste="sudo nvidia-smi --gpu-reset",
    ),
    "driver_blocked": Cause(
        says="{task} waits in the driver for more than {waited_s} s, as for a GPU that does not respond",
        remedy=Remedy.REBOOT_HOST,
        do="Look for an Xid in the host's kernel log, then reboot the host",
        paste=_KERNEL_LOG,
    ),
    "pcie_error": Cause(
        says="{gpus}: uncorrected errors on the PCIe link",
        remedy=Remedy.CHECK_HARDWARE,
        do="Reboot the host. If it returns: reseat the card, check riser, slot and power",
        paste="sudo dmesg | grep -i aer",
    ),
    "init_failed": Cause(
        says="the driver could not start a GPU (RmInitAdapter failed)",
        remedy=Remedy.REBOOT_HOST,
        do="Power-cycle the host. Blackwell GPUs need the open kernel modules",
        paste=_KERNEL_LOG,
    ),
    "hmm_error": Cause(
        says="nvidia-uvm cannot reserve memory addresses (HMM, err -34), so CUDA does not start",
        remedy=Remedy.CONFIGURE_HOST,
        do="As root on the host, switch HMM off and reboot (or boot with nokaslr)",
        paste="echo options nvidia_uvm uvm_disable_hmm=1 >> /etc/modprobe.d/uvm.conf",
    ),
    "nvlink_error": Cause(
        says="the kernel log shows NVLink or NVSwitch errors (Xid 74, SXid)",
        remedy=Remedy.CHECK_HARDWARE,
        do="Reset the GPUs; if it returns, check bridges and cables",
        paste="nvidia-smi nvlink -s",
    ),
    "xid_reset": Cause(
        says="the kernel log shows Xid {xid}, which asks for a reset of the GPU",
        remedy=Remedy.RESET_GPU,
        do="End every process on the GPU and reset it, or reboot the host",
        paste="sudo nvidia-smi --gpu-reset",
    ),
    "xid_earlier": Cause(
        says="{gpus}: the kernel log shows an error {age} ago ({what}), and none since",
        remedy=Remedy.CHECK_HARDWARE,
        do="Usable, as the other checks say. If it returns, reset the GPU or reboot the host, and look at the hardware",
        paste=_KERNEL_LOG,
    ),
    "xid_other": Cause(
        says="the kernel log shows Xid {xid}",
        remedy=Remedy.RUN_AGAIN,
        do="Look the number up in NVIDIA's list of Xid errors",
        paste=_KERNEL_LOG,
    ),
    # ---- libcuda (lib.libcuda) ---------------------------------------------------------------------------------
    "libcuda_missing": Cause(
        says="libcuda.so.1 is not here, so CUDA cannot start: {capabilities}",
        remedy=Remedy.RECREATE_CONTAINER,
        do="Recreate the container with the GPU and the compute capability. On a bare host, reinstall the driver",
        paste="docker run --gpus all -e NVIDIA_DRIVER_CAPABILITIES=all IMAGE",
    ),
    "libcuda_stub": Cause(
        says="libcuda.so.1 is the toolkit's stub ({path}), which is for linking only",
        remedy=Remedy.FIX_ENVIRONMENT,
        do="Take the stubs folder out of LD_LIBRARY_PATH",
        paste="unset LD_LIBRARY_PATH",
    ),
    "libcuda_not_given": Cause(
        says="NVIDIA_DRIVER_CAPABILITIES={capabilities} lacks compute, and libcuda is here all the same ({path})",
        remedy=Remedy.RECREATE_CONTAINER,
        do="It came with the image, and works only with the host's driver of its version; or by CDI, which does not "
        "read the variable. Recreate the container with the compute capability",
        paste="docker run --gpus all -e NVIDIA_DRIVER_CAPABILITIES=all IMAGE",
    ),
    "libcuda_compat": Cause(
        says="libcuda.so.1 comes from a compat package in the image ({path}), not from the host's driver",
        remedy=Remedy.FIX_IMAGE,
        do="Works on data-centre GPUs only. Remove the compat folder from the loader path",
        paste="unset LD_LIBRARY_PATH        # and: apt-get remove 'cuda-compat-*'",
    ),
    "libcuda_broken": Cause(
        says="libcuda.so.1 is here but cannot be loaded: {error}",
        remedy=Remedy.FIX_IMAGE,
        do="Files of the driver are missing or do not fit. Remove driver files from the image, recreate the container",
        paste="ldconfig -p | grep -E 'libcuda|libnvidia'",
    ),
    # ---- cuInit (cuda.init): codes.py says which code leads here -------------------------------------------------
    "cuda_visible_devices": Cause(
        says="CUDA_VISIBLE_DEVICES={visible} hides every GPU from CUDA",
        remedy=Remedy.FIX_ENVIRONMENT,
        do="Unset it, or set it to GPUs that exist (0, 1, ... or a UUID of nvidia-smi -L)",
        paste="unset CUDA_VISIBLE_DEVICES",
    ),
    "no_cuda_device": Cause(
        says="CUDA finds no GPU that it may use, although the driver answers",
        remedy=Remedy.RECREATE_CONTAINER,
        do="The GPU's device node is not in this container or not readable, or the GPU is being reset. Compare "
        "ls -l /dev/nvidia* here and on the host, then recreate the container",
        paste=_GPUS_ALL,
    ),
    "cuda_incomplete_driver": Cause(
        says="CUDA does not start (cuInit 3): the set of driver libraries in this container is incomplete or mixed",
        remedy=Remedy.FIX_IMAGE,
        do="Remove driver libraries from the image, then recreate the container",
        paste="ldconfig -p | grep -E 'libcuda|libnvidia'",
    ),
    "gpu_busy": Cause(
        says="the GPU is busy or unavailable (CUDA error 46): held by another process, in need of a reset, or a vGPU "
        "without licence",
        remedy=Remedy.FREE_GPU,
        do="End the process that holds it. If there is none, reset the GPU on the host; for a vGPU check its licence",
        paste="nvidia-smi",
    ),
    "gpu_held_alone": Cause(
        says="CUDA may not use the GPU: its compute mode allows one process at a time, and another one has it",
        remedy=Remedy.FREE_GPU,
        do="End the process that holds it; or let several in: sudo nvidia-smi -c DEFAULT on the host",
        paste="nvidia-smi",
    ),
    "vgpu_refused": Cause(
        says="this virtual GPU has no licence, and CUDA does not start on it (CUDA error 46)",
        remedy=Remedy.CONFIGURE_HOST,
        do="Give the VM its licence token and restart nvidia-gridd",
        paste="nvidia-smi -q | grep -i license",
    ),
    "invalid_device_ordinal": Cause(
        says="CUDA_VISIBLE_DEVICES={visible} names a GPU that does not exist (CUDA error 101)",
        remedy=Remedy.FIX_ENVIRONMENT,
        do="Name only GPUs that nvidia-smi -L lists",
        paste="unset CUDA_VISIBLE_DEVICES; nvidia-smi -L",
    ),
    "device_ordinal_doubted": Cause(
        says="CUDA error 101, invalid device: CUDA_VISIBLE_DEVICES={visible} probably names a GPU that is not here",
        remedy=Remedy.FIX_ENVIRONMENT,
        do="Nothing here lists the devices to compare it with: try without it",
        paste="unset CUDA_VISIBLE_DEVICES; nvidia-smi -L",
    ),
    "driver_call_failed": Cause(
        says="the driver's call into the system failed (CUDA error 304), and no security filter is at work here",
        remedy=Remedy.REBOOT_HOST,
        do="Often a broken GPU beside good ones: look for it in the kernel log, and try each GPU alone with "
        "CUDA_VISIBLE_DEVICES; then reboot the host",
        paste=_KERNEL_LOG,
    ),
    "os_call_failed": Cause(
        says="the driver's call into the system failed (CUDA error 304): a security profile, or a broken GPU",
        remedy=Remedy.CONFIGURE_HOST,
        do="Try without the security profile. If it stays, look for a GPU error in the host's kernel log",
        paste="docker run --gpus all --security-opt seccomp=unconfined IMAGE",
    ),
    "fabric_manager_missing": Cause(
        says="the GPUs wait for their NVSwitch fabric (CUDA error 802: system not yet initialized)",
        remedy=Remedy.CONFIGURE_HOST,
        do="Start the fabric manager on the host; it must be of the driver's exact version. A host without NVSwitch: "
        "boot with nokaslr, or set uvm_disable_hmm=1 for nvidia_uvm",
        paste="sudo systemctl restart nvidia-fabricmanager",
    ),
    "not_ready_without_fabric": Cause(
        says="CUDA is not ready (error 802), and no NVSwitch fabric is in its way: it is up, or this board has none",
        remedy=Remedy.CONFIGURE_HOST,
        do="Usually nvidia-uvm finds no memory addresses: as root on the host, switch HMM off and reboot (or boot with "
        "nokaslr). On an NVSwitch host, see that the fabric manager is of the driver's exact version",
        paste="echo options nvidia_uvm uvm_disable_hmm=1 >> /etc/modprobe.d/uvm.conf",
    ),
    "compat_not_supported": Cause(
        says="a cuda-compat package comes first on the loader path, and this GPU does not support it (CUDA error 804)",
        remedy=Remedy.FIX_ENVIRONMENT,
        do="Take the compat folder out of the loader path; for good, remove it from the image",
        paste="unset LD_LIBRARY_PATH        # and: rm -rf /usr/local/cuda/compat",
    ),
    "cuda_unknown_error": Cause(
        says="CUDA does not start (error 999, unknown error): often nvidia_uvm, or a suspend of the machine",
        remedy=Remedy.LOAD_DRIVER,
        do="On the host: reload nvidia_uvm (no process may use the GPU), or reboot; then recreate the container",
        paste="sudo rmmod nvidia_uvm; sudo nvidia-modprobe -u -c=0",
    ),
    "cuda_error": Cause(
        says="CUDA does not start: error {code} ({name})",
        remedy=Remedy.REBOOT_HOST,
        do="Read the host's kernel log; a reboot of the host clears most states",
        paste=_KERNEL_LOG,
    ),
    # ---- torch (torch.*) ---------------------------------------------------------------------------------------
    "torch_missing": Cause(
        says="PyTorch cannot be imported: {error}",
        remedy=Remedy.REINSTALL_TORCH,
        do="In the image a package of yours is in its way: uninstall it, or all of yours. Elsewhere install it again",
        paste="torchtap-env reset    # elsewhere: pip install --force-reinstall torch",
    ),
    "cpu_only_build": Cause(
        says="this PyTorch ({torch}) is built without CUDA, so it can use no GPU",
        remedy=Remedy.REINSTALL_TORCH,
        do="Install the CUDA wheel (a local index or mirror often serves the +cpu one); in the image, use a cu variant",
        paste="pip install --force-reinstall torch        # or: VARIANT=cu130 make up",
    ),
    "torch_drift": Cause(
        says="PyTorch is not the one this image was built and tested with: {differences}",
        remedy=Remedy.REINSTALL_TORCH,
        do="Remove your own copy and the image's shows again (all of yours: torchtap-env reset); or keep it, knowingly",
        paste="pip uninstall {packages}",
    ),
    "cudnn_drift": Cause(
        says="cuDNN {loaded} is loaded, but {expected} belongs to this PyTorch: another copy comes first",
        remedy=Remedy.FIX_ENVIRONMENT,
        do="Take the other cuDNN off the loader path{where}",
        paste="unset LD_LIBRARY_PATH; python -m pip list | grep -i cudnn",
    ),
    "manifest_unreadable": Cause(
        says="the image's manifest cannot be read, so the versions cannot be compared: {error}",
        remedy=Remedy.FIX_IMAGE,
        do="Rebuild the image, or point TORCHTAP_MANIFEST to the right file",
        paste="python -m json.tool {path}",
    ),
    "torch_cuda_failed": Cause(
        says="CUDA starts, but PyTorch's own start of it fails: {error}",
        remedy=Remedy.REINSTALL_TORCH,
        do="Read the error above; mixed CUDA packages in the Python environment are the usual reason",
        paste="python -m pip list | grep -iE 'nvidia|torch'",
    ),
    "gpus_missing_in_cuda": Cause(
        says="nvidia-smi lists {listed} GPUs, but PyTorch sees {usable}",
        remedy=Remedy.CHECK_HARDWARE,
        do="A GPU that is listed but unusable: look for its Xid in the kernel log; check device nodes and MIG",
        paste=_KERNEL_LOG,
    ),
    "arch_unsupported": Cause(
        says="this PyTorch has no code for {gpus}; it is built for {arch_list}",
        remedy=Remedy.CHANGE_VARIANT,
        do="Use the image variant that has it",
        paste="VARIANT={fits} make up",
    ),
    "arch_unsupported_by_all": Cause(
        says="this PyTorch has no code for {gpus}, and no image variant fits GPU and driver",
        remedy=Remedy.UPDATE_DRIVER,
        do="Update the host's driver (Blackwell needs 570 or newer). Older than Maxwell: no current PyTorch runs on it",
        paste="nvidia-smi --query-gpu=name,driver_version --format=csv",
    ),
    "arch_from_ptx": Cause(
        says="this PyTorch has only PTX for {gpus}: it works, the first start takes minutes",
        remedy=Remedy.CHANGE_VARIANT,
        do="Works. A variant with code for this GPU starts faster",
        paste="VARIANT={fits} make up",
    ),
    # ---- Numbers (gpu.*, cpu.*) --------------------------------------------------------------------------------
    "wrong_numbers": Cause(
        says="{gpus}: wrong numbers, {wrong} of {checked} values differ",
        remedy=Remedy.REPLACE_GPU,
        do="Stop using it: every result is in doubt. Power-cycle the host and run again; if it returns, replace it",
        paste="torchtap selftest --only {check}",
    ),
    "wrong_numbers_cpu": Cause(
        says="the CPU computes wrong numbers: {wrong} of {checked} values differ",
        remedy=Remedy.CHECK_HARDWARE,
        do="Overclocking, bad memory, or a broken PyTorch build. Install PyTorch again; then test the memory",
        paste="python -m pip install --force-reinstall torch",
    ),
    "rnn_differs": Cause(
        says="{gpus}: an LSTM or GRU gives other results than its reference, {wrong} of {checked} values differ",
        remedy=Remedy.REINSTALL_TORCH,
        do="Check that only PyTorch's own cuDNN is loaded; if it is, the GPU is in doubt",
        paste="torchtap selftest --only torch.cudnn --only {check}",
    ),
    "cudnn_mixed": Cause(
        says="cuDNN refuses to work, because files of two versions are loaded: {error}",
        remedy=Remedy.FIX_ENVIRONMENT,
        do="Keep PyTorch's own cuDNN only: no cuDNN package in the image, none in LD_LIBRARY_PATH",
        paste="unset LD_LIBRARY_PATH; ldconfig -p | grep cudnn",
    ),
    "cudnn_refuses_gpu": Cause(
        says="this cuDNN does not work with {gpus}: cuDNN 9.11 and newer need Turing or newer",
        remedy=Remedy.CHANGE_VARIANT,
        do="Use the image variant with an older cuDNN",
        paste="VARIANT=cu126 make up",
    ),
    "cudnn_failed": Cause(
        says="cuDNN fails on {gpus}: {error}",
        remedy=Remedy.REINSTALL_TORCH,
        do="See that only PyTorch's own cuDNN is loaded and that the GPU has free memory; then install PyTorch again",
        paste="torchtap selftest --only torch.cudnn; nvidia-smi",
    ),
    "gpu_memory_full": Cause(
        says="there is no free memory on {gpus}: another process holds it",
        remedy=Remedy.FREE_GPU,
        do="End the process that holds it",
        paste="nvidia-smi",
    ),
    "kernel_missing": Cause(
        says="this PyTorch has no code for a computation on {gpus}: {error}",
        remedy=Remedy.CHANGE_VARIANT,
        do="Use an image variant that is built for this GPU. What the installed one is built for:",
        paste="python -c 'import torch; print(torch.cuda.get_arch_list())'",
    ),
    "kernel_failed": Cause(
        says="a computation on {gpus} fails: {error}",
        remedy=Remedy.RESET_GPU,
        do="On the host: read the kernel log, reset the GPU or reboot",
        paste=_KERNEL_LOG,
    ),
    "computation_failed": Cause(
        says="a computation on the CPU fails: {error}",
        remedy=Remedy.REINSTALL_TORCH,
        do="Install PyTorch again",
        paste="python -m pip install --force-reinstall torch",
    ),
    "simulated": Cause(
        says="this GPU is simulated (a test's libcuda): nothing here proves that a real GPU works",
        remedy=Remedy.ATTACH_GPU,
        do="Right in Torchtap's own tests; anywhere else, remove that libcuda from the loader path",
        paste="ldconfig -p | grep libcuda",
    ),
    # ---- Level full: memory, speed ----------------------------------------------------------------------------
    "memory_wrong": Cause(
        says="{gpus}: memory does not give back what was written: {wrong} of {checked} numbers differ ({pattern})",
        remedy=Remedy.REPLACE_GPU,
        do="Stop using it. Power-cycle the host and run again; if it returns, replace the GPU",
        paste="torchtap selftest --only gpu.memory",
    ),
    "memory_held": Cause(
        says="{gpus}: only {tested} of memory could be tested, because another process holds the rest",
        remedy=Remedy.FREE_GPU,
        do="End the process that holds it, then run again",
        paste="nvidia-smi",
    ),
    "bandwidth_low": Cause(
        says="{gpus}: memory is slower than this kind of GPU should be: {worst} ({limit} is expected)",
        remedy=Remedy.CHECK_HARDWARE,
        do="See that nothing else uses it and that its clocks are free; if it stays, the GPU is in doubt",
        paste="nvidia-smi -q -d CLOCK,PERFORMANCE -i {index}",
    ),
    "transfer_low": Cause(
        says="{gpus}: copies between host and GPU are slow for its PCIe link: {worst} ({limit} is expected)",
        remedy=Remedy.CHECK_HARDWARE,
        do="Often a CPU that is busy or far from the GPU (NUMA), or a PCIe switch that several GPUs share",
        paste="nvidia-smi topo -m",
    ),
    "pcie_slow": Cause(
        says="{gpus}: the PCIe link runs at generation {generation} under load, not {most}, so copies are slow",
        remedy=Remedy.CHECK_HARDWARE,
        do="Reseat the card; check riser and slot, and the speed that the BIOS sets for it",
        paste="nvidia-smi -q -d PCIE -i {index}",
    ),
    "speed_low": Cause(
        says="{gpus}: matrix products are slower than this kind of GPU should be: {worst} ({limit} is expected)",
        remedy=Remedy.CHECK_HARDWARE,
        do="Compare power limit, clocks and temperature with what its data sheet says",
        paste="nvidia-smi -q -d POWER,CLOCK,PERFORMANCE -i {index}",
    ),
    "clocks_low": Cause(
        says="{gpus}: clocks stay low under load ({clock}), and the driver gives no reason",
        remedy=Remedy.CONFIGURE_GPU,
        do="A clock that somebody locked is the usual reason. On the host, free it",
        paste="sudo nvidia-smi -i {index} --reset-gpu-clocks",
    ),
    "slower_than_equals": Cause(
        says="{gpus}: {worst} ({limit} is allowed)",
        remedy=Remedy.CHECK_HARDWARE,
        do="Compare power limit, clocks and temperature with those of the other GPUs; then swap slots",
        paste="nvidia-smi -q -d POWER,CLOCK,TEMPERATURE",
    ),
    # ---- Level full: several GPUs -----------------------------------------------------------------------------
    "peer_copy_wrong": Cause(
        says="copies between GPUs arrive changed ({pairs}): {wrong} of {checked} numbers differ",
        remedy=Remedy.CONFIGURE_HOST,
        do="The IOMMU or PCIe access control (ACS) redirects what GPUs send each other: switch them off in the BIOS or "
        "with iommu=pt. Until then",
        paste="export NCCL_P2P_DISABLE=1",
    ),
    "nccl_wrong": Cause(
        says="a sum over all GPUs through NCCL is wrong: {wrong} of {checked} values differ",
        remedy=Remedy.CONFIGURE_HOST,
        do="Look at the copies between pairs first; then try without direct copies",
        paste="NCCL_P2P_DISABLE=1 torchtap selftest --only gpu.nccl",
    ),
    "nccl_shm": Cause(
        says="NCCL finds no room in /dev/shm",
        remedy=Remedy.RECREATE_CONTAINER,
        do="Recreate the container with more shared memory (Kubernetes: an emptyDir of medium Memory)",
        paste="docker run --gpus all --shm-size 8g IMAGE",
    ),
    "nccl_slow": Cause(
        says="NCCL is slow over these GPUs: {bus_gb_s} GB/s on the bus ({limit})",
        remedy=Remedy.CHECK_HARDWARE,
        do="See which way it takes",
        paste="nvidia-smi topo -m",
    ),
    "nccl_failed": Cause(
        says="NCCL fails over these GPUs: {error}",
        remedy=Remedy.CONFIGURE_HOST,
        do="Its own words say more",
        paste="NCCL_DEBUG=INFO torchtap selftest --only gpu.nccl",
    ),
    # ---- Level full: training ---------------------------------------------------------------------------------
    "workers_without_room": Cause(
        says="DataLoader workers find no room in /dev/shm ({room}), and the training waits for ever or is killed",
        remedy=Remedy.RECREATE_CONTAINER,
        do="Recreate the container with more shared memory. Until then num_workers=0, or smaller batches",
        paste="docker run --gpus all --shm-size 8g IMAGE",
    ),
    "workers_wrong": Cause(
        says="batches come from DataLoader workers changed: {wrong} of {checked} values differ",
        remedy=Remedy.CHECK_HARDWARE,
        do="Test the host's memory",
        paste="sudo dmesg | grep -iE 'mce|edac|memory'",
    ),
    "workers_failed": Cause(
        says="DataLoader workers fail: {error}",
        remedy=Remedy.CONFIGURE_HOST,
        do="A limit on processes or memory is the usual reason",
        paste="ulimit -a; free -g",
    ),
    "compiler_missing": Cause(
        says="torch.compile cannot be used: there is no C++ compiler",
        remedy=Remedy.FIX_IMAGE,
        do="Everything else works. Install one",
        paste="sudo apt-get install g++",
    ),
    "python_headers_missing": Cause(
        says="torch.compile cannot be used: Python's headers are not installed",
        remedy=Remedy.FIX_IMAGE,
        do="Everything else works. Install the headers of this Python",
        paste="sudo apt-get install python3-dev",
    ),
    "triton_missing": Cause(
        says="torch.compile cannot be used on GPUs: Triton is not installed",
        remedy=Remedy.REINSTALL_TORCH,
        do="Everything else works. Install PyTorch again, with what belongs to it",
        paste="python -m pip install --force-reinstall torch",
    ),
    "compile_failed": Cause(
        says="torch.compile fails: {error}",
        remedy=Remedy.REINSTALL_TORCH,
        do="See that compiler and Triton belong to this PyTorch; the evidence in --json has the whole error",
        paste="python -m torch.utils.collect_env",
    ),
    # ---- Under load (burn) -------------------------------------------------------------------------------------
    "load_gpu_lost": Cause(
        says="{gpus}: went out of reach under load, {after} after its beginning",
        remedy=Remedy.CHECK_HARDWARE,
        do="Most often power or heat: check the GPU's power cables, the power supply, its seat and cooling. Read the "
        "kernel log, then switch the host off and on",
        paste=_KERNEL_LOG,
    ),
    "load_ecc": Cause(
        says="{gpus}: {count} new uncorrected memory errors under load; results are in doubt",
        remedy=Remedy.REPLACE_GPU,
        do="Stop work on it. Reset the GPU and run again; if it returns, replace the GPU",
        paste="sudo nvidia-smi --gpu-reset -i {index}",
    ),
    "load_xid": Cause(
        says="{gpus}: Xid {xid} in the kernel log under load",
        remedy=Remedy.RESET_GPU,
        do="Look the number up in NVIDIA's list of Xid errors. Reset the GPU or reboot the host, then run again",
        paste=_KERNEL_LOG,
    ),
    "load_stalled": Cause(
        says="{gpus}: took work and gave nothing back ({error})",
        remedy=Remedy.REBOOT_HOST,
        do="Read the kernel log, then reboot the host and run again; if it returns, replace the GPU",
        paste=_KERNEL_LOG,
    ),
    "load_hot": Cause(
        says="{gpus}: slowed down by heat in {share} of the time under load (limit {limit}); hottest {temperature}",
        remedy=Remedy.CHECK_HARDWARE,
        do="Check fans, dust, air flow, and the temperature of the air that comes in",
        paste="nvidia-smi -q -d PERFORMANCE,TEMPERATURE -i {index}",
    ),
    "load_power_brake": Cause(
        says="{gpus}: held back by the power brake under load, because the host's power supply cannot keep up",
        remedy=Remedy.CHECK_HARDWARE,
        do="Check power supplies and the GPU's power cables",
        paste="nvidia-smi -q -d PERFORMANCE,POWER -i {index}",
    ),
    "load_pcie_replays": Cause(
        says="{gpus}: {count} PCIe transfers had to be repeated under load (limit {limit})",
        remedy=Remedy.CHECK_HARDWARE,
        do="The link is bad: reseat the GPU, check riser and cables, look for a BIOS update",
        paste="nvidia-smi -q -i {index} | grep -i replay",
    ),
    "load_slower": Cause(
        says="{gpus}: {share} slower under load than the median of this host's {name} ({limit} is allowed)",
        remedy=Remedy.CHECK_HARDWARE,
        do="Compare power limit, clocks and temperature with those of the other GPUs",
        paste="nvidia-smi -q -d POWER,CLOCK,TEMPERATURE",
    ),
    "load_fading": Cause(
        says="{gpus}: {share} slower at the end of the load than at its beginning ({limit} is allowed)",
        remedy=Remedy.CHECK_HARDWARE,
        do="It cannot keep its speed: check cooling, power supply and power limit",
        paste="nvidia-smi -q -d PERFORMANCE,POWER,TEMPERATURE -i {index}",
    ),
    "load_interrupted": Cause(
        says="the load was interrupted after {elapsed} of {asked}: well until then, and not proved",
        remedy=Remedy.RUN_AGAIN,
        do="Run it again, and let it come to its end",
    ),
    # ---- The self-test itself ----------------------------------------------------------------------------------
    "child_crashed": Cause(
        says="the test process was ended by {signal} {at}",
        remedy=Remedy.REBOOT_HOST,
        do="Read the host's kernel log, and the evidence in --json. Usual reasons: driver files that do not belong "
        "together, or a GPU in a bad state: recreate the container, then reboot the host",
        paste=_KERNEL_LOG,
    ),
    "child_hung": Cause(
        says="the test process gave no answer in {waited_s} s, {at}{stuck}",
        remedy=Remedy.REBOOT_HOST,
        do="If the machine is only slow, allow more time. Otherwise the driver waits for a GPU: read the kernel log, "
        "reboot the host",
        paste="torchtap selftest --timeout 300",
    ),
    "child_killed": Cause(
        says="something else ended the test process {at}, with {signal}",
        remedy=Remedy.RUN_AGAIN,
        do="SIGKILL is most often the out-of-memory killer: give the container or the job more memory. Others are time "
        "limits of a job, or a person",
        paste="sudo dmesg | grep -iE 'out of memory|oom'",
    ),
    "torch_crashed": Cause(
        says="the test process was ended by {signal} {at}, which asks no GPU",
        remedy=Remedy.REINSTALL_TORCH,
        do="Usual reasons: packages that do not belong together, a library of LD_PRELOAD, a CPU that lacks what this "
        "PyTorch needs (SIGILL). In the image: remove your packages; elsewhere reinstall torch",
        paste="torchtap-env reset",
    ),
    "child_slow": Cause(
        says="the test process gave no answer in {waited_s} s, {at}, which asks no GPU{stuck}",
        remedy=Remedy.RUN_AGAIN,
        do="The machine is slow or busy: few CPU cores, packages on a slow or broken network disk. Allow more time",
        paste="torchtap selftest --timeout 300",
    ),
    "child_ended": Cause(
        says="the test process ended too early {at} ({how}); its last words: {words}",
        remedy=Remedy.REINSTALL_TORCH,
        do="Mend what these words name; the whole text is in the evidence. Where they name nothing: look at the folder "
        "you are in, your packages, sitecustomize and LD_PRELOAD",
        paste="torchtap selftest --json",
    ),
    "python_broken": Cause(
        says="{python} cannot be started: {error}",
        remedy=Remedy.REINSTALL_TORCH,
        do="In the image: restart the container, which mends it, or remove your packages. Elsewhere mend this Python",
        paste="torchtap-env reset",
    ),
    "child_silent": Cause(
        says="the test process ended too early {at} ({how}), without a word",
        remedy=Remedy.RUN_AGAIN,
        do="Something ended it: look for the out-of-memory killer in the kernel log, and at sitecustomize or "
        "LD_PRELOAD in the environment",
        paste="sudo dmesg | tail -20",
    ),
    # ---- What is expected of this machine (expect.*) -----------------------------------------------------------
    "gpus_not_given": Cause(
        says="{found} of {expected} expected GPUs are in this container: NVIDIA_VISIBLE_DEVICES is {visible}",
        remedy=Remedy.RECREATE_CONTAINER,
        do="Recreate the container with all its GPUs",
        paste="docker run --gpus all IMAGE",
    ),
    "gpus_dark": Cause(
        says="{found} of {expected} expected GPUs answer; on the PCI bus, but silent: {addresses}",
        remedy=Remedy.CHECK_HARDWARE,
        do="On the host: nvidia-smi -L. If it shows them, recreate the container with all GPUs; if not, the kernel log "
        "says why the driver could not start them",
        paste=_KERNEL_LOG,
    ),
    "gpus_missing": Cause(
        says="{found} of {expected} expected GPUs are here; the PCI bus {bus}",
        remedy=Remedy.CHECK_HARDWARE,
        do="Power the host off and on, not just reboot it; then check seating, riser and power cables. A VM may be of "
        "another type than expected",
        paste="lspci -d 10de:",
    ),
    "gpus_too_many": Cause(
        says="{found} GPUs are here, and {expected} expected",
        remedy=Remedy.FIX_ENVIRONMENT,
        do="Correct the expectation (--expect-gpus, TORCHTAP_EXPECT_GPUS), or give the container fewer GPUs",
    ),
    "gpu_name_unexpected": Cause(
        says="{gpus}: {name}, and {expected} is expected",
        remedy=Remedy.ATTACH_GPU,
        do="Use a machine with the right GPUs, or correct the expectation (--expect-name, TORCHTAP_EXPECT_NAME)",
    ),
    "driver_older_than_expected": Cause(
        says="driver {driver} is older than the expected {expected}",
        remedy=Remedy.UPDATE_DRIVER,
        do="Update the host's driver as on the other hosts, then reboot",
    ),
    "not_reached": Cause(
        says="not tested: the test process ended before it came to this ({reason})",
        remedy=Remedy.RUN_AGAIN,
        do="Mend what is named above, then run again",
    ),
    "interrupted": Cause(
        says="not tested: the self-test was interrupted before it came to this",
        remedy=Remedy.RUN_AGAIN,
        do="Run it again, and let it come to its end",
    ),
    "unreadable": Cause(
        says="the value cannot be read, so nothing is proved: {what}",
        remedy=Remedy.RUN_AGAIN,
        do="Run again. If it stays, please report it with --json",
        paste="torchtap selftest --json",
    ),
    "version_unreadable": Cause(
        says="the driver's version cannot be read anywhere (nvidia-smi, /proc, /sys, libcuda)",
        remedy=Remedy.RUN_AGAIN,
        do="Compare by hand: this PyTorch needs driver {floor} or newer",
        paste="nvidia-smi",
    ),
    "check_broke": Cause(
        says="Torchtap's own check failed: {error}",
        remedy=Remedy.REPORT_BUG,
        do="Please report this with the output of --json",
        paste="torchtap selftest --json",
    ),
}
