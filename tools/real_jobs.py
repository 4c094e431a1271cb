"""Rows of tools/real_proof.py in several processes, which share OUT."""
import concurrent.futures
import contextlib
import fcntl
import multiprocessing
import os

# The longest row first; last those that build on what others make, so that no process waits for another's.
ORDER = {"learnt": 0, "planted": 2, "same": 2, "merge": 2}


@contextlib.contextmanager
def alone(path):
    """Holds PATH.lock: whoever looks for a file that processes share finds it whole, or makes it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path.with_name(path.name + ".lock"), "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def write_whole(path, text):
    """Replaces a file: who reads it meanwhile has the old text or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{os.getpid()}")
    part.write_text(text)
    part.replace(path)
    return path


def start(options, models, counter):
    """A process of the pool: its share of the cores, also for the programs that it starts."""
    import torch
    import real_rows
    global proof
    with counter.get_lock():
        index = counter.value
        counter.value += 1
    cores = sorted(os.sched_getaffinity(0))
    share = max(1, len(cores) // options.jobs)
    os.sched_setaffinity(0, [cores[(index * share + i) % len(cores)] for i in range(share)])
    torch.set_num_threads(share)
    proof = real_rows.Proof(options, models)


def free():
    import torch
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def refer(row, which):
    proof.refer(row, *which)
    free()


def run_row(row):
    try:
        return proof.timed(row)
    finally:
        free()


class Jobs:
    """A pool of options.jobs processes."""

    def __init__(self, options, models):
        spawn = multiprocessing.get_context("spawn")
        self.pool = concurrent.futures.ProcessPoolExecutor(options.jobs, spawn, start, (options, models, spawn.Value("i", 0)))

    def references(self, wanted):
        """Has transformers make its part: pairs of a row and of what real_rows.references_of names."""
        for done in [self.pool.submit(refer, row, which) for row, which in wanted]:
            done.result()

    def rows(self, names):
        """Pairs of a row and a function that returns its checks and seconds, as rows end."""
        ordered = sorted(names, key=lambda row: ORDER.get(row.split("/")[0], 1))
        started = {self.pool.submit(run_row, row): row for row in ordered}
        for done in concurrent.futures.as_completed(started):
            yield started[done], done.result
