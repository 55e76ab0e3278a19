"""What preflight can find on a host, beside the causes that nvidia-smi's answers have (torchtap.selftest.causes)."""

from __future__ import annotations

from host.engine import WITHOUT
from torchtap.selftest.causes import CAUSES as SELFTEST_CAUSES
from torchtap.selftest.causes import Cause
from torchtap.selftest.status import Remedy

TOOLKIT = "https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/install-guide.html"
DOCKER = "https://docs.docker.com/engine/install"
CONFIGURE = "sudo nvidia-ctk runtime configure --runtime=docker && sudo systemctl restart docker"
NO_DOCKER = WITHOUT.partition(":")[2].strip()  # make up MODE=local
IN_THE_WAY = Cause(says="{what}", remedy=Remedy.CONFIGURE_HOST, do="{do}", paste="{paste}")

CAUSES: dict[str, Cause] = {
    # ---- the machine -------------------------------------------------------------------------------------------
    "system_untested": Cause(
        says="Torchtap is built and tested on Linux, not on {system}",
        remedy=Remedy.CONFIGURE_HOST,
        do="Use a Linux machine, or on Windows a WSL2 distribution. Docker may run the image on the CPU here",
    ),
    "machine_untested": Cause(
        says="the image is made for x86_64 and was never built or tried on {machine}",
        remedy=Remedy.CONFIGURE_HOST,
        do="Go on at your own risk, or use an x86_64 machine",
    ),
    # ---- the engine --------------------------------------------------------------------------------------------
    "docker_absent": Cause(
        says="make up goes on without Docker, in a virtual environment and without SSH",
        remedy=Remedy.CONFIGURE_HOST,
        do="{do}",
        paste="{paste}",
    ),
    "docker_unusable": IN_THE_WAY,
    "no_rights": Cause(
        says="this user may not use Docker's socket: {said}",
        remedy=Remedy.FIX_PERMISSIONS,
        do="Join the group docker, which is as good as root, and log in anew. Or go on without: " + NO_DOCKER,
        paste="sudo usermod -aG docker $USER",
    ),
    "docker_too_old": Cause(
        says="Docker {version} is too old: the image's health check needs {floor} or newer",
        remedy=Remedy.CONFIGURE_HOST,
        do=f"Update Docker Engine ({DOCKER}), or go on without: {NO_DOCKER}",
        paste="docker version",
    ),
    "compose_unusable": IN_THE_WAY,
    "no_buildx": Cause(
        says="Docker's plugin buildx is not here: `docker build` and newer versions of Compose need it",
        remedy=Remedy.CONFIGURE_HOST,
        do="Install it (Debian's own packages: docker-buildx)",
        paste="sudo apt install docker-buildx-plugin",
    ),
    "engine_remote": Cause(
        says="the engine is on another machine ({address}): GPUs, disk, ports and WORKSPACE are those of that machine",
        remedy=Remedy.CONFIGURE_HOST,
        do="Work there instead, or make this machine's own engine the one in use",
        paste="docker context use default; unset DOCKER_HOST",
    ),
    "engine_desktop": Cause(
        says="Docker Desktop runs containers in a virtual machine, which has no NVIDIA GPU on {system}",
        remedy=Remedy.CONFIGURE_HOST,
        do=f"Install Docker Engine beside it ({DOCKER}) and choose its context",
        paste="docker context use default",
    ),
    "engine_snap": Cause(
        says="this Docker is a snap: it reads no files outside your home and often hands out no GPU",
        remedy=Remedy.CONFIGURE_HOST,
        do=f"Remove the snap and install Docker Engine: {DOCKER}",
        paste="sudo snap remove docker",
    ),
    "rootless_cgroups": Cause(
        says="rootless Docker may not set up device cgroups, and NVIDIA's toolkit is not told to leave them alone",
        remedy=Remedy.CONFIGURE_HOST,
        do="Tell it so, or use CDI devices; then restart the rootless engine",
        paste="sudo nvidia-ctk config --set nvidia-container-cli.no-cgroups --in-place",
    ),
    "rootless_memlock": Cause(
        says="rootless Docker may not raise the limit of pinned memory above {limit} bytes, and refuses no limit",
        remedy=Remedy.FIX_ENVIRONMENT,
        do="Give the limit that it has",
        paste="make up MEMLOCK={limit}",
    ),
    "engine_without_gpu": Cause(
        says="Docker shows no way to hand out a GPU: no runtime nvidia, no CDI device, no NVIDIA hook",
        remedy=Remedy.CONFIGURE_HOST,
        do=f"Install the NVIDIA Container Toolkit ({TOOLKIT}), then let it configure Docker",
        paste=CONFIGURE,
    ),
    "no_cgroups_rootful": Cause(
        says="no-cgroups = true in the toolkit's config.toml is for rootless Docker; with this engine containers get "
        '"Failed to initialize NVML: Unknown Error"',
        remedy=Remedy.CONFIGURE_HOST,
        do="Set it back",
        paste="sudo nvidia-ctk config --set nvidia-container-cli.no-cgroups=false --in-place",
    ),
    "devices_may_be_revoked": Cause(
        says="systemd manages the containers' cgroups and /dev/char has no link to the GPUs: a systemctl "
        "daemon-reload takes the GPU from running containers (nvidia-docker#1730)",
        remedy=Remedy.CONFIGURE_HOST,
        do="Make the links (at each boot), or hand out GPUs by CDI",
        paste="sudo nvidia-ctk system create-dev-char-symlinks --create-all",
    ),
    "selinux_confines": Cause(
        says="SELinux is enforcing and confines containers: they may not use GPU devices, nor files of this checkout "
        "without a label",
        remedy=Remedy.FIX_PERMISSIONS,
        do="Allow devices, and label the workspace",
        paste="sudo setsebool -P container_use_devices on; chcon -Rt container_file_t workspace",
    ),
    # ---- the GPU and its driver --------------------------------------------------------------------------------
    "no_gpu_in_host": Cause(
        says="a GPU is asked for ({asked}), and this machine has none: no NVIDIA GPU on the PCI bus, no driver",
        remedy=Remedy.ATTACH_GPU,
        do="Use a machine (or a VM type) with a GPU, or go on without one",
        paste="make up MODE=cpu",
    ),
    "wsl_without_gpu": Cause(
        says="this WSL has no /dev/dxg, so it has no GPU",
        remedy=Remedy.CONFIGURE_HOST,
        do="WSL2 is needed, and Windows' own NVIDIA driver; no Linux driver inside WSL. In Windows",
        paste="wsl --update && wsl --shutdown",
    ),
    "driver_not_bound": Cause(
        says="the GPU at {address} is held by no kernel driver: NVIDIA's is not installed, or not loaded",
        remedy=Remedy.INSTALL_DRIVER,
        do="Load it. If that fails, install it (580 or newer suits the default image); after a kernel update a "
        "reboot is often all it needs",
        paste="sudo modprobe nvidia && nvidia-smi",
    ),
    "pci_unreadable": Cause(
        says="nothing says whether this host has an NVIDIA GPU: /sys/bus/pci cannot be read, nvidia-smi names none",
        remedy=Remedy.RUN_AGAIN,
        do="Run this on the host itself, outside a sandbox",
        paste="lspci -d 10de:",
    ),
    "smi_missing": Cause(
        says="nvidia-smi is not installed, so nobody can say how the driver is",
        remedy=Remedy.INSTALL_DRIVER,
        do="Install the driver's tools, of the driver's own version (Ubuntu: nvidia-utils-580; 580 or newer suits "
        "the default image)",
        paste="cat /proc/driver/nvidia/version; apt-cache search nvidia-utils",
    ),
    "driver_library_mismatch": Cause(
        says="the driver's libraries and its kernel module are of different versions{versions}",
        remedy=Remedy.REBOOT_HOST,
        do="The driver was updated while the old one was loaded: reboot",
        paste="cat /proc/driver/nvidia/version; sudo reboot",
    ),
    "driver_libraries_missing": Cause(
        says="nvidia-smi does not find the driver's library libnvidia-ml",
        remedy=Remedy.INSTALL_DRIVER,
        do="Install the driver's libraries, of the driver's own version, and nothing else of NVIDIA's by hand",
        paste="cat /proc/driver/nvidia/version; ldconfig -p | grep nvidia-ml",
    ),
    "devices_revoked": Cause(
        says="the driver's management library does not start: Unknown Error",
        remedy=Remedy.REBOOT_HOST,
        do="On a host this is no matter of containers: look at the kernel log, then reboot",
        paste="sudo dmesg | grep -iE 'nvrm|xid'",
    ),
    "gpus_missing": Cause(
        says="{on_bus} NVIDIA GPUs are on the PCI bus, and nvidia-smi lists {listed}",
        remedy=Remedy.CHECK_HARDWARE,
        do="Look for the missing one in the kernel log; then reboot, and check its seating and power",
        paste="sudo dmesg | grep -iE 'nvrm|xid'; lspci -d 10de:",
    ),
    "driver_unknown": Cause(
        says="nvidia-smi does not tell the driver's version, so no variant can be chosen by it",
        remedy=Remedy.RUN_AGAIN,
        do="Ask it by hand",
        paste="nvidia-smi --query-gpu=driver_version --format=csv",
    ),
    "driver_too_old": Cause(
        says="driver {driver} is too old for {variant}, which needs {floor} or newer",
        remedy=Remedy.CHANGE_VARIANT,
        do="Leave VARIANT out, or take the one that fits",
        paste="make up VARIANT={fits}",
    ),
    "driver_too_old_for_all": Cause(
        says="driver {driver} is too old for every variant: 525 or newer is needed",
        remedy=Remedy.UPDATE_DRIVER,
        do="Update the driver (580 or newer suits the default image) and reboot. Until then: make up MODE=cpu",
        paste="ubuntu-drivers list --gpgpu        # on Ubuntu",
    ),
    "no_variant_fits": Cause(
        says="no variant has code for {gpus} that works with driver {driver}",
        remedy=Remedy.UPDATE_DRIVER,
        do="Blackwell needs driver 570 or newer; GPUs older than Maxwell (5.0) are served by none",
        paste="nvidia-smi --query-gpu=name,compute_cap,driver_version --format=csv",
    ),
    "variant_misses_gpu": Cause(
        says="{variant} has no code for {gpus}",
        remedy=Remedy.CHANGE_VARIANT,
        do="Choose the GPUs that it serves with GPUS=, or another variant",
        paste="make up GPUS=0",
    ),
    "capability_unknown": Cause(
        says="nvidia-smi does not tell the compute capability of {gpus}, and its name is not known either",
        remedy=Remedy.RUN_AGAIN,
        do="Look it up in NVIDIA's list of CUDA GPUs; make up goes by the driver alone",
        paste="nvidia-smi --query-gpu=name,compute_cap --format=csv",
    ),
    "kernel_log_trouble": Cause(
        says="the kernel log tells of trouble since boot: {line}",
        remedy=Remedy.CHECK_HARDWARE,
        do="It may be over. make selftest LEVEL=full tests the GPU as it is now",
        paste="sudo dmesg | grep -iE 'nvrm|xid'",
    ),
    # ---- what make up needs ------------------------------------------------------------------------------------
    "disk_full": Cause(
        says="too little disk at {place}: {what} needs {needed}, {free} are free",
        remedy=Remedy.CONFIGURE_HOST,
        do="Free some. What Docker holds, and what of it nobody uses",
        paste="docker system df; docker builder prune",
    ),
    "disk_full_venv": Cause(
        says="too little disk at {place}: {what} needs {needed}, {free} are free",
        remedy=Remedy.CONFIGURE_HOST,
        do="Free some, or put .venv on another disk",
        paste="make up MODE=local TORCHTAP_VENV=/there/venv",
    ),
    "disk_tight": Cause(
        says="{free} are free at {place}: enough to begin, little for what comes",
        remedy=Remedy.CONFIGURE_HOST,
        do="Free some. What Docker holds",
        paste="docker system df",
    ),
    "disk_unreadable": Cause(
        says="the free space at {place} cannot be read",
        remedy=Remedy.RUN_AGAIN,
        do="Ask by hand: 15 GB are needed for a first build",
        paste="df -h {place}",
    ),
    "in_the_way": IN_THE_WAY,
    "port_taken": IN_THE_WAY,
    "choice_warned": Cause(
        says="{what}",
        remedy=Remedy.CHANGE_VARIANT,
        do="Change or leave out what is named, or go on",
        paste="make help",
    ),
    "unreadable": Cause(
        says="what was read makes no sense: {what}",
        remedy=Remedy.RUN_AGAIN,
        do="Run it again; if it stays so, report it with the output of",
        paste="make preflight ARGS=--json",
    ),
}


def cause_of(cause_id: str) -> Cause:
    """Preflight's own words for a cause, else the self-test's."""
    return CAUSES.get(cause_id) or SELFTEST_CAUSES[cause_id]
