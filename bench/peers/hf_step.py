"""A training step of transformers (and peft) on random weights and tokens: the work of `hone bench step`.

Prints a line of JSON: tokens a second, model TFLOP/s, peak memory. Weights, gradients and AdamW moments are bfloat16
(adapters float32), as transformers trains by default; Hone keeps float32 masters and moments.
Under torchrun each rank has a GPU and DistributedDataParallel sums the gradients or, with --fsdp, FSDP2 (fully_shard of
each layer) shards parameters, gradients and moments: in float32 with bfloat16 copies to compute with and float32 sums of
gradients (--fsdp float32, as Hone's zero_stage 1), or all in bfloat16. Weights that were gathered for forward stay for
backward or, with --reshard (as zero_stage 3), are gathered again. Tokens a second are those of one GPU.
--nf4 holds linear layers but the head as bitsandbytes' load_in_4bit with double quantisation does; it has no experts.
"""
import argparse
import contextlib
import json
import os
import resource
import statistics
import time

import torch
import transformers
from torch.nn.attention import SDPBackend, sdpa_kernel

import shapes

WARM_UP = 3
BACKENDS = {
    "cudnn": [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH],
    "flash": [SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION, SDPBackend.MATH],
}


def arguments():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--model", required=True)
    p.add_argument("--layers", type=int, default=0)
    p.add_argument("--mode", default="full", choices=("full", "lora", "lora-all"))
    p.add_argument("--seq", type=int, default=4096)
    p.add_argument("--batch", type=int, default=4)
    p.add_argument("--steps", type=int, default=8)
    p.add_argument("--device", default="cuda")
    p.add_argument("--experts", default="grouped_mm", help="grouped_mm, batched_mm or eager")
    p.add_argument("--sdpa", default="cudnn", choices=tuple(BACKENDS))
    p.add_argument("--no-checkpointing", action="store_true")
    p.add_argument("--compile", action="store_true")
    p.add_argument("--liger", action="store_true")
    p.add_argument("--fsdp", default="", choices=("", "float32", "bfloat16"), help="FSDP2, and what it keeps state in")
    p.add_argument("--reshard", action="store_true", help="with --fsdp: gather weights again for backward")
    p.add_argument("--nf4", action="store_true")
    p.add_argument("--lora-r", type=int, default=16)
    p.add_argument("--threads", type=int, default=0)
    return p.parse_args()


def quantise(model):
    """Replaces linear layers by those of bitsandbytes; its quantisation runs when a weight moves to the GPU."""
    import bitsandbytes as bnb
    for name, module in list(model.named_modules()):
        if not isinstance(module, torch.nn.Linear) or name == "lm_head":
            continue
        linear = bnb.nn.Linear4bit(module.in_features, module.out_features, module.bias is not None,
                                   compute_dtype=torch.bfloat16, quant_type="nf4", device="meta")
        linear.weight = bnb.nn.Params4bit(module.weight.data.cpu(), requires_grad=False, quant_type="nf4",
                                          compress_statistics=True)
        linear.bias = module.bias
        parent = model.get_submodule(name.rpartition(".")[0])
        setattr(parent, name.rpartition(".")[2], linear.to("cuda"))
    model.is_loaded_in_4bit = True


