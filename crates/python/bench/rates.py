"""Compares the package with the C library: rates of the same operations, in turn.

    python rates.py SOURCE PORT PROGRAM [ROUNDS]

PROGRAM is the built ``rates.c``. The table has the median time of each
operation and the package's rate as a fraction of the C library's rate, with
its range over the rounds.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

import nacre

PIECE, PIECES, FILES, SMALL = 1 << 20, 256, 2000, 4096


class SignalWatch:
    """Collects the time of each operation."""

    def __init__(self) -> None:
        self.times: dict[str, float] = {}
        self.started = time.perf_counter()

    def report(self, name: str) -> None:
        self.times[name] = time.perf_counter() - self.started
        self.started = time.perf_counter()


def measure(source: str, port: int, directory: str) -> dict[str, float]:
    """The times of the operations of ``rates.c``."""
    with nacre.FileSystem(source, port=port) as fs:
        fs.mkdir(directory)
        buffer = bytearray(PIECE)
        small = memoryview(buffer)[:SMALL]
        paths = [f"{directory}/f{n}" for n in range(FILES)]
        watch = SignalWatch()
        file = fs.open(paths[0], "w+b", 0)
        for _ in range(PIECES):
            file.write(buffer)
        watch.report("write")
        for n in range(PIECES):
            file.preadinto(buffer, n * PIECE)
        watch.report("read")
        for n in range(PIECES * 16):
            file.preadinto(small, n * SMALL)
        watch.report("read-4k")
        file.close()
        fs.unlink(paths[0])
        watch.report("end of the large file")
        for path in paths:
            with fs.open(path, "xb", 0) as file:
                file.write(small)
        watch.report("create")
        for path in paths:
            fs.stat(path)
        watch.report("stat")
        for path in paths:
            with fs.open(path, "rb", 0) as file:
                file.readinto(small)
        watch.report("open-read")
        for _ in range(10):
            assert len(fs.listdir(directory)) == FILES
        watch.report("list")
        for path in paths:
            fs.unlink(path)
        watch.report("unlink")
        fs.rmdir(directory)
        return watch.times


def measure_c(program: str, source: str, port: int, directory: str) -> dict[str, float]:
    """The times that the C program prints."""
    run = [program, source, f"port={port}", directory]
    lines = subprocess.run(run, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()
    return {name: float(seconds) for name, seconds in (line.split() for line in lines)}


def main() -> None:
    source, port, program = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    rounds = int(sys.argv[4]) if len(sys.argv) > 4 else 5
    pairs = []
    for n in range(rounds):
        c = measure_c(program, source, port, f"/rates-c-{n}")
        pairs.append((c, measure(source, port, f"/rates-python-{n}")))
    print(f"{rounds} rounds; large file {PIECES} MiB in pieces of 1 MiB, {FILES} files of {SMALL} bytes")
    print(f"{'operation':<10} {'C, s':>8} {'Python, s':>10} {'rate':>6}  range")
    for name in pairs[0][0]:
        ratios = [c[name] / python[name] for c, python in pairs]
        medians = [statistics.median(times[name] for times in side) for side in zip(*pairs)]
        middle, low, high = statistics.median(ratios), min(ratios), max(ratios)
        print(f"{name:<10} {medians[0]:>8.3f} {medians[1]:>10.3f} {middle:>6.2f}  {low:.2f} to {high:.2f}")


if __name__ == "__main__":
    main()
