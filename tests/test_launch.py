"""The launchers, with stand-ins for the programs of clusters: each notes its words, and some do with them what the real one would."""
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from ptmjax.parallel import distributed
from ptmjax.training.metrics import read_lines
from tests.drivers.processes import COMMAND, TINY

ROOT = Path(__file__).parents[1]
LAUNCHERS = ["again", "gke", "slurm", "tpu_vm"]
AWKWARD = """--gin.A.b="it's $(HOME) $HOME \\ 100 % {x} [y] * ; #" """.strip()
TRAIN = ["--gin_file=bert_demo.gin", "--workdir=gs://bucket/run", AWKWARD]
NOTE = 'printf "%s\\0" "${0##*/}" "$@" >>"$NOTES/calls"; printf "\\n\\0" >>"$NOTES/calls"\n'
STANDINS = {
    "kubectl": 'cat >"$NOTES/kubectl"',
    "scancel": ': >"$NOTES/cancelled"',
    "scontrol": ': >"$NOTES/requeued"',
    "squeue": 'echo "${STATE:-RUNNING}"',
    "sleep": "",
    "nvidia-smi": "printf '%s\\n' 0 1 2 3 5",
    # as often as processes are asked for; the greatest code
    "srun": 'while [[ $1 == --* ]]; do shift; done; most=0\nfor ((i = 0; i < ${TASKS:-1}; i++)); do "$@"; code=$?; ((code <= most)) || most=$code; done; exit $most',
    # the job runs from a copy, and again where it is queued again
    "sbatch": 'while [[ $1 == --* ]]; do shift; done; cp "$1" "$NOTES/spool"; shift; export SLURM_JOB_ID=7 SLURM_RESTART_COUNT=0\n'
              'while rm -f "$NOTES/requeued"; bash "$NOTES/spool" "$@"; code=$?; [ -e "$NOTES/requeued" ]; do ((SLURM_RESTART_COUNT++)); done; exit $code',
    # one worker, whose home is $HOME
    "gcloud": 'for word in "$@"; do [[ $word != --command=* ]] || { cd "$HOME" && exec bash -c "${word#--command=}"; }; done\n'
              '[ "$4" != scp ] || cp "$5" "$HOME/${6#*:}"',
    # an interpreter that makes environments, and whose ptmjax ends with the next code of the file
    "python3": '[[ $2 != *socket* ]] || echo 1234\n'
               '[ "$1 $2" != "-m venv" ] || { mkdir -p "$3/bin"; cp "$0" "$3/bin/python"; }\n[ "$1 $2" = "-m ptmjax" ] || exit 0\n'
               'read -r code <"$NOTES/codes"; sed -i 1d "$NOTES/codes"; exit "${code:-0}"',
}


@pytest.fixture
def notes(tmp_path):
    for name, act in STANDINS.items():
        (tmp_path / "bin").mkdir(exist_ok=True)
        (tmp_path / "bin" / name).write_text(f"#!/usr/bin/env bash\n{NOTE}{act}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    (tmp_path / "home").mkdir()
    return tmp_path


def environment(notes, **more):
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "CUDA_", "PTMJAX_"))}
    path = f"{notes / 'bin'}{os.pathsep}{os.environ['PATH']}"
    return kept | {"PATH": path, "NOTES": str(notes), "HOME": str(notes / "home"), "PTMJAX_PYTHON": str(notes / "bin" / "python3")} | more


def own_signals():
    """In a child: signals have their own effect, though who runs the tests (nohup, a shell's background) may ignore them."""
    for number in (signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)


def launch(notes, script, *words, code=0, **more):
    """(standard output, standard error)."""
    done = subprocess.run(["bash", f"launch/{script}.sh", *words], cwd=ROOT, env=environment(notes, **more), capture_output=True, text=True, timeout=60, preexec_fn=own_signals)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout, done.stderr


def calls(notes, name=""):
    """The words of every call of a stand-in, or of all of them."""
    text = (notes / "calls").read_text() if (notes / "calls").exists() else ""
    found = [call.split("\0")[:-1] for call in text.split("\n\0")[:-1]]
    return [call for call in found if not name or call[0] == name]


def ran(notes):
    """What every process of the training was given."""
    return [call[3:] for call in calls(notes) if call[1:3] == ["-m", "ptmjax"]]


def codes(notes, *given):
    (notes / "codes").write_text("".join(f"{code}\n" for code in given))


def words(lines):
    """The words of lines of shell."""
    return [subprocess.run(["bash", "-c", f"printf '%s\\0' {line}"], capture_output=True, text=True, check=True).stdout.split("\0")[:-1] for line in lines]


# ------------------------------------------------------------------ as text
def tool(name):
    return str(Path(sys.executable).parent / name)


