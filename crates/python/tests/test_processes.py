"""Forked and spawned processes."""

import multiprocessing
import os
import pickle
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import nacre

EXAMPLE = Path(__file__).parents[1] / "examples" / "data_loader.py"


def test_uses_in_a_forked_child_are_refused(mounted, top):
    file = mounted.open(f"{top}/f", "wb", 0)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        texts = []
        for use in (mounted.listdir, lambda: file.write(b"x"), lambda: mounted.stat("/"), mounted.close):
            try:
                use()
                texts.append("no error")
            except RuntimeError as error:
                texts.append(str(error))
        os.write(writer, pickle.dumps(texts))
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        texts = pickle.loads(pipe.read())
    os.waitpid(child, 0)
    assert len(texts) == 4 and all("fork" in text and "spawn" in text for text in texts), texts
    assert file.write(b"still works") == 11
    file.close()


def _exit_normally():
    pass


def test_forked_child_ends_although_its_parent_has_mounted(mounted):
    child = multiprocessing.get_context("fork").Process(target=_exit_normally)
    child.start()
    child.join(60)
    assert child.exitcode == 0


def _leave_a_file_open(source, path):
    global file
    file = nacre.FileSystem(source[0], **source[1]).open(path, "w")
    file.write("kept")


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_worker_writes_its_open_files_and_unmounts_at_its_end(source, mounted, top, method):
    path = f"{top}/{method}"
    child = multiprocessing.get_context(method).Process(target=_leave_a_file_open, args=(source, path))
    child.start()
    child.join(60)
    assert child.exitcode == 0
    with mounted.open(path) as file:
        assert file.read() == "kept"


def test_a_mount_is_not_pickled(mounted):
    with pytest.raises(TypeError, match="source"):
        pickle.dumps(mounted)


@pytest.mark.parametrize("method", ["spawn", "fork"])
@pytest.mark.parametrize("mount", ["worker", "parent"])
def test_data_loader(source, method, mount):
    options = ["--method", method, "--mount", mount, "--port", str(source[1]["port"])]
    run = [sys.executable, EXAMPLE, source[0], *options]
    ended = subprocess.run(run, capture_output=True, text=True, timeout=300)
    if mount == "worker":
        assert ended.returncode == 0, ended.stderr
        assert ended.stdout.splitlines()[-1] == "64 samples, 2 workers: all correct"
    else:
        assert ended.returncode == 1
        reason = "fork of the process" if method == "fork" else "cannot pickle a mounted file system"
        assert reason in ended.stderr


def test_program_that_forgets_to_unmount_ends(source):
    program = f"import nacre; fs = nacre.FileSystem({source[0]!r}, **{source[1]!r}); print(len(fs.listdir()) >= 0)"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout) == (0, "True\n"), ended.stderr
    assert isinstance(nacre.__version__, str)


def test_program_that_forgets_to_close_files_writes_them(source, mounted, top):
    program = f"""
import nacre
fs = nacre.FileSystem({source[0]!r}, **{source[1]!r})
file = fs.open({top + "/end"!r}, "w")
print("kept", file=file)
raise SystemExit(3)
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stderr) == (3, "")
    with mounted.open(f"{top}/end") as file:
        assert file.read() == "kept\n"


def test_lost_data_is_reported_at_the_end_of_the_program(source, mounted, top):
    program = f"""
import nacre
fs = nacre.FileSystem({source[0]!r}, **{source[1]!r})
file = fs.open({top + "/lost"!r}, "wb")
file.write(b"lost")
file.raw._handle.close()
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert "I/O operation on closed file" in ended.stderr


def test_ctrl_c_ends_a_mount_that_waits_for_a_silent_server():
    program = """
import nacre, sys
try:
    nacre.FileSystem("127.0.77.9@tcp:/nacre", port=int(sys.argv[1]))
except KeyboardInterrupt:
    print("interrupted")
"""
    with socket.create_server(("127.0.77.9", 0)) as server:
        run = [sys.executable, "-c", program, str(server.getsockname()[1])]
        with subprocess.Popen(run, stdout=subprocess.PIPE, text=True) as child:
            connection, _ = server.accept()
            child.send_signal(signal.SIGINT)
            assert child.communicate(timeout=60)[0] == "interrupted\n"
            connection.close()


WRITER = """
import nacre, sys
fs = nacre.FileSystem(sys.argv[1], port=int(sys.argv[2]))
file = fs.open(sys.argv[3], "wb", 0)
file.write(b"written")
print("ready", flush=True)
sys.stdin.readline()
file.close()
"""


class _Interruption(Exception):
    pass


@pytest.mark.parametrize("many", [False, True])
def test_signal_handler_ends_a_call_that_waits_for_a_lock(source, mounted, top, many):
    """Without the interruption, the read waits until the servers evict the writer."""

    def interrupt(*_):
        raise _Interruption

    path = f"{top}/{many}"
    run = [sys.executable, "-c", WRITER, source[0], str(source[1]["port"]), path]
    with subprocess.Popen(run, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout.readline() == "ready\n"
        writer.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, writer.pid, os.WSTOPPED)
        before = signal.signal(signal.SIGALRM, interrupt)
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.5)
            with pytest.raises(_Interruption):
                if many:
                    mounted.read_many([(path, 0, 3), (path, 3, 4)])
                else:
                    with mounted.open(path, "rb") as file:
                        file.read()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
            writer.send_signal(signal.SIGCONT)
        writer.communicate("\n", timeout=60)
        assert writer.returncode == 0
    assert mounted.read_many([(path, 0, 3), (path, 3, 4)]) == [b"wri", b"tten"]


def test_log_in_a_pipe_has_no_colours(source):
    program = f"import nacre; nacre.FileSystem({source[0]!r}, **{source[1]!r}).close()"
    env = {**os.environ, "NACRE_LOG": "debug"}
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, env=env)
    assert " DEBUG " in ended.stderr and "\x1b" not in ended.stderr
