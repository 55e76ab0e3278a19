"""The environment of every process of the user."""

from __future__ import annotations

from pathlib import Path

from entrypoint import caches, certificates, overlay, paths, proxies, threads
from entrypoint.account import NAME, Account
from entrypoint.gather import Facts
from entrypoint.settings import SECRETS, Settings

# Of the shell that started the container, not of the container.
NOT_PASSED_ON = frozenset({"_", "SHLVL", "PWD", "OLDPWD"})


def variables(settings: Settings, facts: Facts, account: Account, run: Path, state: Path) -> dict[str, str]:
    """The container's own variables, less secrets, plus who and where."""
    kept = {k: v for k, v in facts.environment.items() if k not in SECRETS and k not in NOT_PASSED_ON}
    for name, _ in threads.VARIABLES:  # empty counts as not set; libgomp complains of it
        if not kept.get(name):
            kept.pop(name, None)
    where = {"HOME": account.home, "TORCHTAP_STATE": str(state)}
    if kept.get("JUPYTER_RUNTIME_DIR", paths.JUPYTER_RUNTIME) in ("", paths.JUPYTER_RUNTIME):
        where["JUPYTER_RUNTIME_DIR"] = str(run / "jupyter")
    if "PATH" in kept:
        kept["PATH"] = overlay.path_here(kept["PATH"], run)
    if kept.get("SHELL"):
        where["SHELL"] = facts.shell
    device = {} if settings.device == "auto" else {"TORCHTAP_DEVICE": settings.device}
    computed = {
        **threads.variables(facts.processors, kept),
        **certificates.variables(facts.trust, run, kept),
        **proxies.variables(kept),
        **caches.places(account.home, kept),
    }
    if facts.home.full and account.home == str(facts.home.path):
        # IPython must write before a kernel can begin: its history and profile are in /tmp then.
        computed.setdefault("IPYTHONDIR", kept.get("IPYTHONDIR") or f"/tmp/torchtap-ipython-{facts.uid}")
    return {**kept, **computed, **device, **where, "USER": NAME, "LOGNAME": NAME}