def test_shellcheck_finds_nothing():
    scripts = sorted(str(p.relative_to(ROOT)) for p in (ROOT / "launch").glob("*.sh"))
    assert len(scripts) > 8
    done = subprocess.run([tool("shellcheck"), "--external-sources", *scripts], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_hadolint_finds_nothing_and_the_image_has_what_the_wheel_needs():
    done = subprocess.run([tool("hadolint"), "launch/Dockerfile"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    text = (ROOT / "launch" / "Dockerfile").read_text()
    copied = {word for line in re.findall(r"^COPY (?!--)(.*) \S+$", text, re.M) for word in line.split()}
    assert copied == {"setup.py", "pyproject.toml", "README.md", "LICENSE", "NOTICE", "ptmjax", "tasks", "gin"}
    assert re.findall(r"^FROM \S+ AS (\w+)", text, re.M) == ["sdk", "wheel", "base", "cpu", "cuda", "tpu", "beam"] and text.count("\nUSER 1000\n") == 4
    assert re.findall(r"whl\)\[(\w+)\]\"", text) == ["cuda", "tpu", "beam"]


# ------------------------------------------------------------------ options
OPTIONS = {  # with words that stand in what is printed
    "again": {"restarts": ("3", ""), "pause": ("1", ""), "idle": ("2", ""), "short": ("60", "")},
    "gke": {"name": ("run-1", 'name: "run-1"'), "image": ("r/p:tpu", '"r/p:tpu"'), "accelerator": ("tpu-v6e-slice", '"tpu-v6e-slice"'),
            "topology": ("4x8", "4x8"), "slices": ("2", "replicas: 2"), "chips": ("8", "google.com/tpu: 8"), "bucket": ("texts", '"bucketName": "texts"'),
            "account": ("trainer", '"trainer"'), "restarts": ("7", "maxRestarts: 7"), "grace": ("240", "terminationGracePeriodSeconds: 240")},
    "slurm": {"nodes": ("2", "--nodes=2"), "gpus": ("4", "--gpus-per-node=4 --ntasks-per-node=4"), "cpus": ("3", "srun --cpus-per-task=3"), "time": ("1:00:00", "--time=1:00:00"),
              "name": ("run-1", "--job-name=run-1"), "log": ("a.log", "--output=a.log"), "restarts": ("7", "--restarts=7"), "grace": ("240", "--signal=B:TERM@240")},
    "tpu_vm": {"tpu": ("pod", " pod:ptmjax.tar.gz "), "zone": ("us-east5-a", "--zone=us-east5-a"), "project": ("mine", "--project=mine"),
               "action": ("start", "again.sh"), "setup": ("sudo apt-get update", "sudo apt-get update"), "files": ("tests/drivers", "tests/drivers ."),
               "restarts": ("7", "--restarts=7"), "idle": ("3", "--idle=3")},
}
NEEDED = {"again": [], "gke": ["--name=n", "--image=i", "--accelerator=tpu-v6e-slice", "--topology=2x4"], "slurm": [], "tpu_vm": ["--tpu=t", "--zone=z"]}


@pytest.mark.parametrize("script", LAUNCHERS)
def test_a_dry_run_takes_every_option_and_does_nothing(notes, script):
    text = (ROOT / "launch" / f"{script}.sh").read_text()
    assert set(re.search(r'^given "(.*)" "\$@"', text, re.M)[1].split()) == OPTIONS[script].keys()
    out, _ = launch(notes, script, "--dry_run", *(f"--{name}={value}" for name, (value, _) in OPTIONS[script].items()), "--", *TRAIN)
    assert all(found in out for _, found in OPTIONS[script].values()) and "bert_demo.gin" in out, out
    assert not calls(notes)
    told, _ = launch(notes, script, "--help")
    assert all(f"--{name}=" in told for name in (*OPTIONS[script],)) and "--dry_run" in told and f"launch/{script}.sh " in told, told


@pytest.mark.parametrize("page", ["README.md", "docs/README_zh.md"])
def test_what_the_pages_show_is_a_dry_run_away(notes, page):
    shown = re.findall(r"^bash launch/(again|gke|slurm|tpu_vm)\.sh (.*)$", (ROOT / page).read_text(encoding="utf-8"), re.M)
    assert {script for script, _ in shown} == {*LAUNCHERS}
    for script, given in shown:
        assert launch(notes, script, "--dry_run", *shlex.split(given, comments=True))[0]
    assert not calls(notes)


@pytest.mark.parametrize("script, given, told", [
    *((script, ["--whale=1"], "no option --whale=1") for script in LAUNCHERS),
    *((script, ["bert_demo.gin"], "what is bert_demo.gin?") for script in LAUNCHERS),
    *((script, [*NEEDED[script], "--restarts=0", "--", *TRAIN], "--restarts=0 is no number from 1 on") for script in LAUNCHERS),
    ("again", [], "no command"), ("again", ["--pause=x", "--", "true"], "--pause=x"), ("slurm", ["--nodes=two", "--", *TRAIN], "--nodes=two"), ("slurm", [], "no training"),
    ("slurm", ["--", *TRAIN], "there is no program /nowhere: bash launch/local.sh makes that of .venv"),
    *(("slurm", [*given, "--", *TRAIN], told) for given, told in [
        (["--time=foo"], "--time=foo is not HH:MM:SS"), (["--time=30"], "--time=30 is not HH:MM:SS"), (["--time=0:03:00"], "--time=0:03:00 leaves no time"),
        (["--time=1-00:00:00", "--grace=86400"], "leaves no time"), (["--name="], "--name: its value is missing"), (["--name=a/b"], "--name=a/b"),
        (["--log=nowhere/%j.log"], "--log=nowhere/%j.log: make its folder")]),
    ("again", ["--", "nosuch", "--x"], "there is no program nosuch"), ("again", ["--", "launch"], "there is no program launch"),
    ("tpu_vm", ["--tpu=t"], "--zone is missing"), ("tpu_vm", [*NEEDED["tpu_vm"], "--", "--workdir=runs/x"], "--workdir=gs://... is missing"),
    *((script, [*NEEDED[script], "--", *given], "--workdir=gs://... is missing") for script in ("gke", "tpu_vm") for given in [
        ["--data=x --workdir=gs://b/run y"], ["--workdir=gs://b/run", "--workdir=runs/x"], ["--workdir", "runs/x"], ["--workdir"], ["--workdir=gs://"]]),
    ("tpu_vm", [*NEEDED["tpu_vm"], "--files=nowhere", "--", *TRAIN], "--files=nowhere is no folder"), ("tpu_vm", [*NEEDED["tpu_vm"], "--action=sink"], "--action=sink"),
    ("gke", ["--name=n"], "--image is missing"), ("gke", [*NEEDED["gke"], "--name=N_1", "--", *TRAIN], "--name=N_1"),
    *(("gke", [*NEEDED["gke"], *given, "--", *TRAIN], told) for given, told in [
        (["--topology=16"], "--topology=16 is not AxB,"), (["--topology=2x3"], "no multiple of --chips=4"), (["--topology=2x2x2"], "--topology=2x2x2 is not AxB,"),
        (["--accelerator=tpu-v5p-slice"], "--topology=2x4 is not AxBxC, as tpu-v5p-slice has it"), (["--topology=4294967296x4294967296"], "is not AxB,"),
        (["--topology=0x4"], "--topology=0x4 is not AxB,"), (["--accelerator=tpu-v9"], "--accelerator=tpu-v9: it is tpu-v4-podslice, tpu-v5-lite-podslice,"),
        (["--bucket="], "--bucket: its value is missing"), (["--bucket=gs://texts"], "--bucket=gs://texts: give the bare name"), (["--bucket=My Texts"], "--bucket=My Texts"),
        (["--image=a b"], "--image=a b"), (["--account=Me"], "--account=Me")]),
    ("gke", [*NEEDED["gke"], "--", "--workdir=/bucket/run"], "--workdir=gs://... is missing"),
    ("gke", NEEDED["gke"], "--workdir=gs://... is missing"), ("gke", [*NEEDED["gke"], "--", *TRAIN, "a\nb"], "control character"),
])
def test_a_users_fault_is_one_line_and_code_2(notes, script, given, told):
    out, err = launch(notes, script, *given, code=2, PTMJAX_PYTHON="/nowhere")
    assert not out and err.startswith("ptmjax: error: ") and err.count("\n") == 1 and told in err, err
    assert not calls(notes)


@pytest.mark.parametrize("script, program", [("gke", "kubectl"), ("slurm", "sbatch"), ("tpu_vm", "gcloud")])
def test_a_program_that_is_missing_is_told(notes, script, program):
    few = notes / "few"
    few.mkdir()
    for name in ("bash", "dirname", "cat"):
        (few / name).symlink_to(shutil.which(name))
    _, err = launch(notes, script, *NEEDED[script], "--", *TRAIN, code=2, PATH=str(few))
    assert err == f"ptmjax: error: there is no program {program}: install it, or add its folder to PATH\n"


# ------------------------------------------------------------------ again
@pytest.mark.parametrize("given, restarts, code, runs", [
    ([143, 143, 0], 9, 0, 3), ([143, 75, 134, 137, 0], 9, 0, 5), ([143, 2, 0], 9, 2, 2), ([1, 0], 9, 1, 1), ([130, 0], 9, 130, 1), ([143] * 4, 2, 143, 3)])
def test_again_starts_the_same_until_it_is_done_or_a_fault_is_its_users(notes, given, restarts, code, runs):
    codes(notes, *given)
    launch(notes, "again", f"--restarts={restarts}", "--", "python3", "-m", "ptmjax", "train", *TRAIN, code=code)
    assert ran(notes) == [["train", *TRAIN]] * runs


@pytest.mark.parametrize("given, idle, code, runs", [
    ([75] * 9, 3, 75, 3), ([134, 137, 0], 2, 137, 2), ([143] * 9, 3, 143, 3), ([75, 75, 143, 75, 75, 0], 3, 0, 6), ([75, 2], 2, 2, 2)])
def test_again_gives_up_where_attempts_in_a_row_come_to_nothing(notes, given, idle, code, runs):
    """As they do on all workers but the one that has ended with a fault; a save between them (143, after more than 5 s) is something."""
    codes(notes, *given)
    (notes / "env").write_text("trap 'case $BASH_COMMAND in lasted=*) SECONDS=$((SECONDS + 5));; esac' DEBUG\n")
    slow = {"BASH_ENV": str(notes / "env")} if 75 in given else {}
    _, err = launch(notes, "again", f"--idle={idle}", "--", "python3", "-m", "ptmjax", "train", *TRAIN, code=code, **slow)
    assert len(ran(notes)) == runs
    told = f"ptmjax: gives up: ended with code {code}, as {idle} attempts in a row within 900 s each: see what the run's other processes said last\n"
    assert err.endswith(told) if runs == idle and code != 2 else "gives up" not in err


def test_an_attempt_that_lasted_was_not_in_vain(notes):
    codes(notes, 75, 75, 0)
    slow = "read -rt 1.1 <> <(:); exec python3 -m ptmjax"
    launch(notes, "again", "--idle=2", "--short=1", "--", "bash", "-c", slow)
    assert len(ran(notes)) == 3


def test_a_sigterm_that_comes_while_a_command_is_started_is_not_lost(notes):
    """Between its start and the line that keeps its number."""
    (notes / "env").write_text("set -T; trap 'case $BASH_COMMAND in \"child=\\$!\") kill -TERM $$;; esac' DEBUG\n")
    command = ["bash", "launch/again.sh", "--", "bash", "--norc", "-c", 'exec env -u BASH_ENV tail -f /dev/null']
    done = subprocess.run(command, cwd=ROOT, env=environment(notes, BASH_ENV=str(notes / "env")), capture_output=True, text=True, timeout=30)
    assert done.returncode == 143 and not done.stderr, done


def signalled(notes, command, number, begun="begun"):
    """What `command` says after it has said `begun` and got the signal, as from a terminal: all of its group; and its exit code."""
    run = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment(notes), text=True, process_group=0, preexec_fn=own_signals)
    try:
        assert run.stdout.readline() == f"{begun}\n"
        os.killpg(run.pid, number)
        return run.communicate(timeout=30)[0], run.returncode
    except subprocess.TimeoutExpired:
        os.killpg(run.pid, signal.SIGKILL)
        raise


@pytest.mark.parametrize("number, heard, code", [(signal.SIGTERM, "TERM", 143), (signal.SIGHUP, "TERM", 143), (signal.SIGINT, "INT", 75)])
def test_a_signal_ends_the_command_which_is_not_started_again(notes, number, heard, code):
    """It is waited for, and its code is told. Of a terminal that is closed it hears as of SIGTERM."""
    (notes / "command").write_text(f'trap "read -rt .3 <> <(:); echo saved; exit {code}" {heard}; echo begun; while :; do read -rt .1 <> <(:); done')
    assert signalled(notes, ["bash", "launch/again.sh", "--", "bash", str(notes / "command")], number) == ("saved\n", code)


@pytest.mark.parametrize("number, code", [(signal.SIGTERM, 143), (signal.SIGHUP, 143), (signal.SIGINT, 130)])
def test_a_signal_in_a_pause_ends_all(notes, number, code):
    """Also where no terminal sends it to the pause itself."""
    codes(notes, 75, 0)
    (notes / "bin" / "sleep").write_text('#!/usr/bin/env bash\necho $$ >"$NOTES/sleep"; kill "-$NUMBER" $PPID; exec tail -f /dev/null\n')
    launch(notes, "again", "--", "python3", "-m", "ptmjax", "train", code=code, NUMBER=str(int(number)))
    assert len(ran(notes)) == 1 and not os.path.exists(f"/proc/{(notes / 'sleep').read_text().strip()}")


# ------------------------------------------------------------------ SLURM
SLURM = ["--nodes=2", "--gpus=1", "--cpus=5", "--", *TRAIN]


def test_slurm_hands_the_arguments_on_as_they_are(notes):
    """What a dry run prints is what is called."""
    out, _ = launch(notes, "slurm", "--dry_run", *SLURM)
    launch(notes, "slurm", *SLURM, TASKS="2")
    assert words(out.splitlines()) == [*calls(notes, "sbatch"), *calls(notes, "srun")]
    assert ran(notes) == [["train", "--distributed", *TRAIN]] * 2


def test_slurm_takes_an_interpreter_by_its_name(notes):
    launch(notes, "slurm", *SLURM, PTMJAX_PYTHON="python3")
    assert ran(notes) == [["train", "--distributed", *TRAIN]]


@pytest.mark.parametrize("given, code, jobs", [
    ([143, 143, 143, 143, 0, 0], 0, 3), ([137, 75, 0, 0], 0, 2), ([2, 75], 2, 1), ([75, 1], 1, 1), ([0, 2], 2, 1), ([143] * 6, 143, 3)])
def test_slurm_queues_again_unless_one_process_had_a_fault(notes, given, code, jobs):
    """Of the codes of two processes; three jobs at most."""
    codes(notes, *given)
    launch(notes, "slurm", "--restarts=2", *SLURM, TASKS="2", code=code)
    assert len(ran(notes)) == 2 * jobs and len(calls(notes, "scontrol")) == jobs - 1
    assert all(call == ["scontrol", "requeue", "7"] for call in calls(notes, "scontrol"))


def test_a_slurm_job_that_is_cancelled_is_not_queued_again(notes):
    codes(notes, 143)
    launch(notes, "slurm", *SLURM, STATE="COMPLETING", code=143)
    assert not calls(notes, "scontrol")


def test_slurms_sigterm_goes_to_the_processes_of_the_step(notes):
    """Which end with 143 after it; this shell outlives it, and queues the job again."""
    (notes / "bin" / "srun").write_text('#!/usr/bin/env bash\necho begun; while [ ! -e "$NOTES/cancelled" ]; do read -rt .1 <> <(:); done; exit 143\n')
    command = ["bash", "launch/slurm.sh", "--inside", str(ROOT / "launch"), *SLURM]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(notes, SLURM_JOB_ID="7"), text=True) as job:
        assert job.stdout.readline() == "begun\n"
        job.send_signal(signal.SIGTERM)
        assert "queued again" in job.communicate(timeout=30)[1] and job.returncode == 143
    assert calls(notes, "scancel") == [["scancel", "--signal=TERM", "7"]] and calls(notes, "scontrol") == [["scontrol", "requeue", "7"]]


@pytest.mark.slow
def test_two_tasks_of_a_slurm_job_join_save_on_its_sigterm_and_go_on(notes):
    """The real command, which jax joins by what SLURM tells; the job gets SIGTERM at step 3 of 6, and is queued again."""
    (notes / "bin" / "srun").write_text("""#!/usr/bin/env bash
while [[ $1 == --* ]]; do shift; done
export SLURM_STEP_NODELIST=localhost SLURM_NTASKS=2 most=0
for SLURM_PROCID in 0 1; do export SLURM_PROCID SLURM_LOCALID=$SLURM_PROCID; setsid "$@" & echo $! >"$NOTES/task$SLURM_PROCID"; done
for task in 0 1; do wait "$(<"$NOTES/task$task")"; code=$?; ((code <= most)) || most=$code; done; exit "$most"
""")
    (notes / "bin" / "scancel").write_text(f'#!/usr/bin/env bash\n{NOTE}for task in 0 1; do kill -TERM -- "-$(<"$NOTES/task$task")"; done\n')
    slow = shlex.join([sys.executable, *COMMAND, "step", "3", f"kill -TERM $(cat {notes}/job); sleep 5"])
    (notes / "bin" / "python3").write_text(f'#!/usr/bin/env bash\n[ "$SLURM_PROCID $SLURM_RESTART_COUNT" != "1 0" ] || exec {slow} "${{@:3}}"\nexec {sys.executable} "$@"\n')
    sbatch = STANDINS["sbatch"].replace("SLURM_JOB_ID=7", f"SLURM_JOB_ID={os.getpid()}").replace('bash "$NOTES/spool" "$@"; code', 'bash "$NOTES/spool" "$@" & echo $! >"$NOTES/job"; wait $!; code')
    (notes / "bin" / "sbatch").write_text(f"#!/usr/bin/env bash\n{NOTE}{sbatch}\n")
    given = [f"--gin_file={TINY}", f"--workdir={notes / 'run'}", f"--cache={notes / 'cache'}", "--gin.Experiment.mesh='data=2'"]
    flags = re.sub(r"(?<=count=)\d+", "1", os.environ["XLA_FLAGS"])
    done = subprocess.run(["bash", "launch/slurm.sh", "--gpus=2", "--", *given], cwd=ROOT, env=environment(notes, XLA_FLAGS=flags), capture_output=True, text=True, timeout=280)
    said = done.stdout + done.stderr
    assert done.returncode == 0 and "2 x cpu (cpu) in 2 process(es)" in said and "curve.png" in said, said
    assert len(re.findall(r"stopped by SIGTERM, step (\d) is saved", said)) == 2 and "ended with code 143: the job is queued again" in said, said
    assert re.search(r"going on from step [345] of 6", said) and len(calls(notes, "scancel")) == len(calls(notes, "scontrol")) == 1
    assert [line["step"] for line in read_lines(notes / "run" / "metrics.jsonl") if "set" not in line] == list(range(1, 7))


# ------------------------------------------------------------------ a TPU VM
TPU = ["--tpu=pod", "--zone=z"]


def ended(notes, runs):
    """Waits until the worker has started so many processes, and has no run any more."""
    end = time.monotonic() + 60
    while len(ran(notes)) < runs or subprocess.run(["flock", "-n", notes / "home/ptmjax/run.lock", "true"]).returncode:
        assert time.monotonic() < end, calls(notes)
        time.sleep(0.05)


def test_a_tpu_vm_installs_once_and_starts_the_arguments_as_they_are(notes):
    codes(notes, 143, 0)
    (notes / "mine").mkdir()
    (notes / "mine" / "my.gin").write_text("")
    (notes / "mine" / ".venv").mkdir()
    given = [*TPU, f"--files={notes / 'mine'}", "--setup=touch setup-was-here; true; # and", "--", *TRAIN]
    launch(notes, "tpu_vm", *given)
    ended(notes, 2)
    assert ran(notes) == [["train", "--distributed", *TRAIN]] * 2
    there = notes / "home" / "ptmjax"
    assert all((there / name).exists() for name in ("ptmjax/cli/main.py", "tasks/shipped", "gin/bert_demo.gin", "launch/env.sh", "my.gin", "setup-was-here"))
    assert "(restart 1 of 100 at most)" in (there / "run.log").read_text()
    (notes / "mine" / "my.gin").rename(notes / "mine" / "other.gin")
    (there / "ptmjax" / "deleted_since.py").touch()
    launch(notes, "tpu_vm", *given)
    ended(notes, 3)
    assert (there / "other.gin").exists() and not any((there / name).exists() for name in ("my.gin", "ptmjax/deleted_since.py", ".fresh"))
    assert "(restart 1 of 100 at most)" in (there / "run.log").read_text() and (there / "ptmjax/cli/main.py").exists()
    installed = [call for call in calls(notes) if call[1:4] == ["-m", "pip", "install"]]
    assert len(installed) == 1 and installed[0][-2:] == ["--editable", ".[tpu]"]
    assert [call[4:] for call in calls(notes, "gcloud")][1] == ["ssh", "pod", "--zone=z", "--worker=all", calls(notes, "gcloud")[1][-1]]


def test_a_tpu_vm_has_one_run_that_can_be_stopped(notes):
    (notes / "bin" / "python3").write_text(f"#!/usr/bin/env bash\n{NOTE}" + STANDINS["python3"].replace(
        "read -r code", 'trap "echo saved; exit 143" TERM; while :; do read -rt .1 <> <(:); done; read -r code'))
    launch(notes, "tpu_vm", *TPU, "--", *TRAIN)
    end = time.monotonic() + 30
    while not ran(notes):
        assert time.monotonic() < end
        time.sleep(0.05)
    _, err = launch(notes, "tpu_vm", *TPU, "--", *TRAIN, code=2)
    assert "a run is there already" in err
    launch(notes, "tpu_vm", *TPU, "--action=stop")
    ended(notes, 1)
    assert launch(notes, "tpu_vm", *TPU, "--action=log")[0] == "saved\n" and len(ran(notes)) == 1


def test_a_tpu_vm_stops_nothing_but_its_run(notes):
    """run.pid may name a process of another since the machine began anew."""
    there = notes / "home" / "ptmjax"
    there.mkdir()
    with subprocess.Popen(["tail", "-f", "/dev/null"]) as other:
        (there / "run.pid").write_text(f"{other.pid}\n")
        assert launch(notes, "tpu_vm", *TPU, "--action=stop")[0] == "ptmjax: no run is there\n"
        with subprocess.Popen(["flock", there / "run.lock", "tail", "-f", "/dev/null"], process_group=0) as held:
            while not subprocess.run(["flock", "-n", there / "run.lock", "true"]).returncode:
                time.sleep(0.05)
            _, err = launch(notes, "tpu_vm", *TPU, "--action=stop", code=2)
            os.killpg(held.pid, signal.SIGTERM)
        assert err.startswith("ptmjax: no launch/again.sh has the number in run.pid") and other.poll() is None
        other.kill()


# ------------------------------------------------------------------ GKE
GKE = ["--name=run1", "--image=r/p:tpu", "--accelerator=tpu-v6e-slice", "--topology=4x8", "--slices=3"]


def expanded(word):
    """As Kubernetes reads an argument."""
    return re.sub(r"\$\$|\$\((\w+)\)", lambda found: "$" if found[0] == "$$" else f"value of {found[1]}", word)


def jobset(notes, *more):
    out, _ = launch(notes, "gke", "--dry_run", *GKE, *more, "--", *TRAIN)
    return yaml.safe_load(out)


def test_a_jobset_is_what_kubectl_is_given(notes):
    found = jobset(notes)
    launch(notes, "gke", *GKE, "--", *TRAIN)
    assert calls(notes) == [["kubectl", "apply", "--filename=-"]] and yaml.safe_load((notes / "kubectl").read_text()) == found
    job, = found["spec"]["replicatedJobs"]
    assert (found["apiVersion"], found["kind"], found["metadata"]["name"], job["replicas"]) == ("jobset.x-k8s.io/v1alpha2", "JobSet", "run1", 3)
    assert (job["template"]["spec"]["parallelism"], job["template"]["spec"]["completions"]) == (8, 8)  # 32 chips, 4 a node
    container, = job["template"]["spec"]["template"]["spec"]["containers"]
    assert [expanded(word) for word in container["args"]] == ["train", "--distributed", *TRAIN]


@pytest.mark.parametrize("accelerator, topology, nodes", [
    ("tpu-v4-podslice", "2x2x4", 4), ("tpu-v5-lite-podslice", "16x16", 64), ("tpu-v5p-slice", "4x4x8", 32), ("tpu7x", "2x2x1", 1)])
def test_every_accelerator_has_its_axes(notes, accelerator, topology, nodes):
    job, = jobset(notes, f"--accelerator={accelerator}", f"--topology={topology}")["spec"]["replicatedJobs"]
    selected = job["template"]["spec"]["template"]["spec"]["nodeSelector"]
    assert [*selected.values()] == [accelerator, topology] and job["template"]["spec"]["parallelism"] == nodes


@pytest.mark.parametrize("given", [["--workdir", "gs://bucket/run"], ["--bucket=my_texts.org", "--", "--workdir=/bucket/run"]])
def test_a_work_folder_is_told_in_either_way(notes, given):
    given = given if "--" in given else ["--", *given]
    assert launch(notes, "gke", "--dry_run", *GKE, *given)[0]


@pytest.mark.parametrize("version", ["1.29", kubernetes_validate.latest_version()])
@pytest.mark.parametrize("more", [[], ["--bucket=texts"]])
def test_the_jobs_of_a_jobset_are_valid(notes, version, more):
    """A JobSet itself is no kind of Kubernetes' own; a wrong word in its jobs is seen."""
    spec = jobset(notes, *more)["spec"]["replicatedJobs"][0]["template"]["spec"]
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "run1"}, "spec": spec}
    kubernetes_validate.validate(job, version, strict=True)
    spec["template"]["spec"]["containers"][0]["volumeMount"] = spec["template"]["spec"]["containers"][0].pop("volumeMounts")
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(job, version, strict=True)


