"""The command: options, exit codes, streams, files. In fresh processes, as a user runs it."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

import torchtap
from tests.unit.cli.running import command, environment, on_terminal
from tests.unit.processes import gone
from torchtap.cli import files

QUICK = ["selftest", "--device", "cpu", "--only", "cpu.matmul"]
FILE_OPTIONS = ("--output", "--junit", "--prometheus", "--report")
ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def test_the_version():
    """`--version`, and nothing else."""
    done = command("--version")
    assert (done.stdout, done.stderr, done.returncode) == (f"torchtap {torchtap.__version__}\n", "", 0)


def test_help_has_examples_and_exit_codes():
    """And every option; it imports no torch."""
    done = command("selftest", "--help")
    assert done.returncode == 0
    for words in ("Examples:", "torchtap selftest --device cpu", "Exit codes:", "2  could not run"):
        assert words in done.stdout
    options = ("--json", "--device", "--only", "--skip", "--timeout", "--output", "--verbose", "--junit")
    for option in (*options, "--prometheus", "--report", "--one-line", "--nagios"):
        assert option in done.stdout
    assert all(len(line) <= 80 for line in done.stdout.splitlines())


def test_a_machine_without_a_gpu_by_design_is_good():
    """Exit 0; the variable says the same as the option."""
    done = command("selftest", TORCHTAP_DEVICE="cpu")
    assert done.returncode == 0
    assert re.match(r"skip    \d+ checks of a GPU: by design", done.stdout)
    assert re.search(r"\nPASS    self-test: \d+ passed, \d+ skipped; ", done.stdout)
    assert done.stderr == ""


@pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="this machine has a GPU")
def test_a_machine_without_a_gpu_fails_with_one_cause():
    """Exit 1, and what to do; programs get the same as JSON."""
    done = command("selftest", "--json")
    report = json.loads(done.stdout)
    assert (done.returncode, report["verdict"], report["schema"]) == (1, "fail", 1)
    failed = [result for result in report["results"] if result["status"] == "fail"]
    assert [result["id"] for result in failed] == ["device.nodes"]
    assert report["first_cause"] == {"id": "device.nodes", "cause_id": failed[0]["cause_id"]}
    assert failed[0]["remedy"]
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["selftest", "--only", "driver.smy"], "there is no check 'driver.smy': the nearest is driver.smi"),
        (["selftest", "--skip", "gpu.ec"], "there is no check 'gpu.ec': the nearest is gpu.ecc"),
        (["selftest", "--device", "tpu"], "device must be auto, gpu or cpu; it is 'tpu'"),
        (
            ["selftest", "--level", "ful"],
            "level must be quick, full or burn; it is 'ful'; did you mean full?",
        ),
        (
            ["selftest", "--only", "cpu.matmul,driver.smy"],
            "there is no check 'driver.smy': the nearest is driver.smi",
        ),
        (["selftest", "--only", ","], "--only names no check; torchtap selftest --list shows them"),
        (
            ["selftest", "--expect-gpus", "8", "--device", "cpu"],
            "--expect-gpus expects a GPU, and this machine is meant",
        ),
        (["selftest", "--timeout", "0"], "the time-out must be seconds"),
        (
            ["selftest", "--minutes", "5"],
            "minutes are for the level burn only; the level is quick: add --level",
        ),
        (["selftest", "--level", "burn", "--minutes", "0"], "minutes must be from 0.5 to 10080; it is 0"),
        (["selftest", "--level", "burn", "--minutes", "nan"], "minutes must be from 0.5 to 10080; it is nan"),
        (["selftest", "--timeout", "soon"], "Invalid value for '--timeout'"),
        (
            ["selftest", "--output", "/nonexistent/report.json"],
            "--output /nonexistent/report.json cannot be written: No such",
        ),
        (["selftest", "--output", "/"], "--output / is a folder; give a file in it"),
        (["selftest", "--json", "--one-line"], "--json and --one-line both go to standard output"),
        (["selftest", "--prometheus", "metrics.txt"], "its name must end in .prom"),
        (["selftest", "--report", "/proc/x"], "--report /proc/x cannot be made: No such"),
        (["selftest", "--report", "-"], "--report takes a folder, and - is standard output"),
        *((["selftest", option, ""], f"{option} has an empty name") for option in FILE_OPTIONS),
        *(
            (["selftest", "--prometheus", path], "is a folder; give a file in it")
            for path in (".", "/", "..")
        ),
        (
            ["selftest", "--output", "none/a\nb"],
            "--output none/a\N{REPLACEMENT CHARACTER}b cannot be written",
        ),
        (["selftest", "--only", "nope"], "there is no check 'nope': none is like it"),
        (["selftest", "--bogus"], "No such option: --bogus"),
        (["selftset"], "No such command 'selftset'"),
    ],
)
def test_a_users_mistake_is_one_clear_error(words: list[str], said: str):
    """Exit 2, on standard error, without a traceback, before anything runs."""
    began = time.monotonic()
    done = command(*words)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    assert time.monotonic() - began < 20


def test_an_unusable_variable_is_named():
    """As an option would be."""
    done = command("selftest", TORCHTAP_DEVICE="yes")
    assert (done.returncode, done.stderr) == (
        2,
        "torchtap selftest: TORCHTAP_DEVICE must be auto, gpu or cpu; it is 'yes'\n",
    )


def test_an_unwritable_path_is_refused_before_the_tests(tmp_path: Path):
    """Not after: nvidia-smi, if it were asked, would leave its mark."""
    mark = tmp_path / "was-asked"
    smi = tmp_path / "nvidia-smi"
    smi.write_text(f"#!/bin/sh\ntouch {mark}\n")
    smi.chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    done = command("selftest", "--output", tmp_path / "none" / "report.json", PATH=path)
    assert done.returncode == 2
    assert not mark.exists()
    command("selftest", "--only", "driver.smi", PATH=path)
    assert mark.exists()


def test_the_file_is_the_json_and_replaces_what_was_there(tmp_path: Path):
    """Whole, readable by others, nothing left beside it; the table is printed all the same."""
    file = tmp_path / "report.json"
    file.write_text("old")
    done = command(*QUICK, "--output", file.name, cwd=tmp_path)
    assert done.returncode == 0
    assert "PASS    self-test: 2 passed" in done.stdout
    assert json.loads(file.read_text())["verdict"] == "pass"
    assert file.stat().st_mode & 0o777 == 0o644
    assert [each.name for each in tmp_path.iterdir()] == ["report.json"]


def test_a_link_stays_a_link_and_its_file_is_replaced(tmp_path: Path):
    """Also where it points to nothing yet."""
    (tmp_path / "kept").mkdir()
    file, link = tmp_path / "kept" / "report.json", tmp_path / "latest.json"
    link.symlink_to(file)
    for _ in range(2):
        assert command(*QUICK, "--output", link).returncode == 0
        assert link.is_symlink()
        assert json.loads(file.read_text())["verdict"] == "pass"
        assert sorted(each.name for each in tmp_path.rglob("*")) == ["kept", "latest.json", "report.json"]


@pytest.mark.parametrize("mode", [0o600, 0o664])
def test_an_existing_file_keeps_its_mode(tmp_path: Path, mode: int):
    """A private report stays private."""
    file = tmp_path / "report.json"
    file.touch()
    file.chmod(mode)
    command(*QUICK, "--output", file)
    assert json.loads(file.read_text())["verdict"] == "pass"
    assert file.stat().st_mode & 0o777 == mode


@pytest.mark.parametrize("through_link", [False, True])
def test_what_is_no_file_is_written_to_and_not_replaced(tmp_path: Path, through_link: bool):
    """A FIFO stands for all devices: it gets the report and is still there."""
    fifo, link = tmp_path / "fifo", tmp_path / "link"
    os.mkfifo(fifo)
    link.symlink_to(fifo)
    reader = subprocess.Popen(["cat", str(fifo)], stdout=subprocess.PIPE, text=True)
    try:
        done = command(*QUICK, "--output", link if through_link else fifo)
        assert stat.S_ISFIFO(fifo.lstat().st_mode)
        assert link.is_symlink()
        out, _ = reader.communicate(timeout=20)
    finally:
        reader.kill()
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(out)["verdict"] == "pass"
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("redirected", [False, True])
def test_standard_output_can_be_the_file(tmp_path: Path, redirected: bool):
    """As `--output /dev/stdout`, to a pipe and to a file: the JSON, then the table, nothing overwritten."""
    link, file = tmp_path / "stdout", tmp_path / "out"
    link.symlink_to("/proc/self/fd/1")  # as /dev/stdout is; the machine's own is left alone
    words = [sys.executable, "-m", "torchtap.cli", *QUICK, "--output", str(link)]
    with file.open("w") as out:
        done = subprocess.run(
            words, stdout=out if redirected else subprocess.PIPE, text=True, env=environment(), timeout=120
        )
    shown = file.read_text() if redirected else done.stdout
    report, end = json.JSONDecoder().raw_decode(shown)
    assert (done.returncode, report["verdict"]) == (0, "pass")
    assert shown[end:].strip().startswith("PASS")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["out", "stdout"]
    assert link.is_symlink()


def test_a_socket_a_loop_and_a_long_name_are_one_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Exit 2 before the tests run; what stood there still stands there."""
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("socket")
        Path("loop").symlink_to("loop")
        for name, said in (
            ("socket", "is a socket"),
            ("loop", "cannot be written: Too many levels of symbolic links"),
            ("x" * 300, "cannot be written: File name too long"),
            ("x" * 300 + "/y", "cannot be written: File name too long"),
            ("socket/y", "cannot be written: Not a directory"),
        ):
            done = command(*QUICK, "--output", name, cwd=tmp_path)
            assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), name
            assert said in done.stderr
        assert stat.S_ISSOCK(Path("socket").lstat().st_mode)
    assert command(*QUICK, "--output", "x" * 255, cwd=tmp_path).returncode == 0  # as long as a name may be