def build(a):
    cfg = shapes.config(a.model, a.layers)
    cfg.use_cache = False
    cfg._attn_implementation = "sdpa"
    if shapes.is_sparse(cfg):
        cfg._experts_implementation = a.experts
    torch.set_default_dtype(torch.bfloat16)
    kept = torch.float32 if a.fsdp == "float32" else torch.bfloat16
    with torch.device(a.device):
        model = transformers.AutoModelForCausalLM.from_config(cfg, dtype=kept)
    if shapes.is_sparse(cfg) and hasattr(model, "set_experts_implementation"):
        model.set_experts_implementation(a.experts)
    if a.nf4:
        quantise(model)
        torch.cuda.empty_cache()
    if a.liger:
        import liger_kernel.transformers as liger
        {"qwen3-30b-a3b": liger.apply_liger_kernel_to_qwen3_moe, "mixtral-8x7b": liger.apply_liger_kernel_to_mixtral,
         "qwen3-8b": liger.apply_liger_kernel_to_qwen3}[a.model](model=model)
    if a.mode != "full":
        from peft import LoraConfig, get_peft_model
        targets = dict(target_modules=["q_proj", "k_proj", "v_proj", "o_proj"])
        if a.mode == "lora-all" and shapes.is_sparse(cfg):
            targets["target_parameters"] = ["experts.gate_up_proj", "experts.down_proj"]
        elif a.mode == "lora-all":
            targets["target_modules"] += ["gate_proj", "up_proj", "down_proj"]
        model = get_peft_model(model, LoraConfig(r=a.lora_r, lora_alpha=2 * a.lora_r, **targets))
        model.enable_input_require_grads()
    if not a.no_checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    if a.fsdp:
        model.to(kept)  # adapters, too: FSDP2 gathers parameters of one dtype
        shard(model, kept, a.reshard)
    return cfg, model.train()


def shard(model, kept, reshard):
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=kept)
    causal = model.get_base_model() if hasattr(model, "get_base_model") else model
    for layer in causal.model.layers:
        fully_shard(layer, mp_policy=policy, reshard_after_forward=reshard)
    fully_shard(model, mp_policy=policy, reshard_after_forward=False)


def precision_of(trained, optimizer):
    """Formats of what the optimizer steps and keeps of the largest trained parameter."""
    largest = max(trained, key=lambda p: p.numel())
    name = lambda t: str(t.dtype).removeprefix("torch.")
    state = optimizer.state[largest]
    return {"stepped": name(largest), "moments": [name(state["exp_avg"]), name(state["exp_avg_sq"])]}


def main():
    a = arguments()
    torch.manual_seed(0)
    if a.threads:
        torch.set_num_threads(a.threads)
    on_gpu = a.device == "cuda"
    ranks, rank = int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("RANK", 0))
    if ranks > 1:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        torch.distributed.init_process_group("nccl")
    synchronize = torch.cuda.synchronize if on_gpu else (lambda: None)
    cfg, model = build(a)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-5, fused=on_gpu)
    if a.compile:
        model = torch.compile(model)
    if ranks > 1 and not a.fsdp:
        model = torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    seconds = []
    for _ in range(WARM_UP + a.steps):
        x = torch.randint(0, cfg.vocab_size, (a.batch, a.seq), device=a.device)
        synchronize()
        begin = time.perf_counter()
        with sdpa_kernel(BACKENDS[a.sdpa], set_priority=True) if on_gpu else contextlib.nullcontext():
            loss = model(input_ids=x, labels=x).loss
            loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        synchronize()
        seconds.append(time.perf_counter() - begin)
    seconds = seconds[WARM_UP:]
    median, tokens = statistics.median(seconds), a.batch * a.seq
    flops = shapes.forward_flops(cfg, a.seq) * (3 if a.mode == "full" else 2)
    peak = torch.cuda.max_memory_allocated() if on_gpu else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    if ranks > 1:
        torch.distributed.destroy_process_group()
    if rank > 0:
        return
    print(json.dumps({
        "bench": "step", "peer": "transformers", "transformers": transformers.__version__, "torch": torch.__version__,
        **vars(a), "ranks": ranks, "layers": cfg.num_hidden_layers, "trained": sum(p.numel() for p in trained),
        "precision": precision_of(trained, optimizer), "loss": loss.item(), "tokens_per_second": tokens / median,
        "step_ms": {"median": median * 1e3, "min": min(seconds) * 1e3, "max": max(seconds) * 1e3},
        "model_tflops": flops * tokens / median / 1e12, "memory": {"used": peak}}), flush=True)


if __name__ == "__main__":
    main()