def test_a_jobset_restarts_as_a_whole_but_not_on_a_fault(notes):
    spec = jobset(notes)["spec"]
    job = spec["replicatedJobs"][0]["template"]["spec"]
    assert (job["backoffLimit"], job["template"]["spec"]["restartPolicy"], job["completionMode"]) == (0, "Never", "Indexed")
    rule, = job["podFailurePolicy"]["rules"]
    assert rule == {"action": "FailJob", "onExitCodes": {"containerName": job["template"]["spec"]["containers"][0]["name"], "operator": "In", "values": [1, 2]}}
    assert spec["failurePolicy"] == {"maxRestarts": 100, "rules": [{"name": "fault", "action": "FailJobSet", "onJobFailureReasons": ["PodFailurePolicy"]}]}


# ------------------------------------------------------------------ processes of one machine
@pytest.mark.parametrize("given, n, gpus", [({}, 2, ["0,1", "2,3"]), ({}, 5, ["0", "1", "2", "3", "5"]), ({}, 6, []), ({"CUDA_VISIBLE_DEVICES": "4,6"}, 2, ["4", "6"]),
                                            ({"CUDA_VISIBLE_DEVICES": ""}, 2, [])])
def test_processes_share_the_gpus_of_a_machine(notes, given, n, gpus):
    """nvidia-smi tells of five."""
    out, _ = launch(notes, "processes", "--dry_run", str(n), *TRAIN, **given)
    found = words(out.splitlines())
    process = lambda i: [environment(notes)["PTMJAX_PYTHON"], "-m", "ptmjax", "train", "--coordinator=localhost:PORT", f"--processes={n}", f"--process={i}", *TRAIN]
    assert found == [[*(["env", f"CUDA_VISIBLE_DEVICES={gpus[i]}"] if gpus else []), *process(i)] for i in range(n)]
    assert not ran(notes)


