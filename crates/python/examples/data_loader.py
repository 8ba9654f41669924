"""A data loader with worker processes that read samples from Nacre.

Each worker mounts in its own process, at its first sample; then it works with
spawned and with forked workers. With ``--mount parent`` the example shows how
the package refuses a mount of the parent process.

    python data_loader.py 10.0.0.1@tcp:/nacre --method spawn
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys

import nacre

SAMPLES = 64
SAMPLE_SIZE = 4096
WORKERS = 2
BATCH = 8
PATH = "/data-loader/samples"


class Dataset:
    """Samples of a fixed size in one file. Mounts at the first use in each process."""

    def __init__(self, source: str, options: dict, mounted: nacre.FileSystem | None = None) -> None:
        self.source, self.options, self.mounted = source, options, mounted

    def batch(self, numbers: list[int]) -> list[bytes]:
        """The samples with these numbers, read in parallel by one call."""
        if self.mounted is None:
            self.mounted = nacre.FileSystem(self.source, **self.options)
        return self.mounted.read_many([(PATH, n * SAMPLE_SIZE, SAMPLE_SIZE) for n in numbers])


dataset: Dataset


def start_worker(value: Dataset) -> None:
    """Keeps the data set in a worker."""
    global dataset
    dataset = value


def load(numbers: list[int]) -> list[bytes]:
    """A batch, in a worker."""
    return dataset.batch(numbers)


def expected(number: int) -> bytes:
    """The content of a sample."""
    return number.to_bytes(4, "big") * (SAMPLE_SIZE // 4)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("source")
    parser.add_argument("--method", choices=["spawn", "fork"], default="spawn")
    parser.add_argument("--mount", choices=["worker", "parent"], default="worker")
    parser.add_argument("--port", type=int)
    arguments = parser.parse_args()
    options = {"port": arguments.port}
    with nacre.FileSystem(arguments.source, **options) as fs:
        fs.makedirs("/data-loader", exist_ok=True)
        with fs.open(PATH, "wb") as file:
            for number in range(SAMPLES):
                file.write(expected(number))
        value = Dataset(arguments.source, options, fs if arguments.mount == "parent" else None)
        context = multiprocessing.get_context(arguments.method)
        batches = [list(range(n, n + BATCH)) for n in range(0, SAMPLES, BATCH)]
        try:
            with context.Pool(WORKERS, start_worker, (value,)) as pool:
                samples = [sample for batch in pool.imap(load, batches) for sample in batch]
                pool.close()
                pool.join()
        except (RuntimeError, TypeError) as error:
            print(f"refused: {error}", file=sys.stderr)
            return 1
    if samples != [expected(number) for number in range(SAMPLES)]:
        print("wrong samples", file=sys.stderr)
        return 1
    print(f"{SAMPLES} samples, {WORKERS} workers: all correct")
    return 0


if __name__ == "__main__":
    sys.exit(main())
