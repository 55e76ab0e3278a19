"""Start's part of the overlay: make it, link it into the run directory, say what is not as it was."""

from __future__ import annotations

from pathlib import Path

from entrypoint import log, overlay
from entrypoint.account import Account, acting_as
from entrypoint.reclaim import reclaim


def lay(account: Account, run: Path, *, safe: bool) -> Path | None:
    """The overlay that this container uses from now on; None where it uses the base alone."""
    base = overlay.Base.read()
    if base is None:
        return None
    home = Path(account.home)
    folder = overlay.overlays(home) / base.key
    if given := reclaim(base, folder, account.uid, account.gid):
        log.info(
            "packages",
            f"{given} files of root's in {folder.parent} are the user's again",
            "Root's python put them there. Install as the user: docker exec -u dev CONTAINER python -m pip install ...",
        )
    try:
        with acting_as(account.uid, account.gid):
            overlay.clear(folder)
            new = not safe and overlay.make(base, folder, stubs=False)
            own = len(overlay.installed(folder)) if safe else 0
            others = overlay.others(home, base.key) if new else []
    except OSError as error:
        log.warning(
            "packages",
            f"{folder} cannot be made or mended: {error.strerror or error}",
            "Started without the packages that you have installed. Mend it and restart, or: torchtap-env reset",
        )
        return None
    if safe:
        log.info("packages", f"TORCHTAP_SAFE=1: started without yours ({own} in {folder})")
        return None
    for kept, packages in others[:1]:
        log.info(
            "packages",
            f"this image is another one, so yours begin anew; {len(packages)} that you had are kept in {kept}",
            f"To install them here too: torchtap-env restore {kept.name}",
        )
    (run / overlay.LINK).symlink_to(folder)
    return folder