def test_processes_tell_their_options(notes):
    told, _ = launch(notes, "processes", "--help")
    assert all(f"\n{option}" in told for option in ("--grace=S", "--dry_run", "  bash launch/processes.sh [options] N"))


def test_processes_take_an_interpreter_by_its_name_or_tell_that_it_is_missing(notes):
    launch(notes, "processes", "2", *TRAIN, PTMJAX_PYTHON="python3")
    assert len(ran(notes)) == 2
    _, err = launch(notes, "processes", "2", *TRAIN, PTMJAX_PYTHON="nosuch", code=2)
    assert err == "ptmjax: error: there is no program nosuch: let PTMJAX_PYTHON name a Python that has ptmjax, or unset it\n"
    _, err = launch(notes, "processes", "2", *TRAIN, PTMJAX_PYTHON="true", code=2)
    assert err == "ptmjax: error: true does not run ptmjax: let PTMJAX_PYTHON name a Python that has ptmjax, or unset it\n"


def test_survivors_have_the_time_to_notice_that_one_is_lost():
    told = re.search(r"else within (\d+); fi$", (ROOT / "launch/processes.sh").read_text(), re.M)
    assert int(told[1]) == distributed.HEARTBEAT + 15


def on_eight(notes, given, act, **more):
    """launch/processes.sh of eight processes whose python does `act`; (exit code, seconds, numbers of processes that are left)."""
    begin = time.monotonic()
    (notes / "bin" / "python3").write_text(f'#!/usr/bin/env bash\n[ "$1" != -c ] || {{ echo 1; exit; }}\necho $$ >>"$NOTES/pids"\n{act}\nexec tail -f /dev/null\n')
    (notes / "pids").touch()
    real = environment(notes, CUDA_VISIBLE_DEVICES="", **more) | {"PATH": os.environ["PATH"]}  # its sleep
    done = subprocess.run(["bash", "launch/processes.sh", *given, "8", *TRAIN], cwd=ROOT, env=real, capture_output=True, text=True, timeout=60)
    return done.returncode, time.monotonic() - begin, [pid for pid in (notes / "pids").read_text().split() if os.path.exists(f"/proc/{pid}")]


