"""Dense products of torch on a CPU (oneDNN): what a library's product reaches on this machine with these threads, beside
the rows "linear" and the square product of `hone bench ops --device cpu`.

    taskset -c 0-15 python3 bench/peers/cpu_gemm.py --threads 16

Prints a line of JSON for each size: x [m, k] times the transpose of w [n, k], random numbers.
"""
import argparse
import json
import statistics
import time

import torch

SQUARES = [(n, n, n) for n in (1024, 2048, 4096, 8192)]
STEP = [(2048, 1024, 1024), (2048, 32000, 1024)]  # attention and head of cpu-moe, 4 x 512 tokens


def seconds_of(run, seconds):
    """Of some runs, within about so many seconds, after one that is not counted."""
    run()
    times, end = [], time.perf_counter() + seconds
    while len(times) < 3 or (len(times) < 30 and time.perf_counter() < end):
        begin = time.perf_counter()
        run()
        times.append(time.perf_counter() - begin)
    return times


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--threads", type=int, required=True)
parser.add_argument("--dtype", choices=["bfloat16", "float32"], default="bfloat16")
parser.add_argument("--seconds", type=float, default=2, help="of each size")
parser.add_argument("--largest", type=int, default=8192, help="of the squares")
options = parser.parse_args()
torch.set_num_threads(options.threads)
for m, n, k in [size for size in SQUARES if size[0] <= options.largest] + STEP:
    x = torch.randn(m, k).to(getattr(torch, options.dtype))
    w = torch.randn(n, k).to(x.dtype)
    times = seconds_of(lambda: x @ w.t(), options.seconds)
    rate = 2e-12 * m * n * k
    print(json.dumps({"bench": "torch-gemm", "torch": torch.__version__, "threads": options.threads,
                      "dtype": options.dtype, "m": m, "n": n, "k": k, "runs": len(times),
                      "tflops": rate / statistics.median(times), "best_tflops": rate / min(times)}), flush=True)
