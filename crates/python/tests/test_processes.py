"""Forked and spawned processes."""

import multiprocessing
import os
import pickle
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
