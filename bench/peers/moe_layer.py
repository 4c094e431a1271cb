"""The experts of one layer, forward and backward with every gradient (x, gate_up, down, routing weights), bfloat16: what
peers' kernels reach on the rows "moe layer" of `hone bench ops`. Model FLOPs: forward three times.

Prints a line of JSON for each shape and routing. ScatterMoE and Liger are measured where they can be imported.
"""
import argparse
import json
import statistics

import torch

BF16 = torch.bfloat16
SHAPES = {  # experts, hidden, intermediate, top_k
    "qwen3-30b-a3b": (128, 2048, 768, 8),
    "mixtral-8x7b": (8, 4096, 14336, 2),
}


def seconds_of(run, runs=12):
    for _ in range(4):
        run()
    times = []
    for _ in range(runs):
        begin, end = torch.cuda.Event(True), torch.cuda.Event(True)
        begin.record()
        run()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) * 1e-3)
    return statistics.median(times)


def routing(tokens, experts, top_k, zipf):
    """Different experts of each token, expert e preferred as (e + 1)^-zipf, and their weights."""
    preference = torch.arange(1, experts + 1, device="cuda", dtype=torch.float).pow(-zipf).log()
    gumbel = -torch.log(-torch.log(torch.rand(tokens, experts, device="cuda")))
    ids = (gumbel + preference).topk(top_k, -1).indices
    return ids, torch.softmax(torch.randn(tokens, top_k, device="cuda"), -1)


def grouped_mm(x, gate_up, down, ids, weights):
    """Sort, gather, two grouped products, weighted sum: careful PyTorch."""
    top_k, flat = ids.shape[1], ids.reshape(-1)
    order = flat.argsort(stable=True)
    token = order // top_k
    offsets = torch.bincount(flat, minlength=gate_up.shape[0]).cumsum(0).to(torch.int32)
    gate, up = torch._grouped_mm(x[token], gate_up.transpose(1, 2), offs=offsets).chunk(2, -1)
    y = torch._grouped_mm(torch.nn.functional.silu(gate) * up, down.transpose(1, 2), offs=offsets)
    y = y * weights.reshape(-1)[order].unsqueeze(-1).to(y.dtype)
    return torch.zeros_like(x).index_add_(0, token, y)


def implementations():
    found = {"grouped_mm": grouped_mm, "grouped_mm, compiled": torch.compile(grouped_mm, dynamic=False)}
    try:
        from liger_kernel.ops.fused_moe import LigerFusedMoEFunction
        found["liger"] = lambda x, w1, w2, ids, p: LigerFusedMoEFunction.apply(x, w1, w2, ids.to(torch.int32), p)
    except ImportError:
        pass
    try:
        from scattermoe.parallel_experts import flatten_sort_count, parallel_linear

        def scattermoe(x, gate_up, down, ids, weights):
            experts, order, offsets = flatten_sort_count(ids, num_experts=gate_up.shape[0])
            gate, up = parallel_linear(x, gate_up.transpose(1, 2), ids.shape[1], experts, order, offsets,
                                       grouped_out=True).chunk(2, -1)
            return parallel_linear(torch.nn.functional.silu(gate) * up, down.transpose(1, 2), 1, experts, order,
                                   offsets, gates=weights.to(x.dtype), grouped_in=True)

        found["scattermoe"] = scattermoe
    except ImportError:
        pass
    return found


def measure(run, inputs, flops):
    x, gate_up, down, ids, weights, gradient = inputs
    wanted = (x, gate_up, down, weights)

    def step():
        torch.autograd.grad(run(x, gate_up, down, ids, weights), wanted, gradient)

    forward = seconds_of(lambda: run(*(t.detach() for t in (x, gate_up, down, ids, weights))))
    both = seconds_of(step)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    step()
    extra = torch.cuda.max_memory_allocated() - before
    return {"ms": both * 1e3, "tflops": flops / both / 1e12, "forward_tflops": flops / 3 / forward / 1e12,
            "extra_memory": extra}


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--model", default="qwen3-30b-a3b", choices=tuple(SHAPES))
    p.add_argument("--tokens", type=int, default=16384)
    a = p.parse_args()
    experts, hidden, inner, top_k = SHAPES[a.model]
    flops = 3 * 2 * a.tokens * top_k * 3 * hidden * inner
    for zipf in (0.0, 1.0):
        torch.manual_seed(0)
        ids, weights = routing(a.tokens, experts, top_k, zipf)
        x = torch.randn(a.tokens, hidden, device="cuda", dtype=BF16, requires_grad=True)
        gate_up = (torch.randn(experts, 2 * inner, hidden, device="cuda", dtype=BF16) * 0.02).requires_grad_()
        down = (torch.randn(experts, hidden, inner, device="cuda", dtype=BF16) * 0.02).requires_grad_()
        inputs = (x, gate_up, down, ids, weights.requires_grad_(), torch.randn_like(x))
        results = {}
        for name, run in implementations().items():
            try:
                results[name] = measure(run, inputs, flops)
            except Exception as error:  # one peer that fails does not hide the others
                results[name] = {"failed": repr(error)[:200]}
        print(json.dumps({"bench": "moe layer", "model": a.model, "tokens": a.tokens, "zipf": zipf, "torch": torch.__version__,
                          "results": results}), flush=True)


if __name__ == "__main__":
    main()