def test_json_goes_alone_to_standard_output():
    """A program reads it; two runs differ in nothing but times."""
    one, other = (command(*QUICK, "--json").stdout for _ in range(2))
    assert json.loads(one)["results"][1]["id"] == "cpu.matmul"
    times = re.compile(r'"(seconds|started)": ("[^"]+"|[\d.e-]+)')
    assert times.sub("", one) == times.sub("", other)


def test_several_checks_can_be_chosen_and_left_out():
    """Both options repeat."""
    words = [
        "selftest",
        "--device",
        "cpu",
        "--json",
        "--only",
        "cpu.matmul",
        "--only",
        "torch.cudnn",
        "--skip",
        "torch.cudnn",
    ]
    results = json.loads(command(*words).stdout)["results"]
    assert [(result["id"], result["status"]) for result in results] == [
        ("torch.build", "pass"),
        ("torch.cudnn", "skip"),
        ("cpu.matmul", "pass"),
    ]


def test_the_checks_are_listed_with_level_and_title():
    """Those of expectations too; nothing runs, 80 columns are enough."""
    done = command("selftest", "--list")
    assert (done.returncode, done.stderr) == (0, "")
    assert re.search(r"^torch\.build     quick   Is this the PyTorch", done.stdout, re.MULTILINE)
    assert re.search(r"^expect\.gpus     quick   ", done.stdout, re.MULTILINE)
    assert re.search(r"^burn\.numbers    burn    ", done.stdout, re.MULTILINE)
    assert all(len(line) <= 80 for line in done.stdout.splitlines())


