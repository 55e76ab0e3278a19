"""Where a report goes: one form to standard output, any number of forms to files.

Everything is checked before the tests run: a path that cannot be written, two forms for one standard output.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from torchtap.cli.files import UnwritableError, check_writable, make_folder, write
from torchtap.selftest.junit import to_junit
from torchtap.selftest.oneline import to_nagios, to_one_line
from torchtap.selftest.prometheus import to_prometheus
from torchtap.selftest.report import to_text
from torchtap.selftest.result import Report

Render = Callable[[Report], str]
STDOUT = Path("-")
PROM = ".prom"
# Options that print instead of the table.
WORDS: Mapping[str, Render] = {"--json": Report.to_json, "--one-line": to_one_line, "--nagios": to_nagios}
# Options that take a FILE: the name that is suggested where a folder was given, and what is written.
FORMS: Mapping[str, tuple[str, Render]] = {
    "--output": ("selftest.json", Report.to_json),
    "--junit": ("junit.xml", to_junit),
    "--prometheus": ("torchtap.prom", to_prometheus),
}
# What --report leaves in its folder.
FOLDER: Mapping[str, Render] = {
    "report.json": Report.to_json,
    "report.txt": to_text,
    "junit.xml": to_junit,
    "metrics.prom": to_prometheus,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Outputs:
    """What will be written. `stdout` is None where people read it: then a table is drawn at the terminal's width."""

    stdout: Render | None
    files: Sequence[tuple[str, Path, Render]]

    def write(self, report: Report) -> list[str]:
        """Write every file, also after one that could not be written; what went wrong, a line each."""
        errors = []
        for option, path, render in self.files:
            try:
                write(option, path, render(report))
            except UnwritableError as error:
                errors.append(str(error))
        return errors


def choose_outputs(
    words: Mapping[str, Render], files: Mapping[str, Path | None], folder: Path | None
) -> Outputs:
    """What the options ask for, every path checked. Raises `UnwritableError`.

    `words`: options that print instead of the table, those that were given. `files`: what was given to the options of
    `FORMS`, `-` for standard output. `folder`: what was given to --report; it is made.
    """
    to_stdout = dict(words)
    to_files: list[tuple[str, Path, Render]] = []
    for option, path in files.items():
        example, render = FORMS[option]
        if path == STDOUT:
            to_stdout[f"{option} -"] = render
        elif path is not None:
            check_writable(option, path, example)
            if option == "--prometheus" and path.suffix != PROM:
                raise UnwritableError(
                    f"--prometheus {path}: its name must end in {PROM}, the only files that node_exporter's textfile "
                    f"collector reads; as in {path.with_suffix(PROM)}"
                )
            to_files.append((option, path, render))
    if len(to_stdout) > 1:
        first, second = list(to_stdout)[:2]
        raise UnwritableError(
            f"{first} and {second} both go to standard output, which takes one; give a file to one of them"
        )
    if folder == STDOUT:
        raise UnwritableError(
            "--report takes a folder, and - is standard output; a folder of that name is ./-"
        )
    if folder is not None:
        make_folder("--report", folder)
        for name, render in FOLDER.items():
            check_writable("--report", folder / name, name)
            to_files.append(("--report", folder / name, render))
    named = [path.resolve() for _, path, _ in to_files]
    if twice := next((path for path in named if named.count(path) > 1), None):
        raise UnwritableError(f"two options name the same file: {twice}")
    return Outputs(stdout=next(iter(to_stdout.values()), None), files=to_files)