def test_a_sigterm_that_comes_while_processes_are_started_ends_them_all(notes):
    """Between the start of the first and the line that keeps its number."""
    (notes / "env").write_text("trap 'case $BASH_COMMAND in \"pids+=(\"*\\$*) [ -n \"${sent-}\" ] || { sent=1; kill -TERM $$; };; esac' DEBUG\n")
    code, _, left = on_eight(notes, [], "", BASH_ENV=str(notes / "env"))
    assert code == 143 and not left


@pytest.mark.parametrize("deaf, code", [("7", 143), ("[0-7]", 137)])
def test_what_has_not_saved_in_the_time_given_is_killed(notes, deaf, code):
    """SIGTERM goes to all, whom the last or none of them heeds."""
    wait = 'until [ -e "$NOTES/deaf7" ]; do sleep 0.05; done; kill -TERM $PPID'
    act = f'case $* in *--process={deaf}\\ *) trap "" TERM; : >"$NOTES/deaf${{6#*=}}";; esac; case $* in *--process=0*) {wait};; esac'
    found, seconds, left = on_eight(notes, ["--grace=2"], act)
    assert found == code and not left and 1 <= seconds < 30


def test_the_end_of_a_terminal_comes_to_processes_as_sigterm(notes):
    """And Ctrl-C as it is: what a shell starts beside itself does not hear of it."""
    act = 'trap "exit 143" TERM; trap "exit 130" INT; echo begun; while :; do read -rt .1 <> <(:); done'
    (notes / "bin" / "python3").write_text(f'#!/usr/bin/env bash\n[ "$1" != -c ] || {{ echo 1; exit; }}\n{act}\n')
    assert signalled(notes, ["bash", "launch/processes.sh", "1", *TRAIN], signal.SIGHUP)[1] == 143
    said, code = signalled(notes, ["bash", "launch/processes.sh", "1", *TRAIN], signal.SIGINT)
    assert code == 130 and said == "ptmjax: process 0 of 0 to 0 ended with code 130: the others are ended\n"


def test_a_signal_at_the_moment_in_which_the_command_ends_gives_its_code_or_the_signals(tmp_path):
    """bash may lose the command's then, and tells -1."""
    runs = []
    for i in range(40):
        name = signal.SIGHUP if i % 2 else signal.SIGTERM
        runs.append(subprocess.Popen(["bash", "launch/again.sh", "--", "sh", "-c", f"touch {tmp_path}/{i}; sleep 0.1; exit 0"], cwd=ROOT, stderr=subprocess.DEVNULL, preexec_fn=own_signals))
        while not (tmp_path / str(i)).exists():
            time.sleep(0.002)
        time.sleep(0.09 + 0.001 * (i % 20))
        runs[-1].send_signal(name)
    assert {run.wait(30) for run in runs} <= {0, 143}