def test_a_masked_report_has_no_uuid(tmp_path: Path):
    """In no form: what nvidia-smi printed is in the evidence."""
    uuid = "GPU-11111111-2222-3333-4444-555555555555"
    (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\necho 'GPU 0: Tesla T4 (UUID: {uuid})'\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    words = ["selftest", "--only", "driver.smi", "--skip", "device.nodes", "--json"]
    path = f"{tmp_path}:{os.environ['PATH']}"
    plain, masked = (command(*words, *more, PATH=path).stdout for more in ([], ["--mask"]))
    assert uuid in plain
    assert "11111111-2222" not in masked
    assert json.loads(masked)["verdict"] == json.loads(plain)["verdict"]


def test_one_line_for_a_prolog_and_for_nagios(tmp_path: Path):
    """The line alone; exit codes of the self-test, or those of a Nagios plugin; files are written all the same."""
    done = command(*QUICK, "--one-line", "--report", tmp_path / "all", TORCHTAP_HOST="node017")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "node017 pass: 2 passed, 0 skipped; no GPU, by design\n"
    assert len(list((tmp_path / "all").iterdir())) == 4
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\nexit 9\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    bad = ["selftest", "--only", "driver.smi", "--skip", "device.nodes"]
    assert command(*bad, "--one-line", PATH=path).returncode == 1
    done = command(*bad, "--nagios", PATH=path)
    assert done.stdout.startswith("SELFTEST ")
    assert (done.stdout.count("\n"), done.returncode in (2, 3)) == (1, True)
    assert command("selftest", "--nagios", "--device", "tpu").returncode == 3


def test_no_colour_outside_a_terminal():
    """Also where the variables say that one could."""
    assert "\x1b" not in command(*QUICK).stdout


def test_a_terminal_gets_colour_progress_and_a_clean_end():
    """The progress is wiped away; what stays is the report."""
    shown, code = on_terminal(QUICK, environment())
    assert code == 0
    assert "\x1b[32mPASS" in shown
    assert "self-test: importing torch" in shown
    assert "self-test: 2 passed" in ESCAPE.sub("", shown)


def test_no_color_is_honoured_on_a_terminal():
    """No colour; cursor movements of the progress are no colour."""
    shown, _ = on_terminal(QUICK, environment(NO_COLOR="1"))
    assert not re.search(r"\x1b\[[0-9;]*3[0-9][0-9;]*m", shown)


def test_json_on_a_terminal_has_no_progress():
    """It may be selected and copied."""
    shown, _ = on_terminal([*QUICK, "--json"], environment())
    assert json.loads(shown)["verdict"] == "pass"


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_a_signal_ends_with_what_was_found_and_leaves_nothing_running(
    tmp_path: Path, number: signal.Signals, code: int
):
    """The hanging nvidia-smi is ended too; the report says what was not reached, also in its file."""
    process, pid = interrupted_at_smi(tmp_path, "--json", "--output", tmp_path / "report.json")
    process.send_signal(number)
    out, err = process.communicate(timeout=20)
    assert (process.returncode, err) == (code, "")
    results = {result["id"]: result for result in json.loads(out)["results"]}
    assert results["torch.build"]["cause_id"] == "interrupted"
    assert results["torch.build"]["status"] == "unknown"
    assert {result["status"] for result in results.values()} <= {"fail", "unknown", "skip"}
    assert json.loads((tmp_path / "report.json").read_text())["results"] == list(results.values())
    assert gone(pid)


def test_a_lost_connection_leaves_every_file(tmp_path: Path):
    """The terminal is gone, so nothing can be said on it; the kernel and the shell each tell of it."""
    pid_file, smi = tmp_path / "pid", tmp_path / "nvidia-smi"
    smi.write_text(f"#!/bin/sh\necho $$ > {pid_file}.part; mv {pid_file}.part {pid_file}; exec sleep 600\n")
    smi.chmod(0o755)
    words = ["selftest", "--report", str(tmp_path / "all")]
    process, master = os.forkpty()
    if process == 0:
        env = environment(PATH=f"{tmp_path}:{os.environ['PATH']}")
        os.execve(sys.executable, [sys.executable, "-m", "torchtap.cli", *words], env)
    deadline = time.monotonic() + 60
    while not pid_file.exists() and time.monotonic() < deadline:
        if select.select([master], [], [], 0.05)[0]:
            os.read(master, 65536)
    os.close(master)  # the kernel sends SIGHUP
    os.kill(process, signal.SIGHUP)
    _, status = os.waitpid(process, 0)
    assert os.waitstatus_to_exitcode(status) == 129
    assert len(list((tmp_path / "all").iterdir())) == 4
    assert gone(int(pid_file.read_text()))


@pytest.mark.parametrize(
    "words",
    [
        ["--bogus"],
        ["--minutes", "abc"],
        ["--expect-gpus"],
        ["foo"],
        ["--merge", "x"],
        ["--device", "tpu"],
        ["--json"],
        ["--output", "/nonexistent/x"],
    ],
)
def test_nagios_never_takes_a_mistake_for_a_host_that_fails(words: list[str]):
    """3, UNKNOWN: 2 would be CRITICAL."""
    done = command("selftest", "--nagios", *words)
    assert (done.returncode, done.stdout) == (3, "")
    assert "Traceback" not in done.stderr


def test_nagios_takes_no_fault_of_the_program_for_a_warning():
    """An exception ends Python with 1, WARNING."""
    code = (
        "import sys\n"
        "import torchtap.cli as cli\n"
        "sys.argv = ['torchtap', 'selftest', '--nagios']\n"
        "def broken():\n    raise ZeroDivisionError\n"
        "cli.app = broken\n"
        "cli.main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment())
    assert done.returncode == 3
    assert "ZeroDivisionError" in done.stderr


def test_a_pipe_that_nobody_reads_is_not_waited_for_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """It is said what is waited for; a reader that comes late gets all of it."""
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.setattr(files, "READER_WAIT_S", 0.3)
    with pytest.raises(files.UnwritableError, match="nobody reads this pipe"):
        files.write("--output", tmp_path / "pipe", "text")
    assert capsys.readouterr().err.count(f"for a reader of --output {tmp_path}/pipe") == 1
    monkeypatch.setattr(files, "READER_WAIT_S", 20)
    reader = subprocess.Popen(
        ["sh", "-c", 'sleep 0.3; exec cat "$0" >"$1"', tmp_path / "pipe", tmp_path / "read"]
    )
    files.write("--output", tmp_path / "pipe", "text" * 50_000)  # more than a pipe holds
    assert reader.wait(timeout=20) == 0
    assert (tmp_path / "read").read_text() == "text" * 50_000


def test_a_file_may_be_called_like_the_stream(tmp_path: Path):
    """- is standard output, ./- a file."""
    done = command(*QUICK, "--output", "./-", cwd=tmp_path)
    assert done.stdout.startswith("PASS")
    assert json.loads((tmp_path / "-").read_text())["verdict"] == "pass"


def test_ctrl_c_on_a_terminal_shows_the_report(tmp_path: Path):
    """In words: one line for all that was not reached."""
    process, _ = interrupted_at_smi(tmp_path, "--skip", "device.nodes")
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=20)
    assert re.search(r"^unknown torch.build, .*not reached,\s+interrupted$", out, re.MULTILINE | re.DOTALL)
    assert re.search(r"^UNKNOWN self-test: \d+ unknown, ", out, re.MULTILINE)


def test_a_second_ctrl_c_ends_at_once(tmp_path: Path):
    """Even where the first is not heard, because the machine does not answer: here a report that nobody reads."""
    code = (
        "import os, signal, sys, time\n"
        "from torchtap.selftest.interrupt import interruptible\n"
        "from torchtap.selftest.process import ask\n"
        "def told(line):\n"
        "    print(line, flush=True)\n"
        "    time.sleep(600)\n"
        "with interruptible() as stop:\n"
        "    ask(['sh', '-c', 'echo $$; exec sleep 600'], timeout_s=600, on_line=told, stop=stop)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], env=environment(), stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    pid = int(process.stdout.readline())
    process.send_signal(signal.SIGINT)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(timeout=0.5)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=5) == 130
    assert gone(pid)


def interrupted_at_smi(tmp_path: Path, *words: str | Path) -> tuple[subprocess.Popen[str], int]:
    """A self-test whose nvidia-smi hangs, and the process id of that."""
    smi, pid_file = tmp_path / "nvidia-smi", tmp_path / "pid"
    smi.write_text(f"#!/bin/sh\necho $$ > {pid_file}.part; mv {pid_file}.part {pid_file}; exec sleep 600\n")
    smi.chmod(0o755)
    process = subprocess.Popen(
        [sys.executable, "-m", "torchtap.cli", "selftest", *map(str, words)],
        env=environment(PATH=f"{tmp_path}:{os.environ['PATH']}"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 60
    while not pid_file.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    return process, int(pid_file.read_text())


@pytest.mark.parametrize("words", [[*QUICK, "--json"], QUICK, ["selftest", "--help"], ["--version"]])
@pytest.mark.parametrize(
    ("redirect", "said"),
    [
        ("| true", ""),
        ("> /dev/full", "torchtap: standard output cannot be written: No space left on device\n"),
    ],
)
def test_an_output_that_takes_nothing_is_exit_2(words: list[str], redirect: str, said: str):
    """A reader that has gone away says nothing, a full disk one line; in every form of output."""
    line = f"sleep 0.1; {sys.executable} -m torchtap.cli {' '.join(words)} {redirect}"
    if redirect.startswith("|"):
        line = f"({line.removesuffix(redirect)}; echo $? >&2) {redirect}"
    else:
        line = f"{line}; echo $? >&2"
    done = subprocess.run(
        ["bash", "-c", line], capture_output=True, text=True, env=environment(), timeout=120
    )
    assert done.stderr == f"{said}2\n"


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize("option", ["", "--json", "--only nonsense"])
def test_closed_streams_change_no_exit_code(tmp_path: Path, closed: str, option: str):
    """As services and cron may start it; what is opened later must not become the stream."""
    code, file = tmp_path / "code", tmp_path / "report.json"
    line = f"{sys.executable} -m torchtap.cli {' '.join(QUICK)} --output {file} {option} {closed}; echo $? > {code}"
    subprocess.run(["bash", "-c", line], capture_output=True, env=environment(), timeout=120)
    assert code.read_text() == ("2\n" if "nonsense" in option else "0\n")
    assert "nonsense" in option or json.loads(file.read_text())["verdict"] == "pass"


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_any_encoding_can_take_the_report(tmp_path: Path, encoding: str):
    """What nvidia-smi printed is shown, escaped where it must be; JSON is ASCII always."""
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\nprintf '\\346\\227\\245 \\377 lorem\\n'\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    words = ["selftest", "--only", "driver.smi"]
    done = command(*words, "--skip", "device.nodes", PATH=path, PYTHONIOENCODING=encoding)
    assert (done.returncode, done.stderr) == (1, "")
    done = command(*words, "--json", PATH=path, PYTHONIOENCODING=encoding)
    assert done.stdout.isascii()
    assert json.loads(done.stdout)["schema"] == 1
    refused = command("selftest", "--only", "\u65e5", PATH=path, PYTHONIOENCODING=encoding)
    assert (refused.returncode, "Traceback" in refused.stderr) == (2, False)


@pytest.mark.parametrize("columns", ["0", "1", "2", "5", "7", "8", "9", "-3", "wide"])
def test_any_width_can_take_the_report(columns: str):
    """A terminal that says 0 is taken for 80 columns."""
    done = command("selftest", "--device", "cpu", "--skip", "cpu.rnn", COLUMNS=columns)
    assert (done.returncode, done.stderr) == (0, "")
    if columns == "0":
        assert re.search(r"\nPASS    self-test: \d+ passed, \d+ skipped; ", done.stdout)


def test_a_reader_that_goes_away_is_no_traceback():
    """As in `torchtap selftest | head -1`."""
    done = subprocess.run(
        f"{sys.executable} -m torchtap.cli {' '.join(QUICK)} --json | head -c 1",
        shell=True,
        capture_output=True,
        text=True,
        env=environment(),
    )
    assert "Traceback" not in done.stderr
    assert done.stdout == "{"
