"""Hostile programs are contained and fail, and the next one is graded as if nothing had been."""

import json
import os
import socket
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path

import pytest

from asd_jax.evaluation.grading import sandbox
from asd_jax.evaluation.grading.confined import isolation
from asd_jax.evaluation.grading.sandbox import Limits, run_confined

LIMITS = Limits(wall_seconds=8.0, cpu_seconds=1, memory_bytes=1 << 29, disk_bytes=1 << 20)
CHECK = "assert double(2) == 4"
RIGHT = "def double(x):\n    return 2 * x"
WRONG = "def double(x):\n    return None"


def run(program: str, tests: str = CHECK, limits: Limits = LIMITS) -> sandbox.Run:
    return run_confined([("answer", program), ("tests", tests)], limits)


def test_right_passes_and_wrong_fails():
    assert run(RIGHT) == sandbox.Run(True, "passed", sandbox.enforced())
    assert run(WRONG).is_passed is False
    assert "AssertionError" in run(WRONG).detail


# Each ends with the right function, so that only what it does before can make it fail.
HOSTILE = {
    "endless loop": ("while True: pass", "processor time"),
    "fork bomb": ("import os\nwhile True: os.fork()", "os.fork"),
    "swallowed fork bomb": (
        "import os\nwhile True:\n    try: os.fork()\n    except BaseException: pass",
        "os.fork",
    ),
    "processes": ("import subprocess\nsubprocess.run(['true'])", "subprocess"),
    "shell": ("import os\nos.system('true')", "os.system"),
    "threads": ("import threading\nthreading.Thread(target=print).start()", "thread"),
    "memory": ("hog = bytearray(1 << 40)", "MemoryError"),
    "growing memory": ("hog = [0]\nwhile True: hog = hog * 2", "MemoryError"),
    "large file": ("open('big', 'wb').write(bytes(2 << 20))", "File too large"),
    "network": ("import socket\nsocket.create_connection(('127.0.0.1', 9))", "socket"),
    "datagrams": ("import socket\nsocket.socket(socket.AF_INET, socket.SOCK_DGRAM)", "socket"),
    "exit at once": ("import os\nos._exit(0)", "ended with status 0"),
    "exit politely": ("import sys\nsys.exit(0)", "SystemExit(0)"),
    "abort": ("import os\nos.abort()", "SIGABRT"),
    "killing the parent": ("import os\nos.kill(os.getppid(), 9)", "os.kill"),
    "killing everybody": ("import os\nos.kill(-1, 9)", "os.kill"),
    "environment of the parent": (
        "import os\nopen(f'/proc/{os.getppid()}/environ').read()",
        "/proc",
    ),
    "own memory": ("open('/proc/self/mem', 'rb')", "/proc"),
    "native code": ("import ctypes", "ctypes"),
    "native code again": ("import sys\ndel sys.modules['_ctypes']\nimport _ctypes", "ctypes"),
    "frames of the harness": ("import gc\ngc.get_objects()", "gc.get_objects"),
    "frames of other threads": ("import sys\nsys._current_frames()", "sys._current_frames"),
    "waiting for input": ("input()", "EOFError"),
    "infinite recursion": ("def f(): f()\nf()", "RecursionError"),
    "syntax": ("def f(:", "SyntaxError"),
    "null": ("\0", "null bytes"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_programs_fail_for_the_reason_they_should(name):
    program, reason = HOSTILE[name]
    outcome = run(f"{program}\n{RIGHT}")
    assert not outcome.is_passed
    assert reason in outcome.detail
    assert run(RIGHT).is_passed


def test_sleeping_ends_at_the_wall_limit_and_nothing_is_left():
    start = time.monotonic()
    limits = Limits(wall_seconds=1.0, cpu_seconds=1)
    outcome = run("import time\ntime.sleep(60)", limits=limits)
    assert (outcome.is_passed, outcome.detail) == (False, "over the limit of 1 s")
    assert time.monotonic() - start < 4


@pytest.mark.parametrize(
    "place", ["../{}", "/tmp/{}", "/etc/{}", "link/{}", "/var/tmp/{}", "/dev/shm/{}"]
)
def test_nothing_is_written_outside(place):
    file = f"asd_jax_escaped_{uuid.uuid4().hex}"
    name = place.format(file)
    program = "import os\ntry: os.symlink('/tmp', 'link')\nexcept OSError: pass\n"
    outcome = run(f"{program}open({name!r}, 'w').write('x')\n{RIGHT}")
    # Where it has a file system of its own, the paths that begin with /tmp are inside.
    if not name.startswith(("/tmp", "link")) or "files" not in sandbox.enforced():
        assert not outcome.is_passed
    for directory in ("/", "/tmp", "/etc", "/var/tmp", "/dev/shm"):
        assert not Path(directory, file).exists()


def test_files_can_be_used_inside():
    program = "open('note', 'w').write('4')\ndef double(x):\n    return int(open('note').read())"
    assert run(program).is_passed


def test_nothing_of_the_callers_environment_is_seen(monkeypatch):
    monkeypatch.setenv("ASD_JAX_SECRET", "key")
    assert run(f"import os\nassert 'ASD_JAX_SECRET' not in os.environ\n{RIGHT}").is_passed


@pytest.mark.parametrize(
    "program",
    [
        "print('passed')\nimport os\nos._exit(0)",
        "import os\nfor fd in range(3, 64):\n"
        "    try: os.write(fd, b'\\npassed\\n\\npassed 0000\\npassed  \\n')\n"
        "    except OSError: pass\nos._exit(0)",
        "import atexit, os\natexit.register(os._exit, 0)\nraise SystemExit(0)",
        "import builtins\nbuiltins.exec = lambda *a: None\nraise ValueError",
        "import sys\nsys.stdout.write('passed')\nsys.exit()",
        '"""',
        "import os\nos._exit = lambda code: None\nos.write = lambda *a: 1\n" + WRONG,
    ],
)
def test_faked_success_is_no_success(program):
    assert not run(program).is_passed


def test_patched_modules_do_not_stop_a_right_answer_from_passing():
    patches = (
        "import os, json, builtins\nos.write = os._exit = json.dumps = builtins.print = None\n"
    )
    assert run(patches + RIGHT).is_passed


@pytest.mark.parametrize(
    "program",
    [
        "import math, re, random, collections, itertools, functools, heapq, bisect, statistics",
        "from __future__ import annotations\nimport dataclasses\n"
        "@dataclasses.dataclass\nclass Point:\n    x: int = 1\nassert Point().x == 1",
        "import asyncio\nasync def one(): return 1\nassert asyncio.run(one()) == 1",
        "import sys\nsys.setrecursionlimit(20000)\n"
        "def deep(n): return n and deep(n - 1)\nassert deep(9000) == 0",
        "if __name__ == '__main__':\n    raise SystemExit",
    ],
)
def test_honest_programs_are_not_in_the_way(program):
    outcome = run(f"{program}\n{RIGHT}")
    assert outcome.is_passed, outcome.detail


def test_threads_may_grade_at_the_same_time():
    outcomes = {}

    def grade(number: int) -> None:
        outcomes[number] = run(RIGHT if number % 2 else WRONG).is_passed

    threads = [threading.Thread(target=grade, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes == {number: bool(number % 2) for number in range(6)}


# What the kernel does, seen without the audit hook, which would end the process before. The second
# choice is seen by making the first impossible.
_PROBE = """
import importlib.util, json, os, pathlib, socket, sys
confined, directory, parent, port, secret, choice = sys.argv[1:]
def load(name):
    spec = importlib.util.spec_from_file_location(name, f"{confined}/{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
isolation, landlock = load("isolation"), load("landlock")
if choice == "landlock":
    isolation._CLONE_NEWNS = -1  # no such flag: refused
isolation.limit_resources({"memory_bytes": 1 << 30, "cpu_seconds": 5, "disk_bytes": 1 << 16})
taken = isolation.isolate(directory, 1 << 16, landlock.restrict)
isolation.forbid_processes()
def attempt(act):
    try:
        act()
    except OSError as error:
        return type(error).__name__
    return "done"
def flood():
    for number in range(10):
        open(f"part{number}", "wb").write(bytes(1 << 15))
seen = {
    "fork": attempt(lambda: os.fork() or os._exit(0)),
    "connect": attempt(lambda: socket.create_connection(("127.0.0.1", int(port)))),
    "environ": attempt(lambda: open(f"/proc/{parent}/environ").read()),
    "read": attempt(lambda: open(secret).read()),
    "write": attempt(lambda: open(secret, "a").write("x")),
    "remove": attempt(lambda: os.remove(secret)),
    "create": attempt(lambda: open(secret + "2", "w")),
    "list": attempt(lambda: os.listdir(os.path.dirname(secret))),
    "library": attempt(lambda: open(json.__file__, "a")),
    "chroot": attempt(lambda: os.chroot(".")),
    "mount": attempt(lambda: isolation._enter_small_root(
        isolation.ctypes.CDLL(None, use_errno=True), ".", 1 << 16)),
    "kill": attempt(lambda: os.kill(int(parent), 0)),
    "flood": attempt(flood),
    "inside": attempt(lambda: open("own", "w").close()),
}
print(json.dumps([taken, seen]))
"""


def probe(tmp_path: Path, choice: str) -> tuple[list[str], dict[str, str]]:
    """Returns what was taken from a process, and what became of its attempts."""
    secret, directory = tmp_path / "secret", tmp_path / "empty"
    secret.write_text("key")
    directory.mkdir()
    confined = Path(sandbox.__file__).with_name("confined")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)):
            pass  # it can be reached from here
        arguments = (confined, directory, os.getpid(), port, secret, choice)
        done = subprocess.run(
            (sys.executable, "-I", "-c", _PROBE, *map(str, arguments)),
            capture_output=True,
            text=True,
            timeout=30,
        )
    assert done.returncode == 0, done.stderr
    assert secret.read_text() == "key" and not Path(f"{secret}2").exists()
    taken, seen = json.loads(done.stdout)
    assert seen.pop("inside") == "done"
    return taken, seen


def test_namespaces_hold_without_the_hook(tmp_path):
    taken, seen = probe(tmp_path, "namespaces")
    if not {"network", "files"} <= set(taken):
        pytest.skip("this kernel or container grants no namespaces")
    assert "privileges" in taken
    assert seen["fork"] == "BlockingIOError"
    if "user" not in taken:
        del seen["kill"]  # the same user; there the hook alone prevents it
    assert "done" not in seen.values(), seen


def test_landlock_holds_without_the_hook(tmp_path):
    taken, seen = probe(tmp_path, "landlock")
    if "files" not in taken:
        pytest.skip("this kernel has no Landlock")
    assert not {"network"} & set(taken) and "privileges" in taken
    del seen["flood"]  # each file is limited, their number is not
    if os.geteuid() == 0 and "user" not in taken:
        del seen["fork"]  # root is exempt from the limit on processes
    for name, attempts in (("tcp", ["connect"]), ("signals", ["kill"])):
        if name not in taken:
            for attempt in attempts:
                del seen[attempt]
    assert "done" not in seen.values(), seen


def test_python_may_lie_below_the_folder_of_temporary_files(tmp_path):
    """An environment under /tmp is read after the confinement, too."""
    package = tmp_path / "late"
    package.mkdir()
    (package / "late_module.py").write_text("VALUE = 7\n")
    confine = (
        "import importlib.util, sys\n"
        f"sys.path.append({str(package)!r})\n"
        f"spec = importlib.util.spec_from_file_location('isolation', {isolation.__file__!r})\n"
        "isolation = importlib.util.module_from_spec(spec)\n"
        "spec.loader.exec_module(isolation)\n"
        "isolation.isolate(sys.argv[1], 1 << 20)\n"
        "import late_module\n"
        "assert late_module.VALUE == 7\n"
        "open('written', 'w').write('here')\n"
    )
    work = tmp_path / "work"
    work.mkdir()
    done = subprocess.run(
        [sys.executable, "-I", "-c", confine, str(work)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
