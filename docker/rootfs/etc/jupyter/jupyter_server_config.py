"""JupyterLab in the image. Settings in ~/.jupyter come later and win."""

import os
from pathlib import Path

c = get_config()  # noqa: F821 - Jupyter puts it there

c.ServerApp.ip = "0.0.0.0"  # inside the container; compose.yaml publishes on 127.0.0.1 only
c.ServerApp.port = 8888
c.ServerApp.port_retries = 0  # another port would not be published
c.ServerApp.open_browser = False
c.ServerApp.allow_root = os.geteuid() == 0
# From a file of mode 0600: neither on the command line nor in the environment of kernels.
_state = Path(os.environ.get("TORCHTAP_STATE", "/var/lib/torchtap"))
c.IdentityProvider.token = (_state / "jupyter-token").read_text().strip()
# The log says what is wrong; that the server runs is said by start.
c.Application.log_level = "WARN"
c.ServerApp.log_level = "WARN"
# Kernels talk over sockets in JUPYTER_RUNTIME_DIR, which only the user can enter, instead of unencrypted TCP ports.
c.KernelManager.transport = "ipc"
