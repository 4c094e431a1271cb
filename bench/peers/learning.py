"""Does Hone learn what transformers learns? The same 300 steps of both, from the same weights on the same data.

  learning.py prepare FOLDER            a Qwen3-MoE of 1.7 B random parameters, a LoRA adapter, and data, once; LoRA
                                        itself starts from what `peer FOLDER full fast` leaves
  learning.py peer FOLDER MODE KERNELS  transformers: MODE full or lora, KERNELS fast (grouped_mm, cuDNN) or other
                                        (grouped_mm, FlashAttention)
  learning.py hone FOLDER MODE PROGRAM  Hone on the same
  learning.py verdict FOLDER            compares the means of the last 50 losses
  learning.py all FOLDER PROGRAM        everything above; the peer's runs share the GPU
  learning.py bases FOLDER PROGRAM      Hone alone: full, then LoRA of its result on each base_weight_dtype

--steps N tries the script with fewer steps; no verdict of fewer than 300 counts.

A run passes if its mean differs from the fast peer's by at most twice what the two peers differ by, or 0.5 %, whichever is
more: kernels alone move a loss, and no trainer can be held to less. Both keep float32 master weights and moments over a
bfloat16 model, and take AdamW, clipping at 1, a constant rate after 20 steps, and no auxiliary loss.
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import time

STEPS, BATCH, SEQ, WARM_UP = 300, 8, 512, 20
RATE = {"full": 2e-4, "lora": 1e-3}
MODEL = dict(vocab_size=32000, hidden_size=1024, intermediate_size=3072, num_hidden_layers=16, num_attention_heads=16,
             num_key_value_heads=4, head_dim=64, moe_intermediate_size=512, num_experts=64, num_experts_per_tok=8,
             norm_topk_prob=True, max_position_embeddings=2048, rope_theta=1e6, tie_word_embeddings=False)
KERNELS = {"fast": ("grouped_mm", "cudnn"), "other": ("grouped_mm", "flash")}
# Few enough that 300 steps learn them: on the slope of a loss, runs that differ by a step's worth of luck would differ by
# several per cent.
STATES, SUCCESSORS = 256, 4
# Full fine-tuning begins with random weights, LoRA with what transformers' full fine-tuning made of them.
BASE = {"full": "model", "lora": "trained"}
BASES = ("dtype", "nf4", "int4", "mxfp4", "int8", "fp8")
# At RATE["lora"] one base differs by a quarter with the kernels of another tier: no base can be held to less.
RATE_OF_BASES = 2e-4


def documents(seed):
    """Walks of a Markov chain of 256 tokens with 4 successors each, one step in ten at random. The seed chooses the
    chain; its tokens are always the same."""
    import numpy
    tokens = numpy.random.default_rng(5).choice(MODEL["vocab_size"] - 10, STATES, replace=False) + 5
    random = numpy.random.default_rng(seed)
    successors = random.integers(0, STATES, (STATES, SUCCESSORS))
    odds = 1.0 / numpy.arange(1, SUCCESSORS + 1)
    odds /= odds.sum()
    rows = numpy.empty((STEPS * BATCH, SEQ), numpy.int64)
    state = random.integers(0, STATES, STEPS * BATCH)
    for i in range(SEQ):
        rows[:, i] = tokens[state]
        follow = successors[state, random.choice(SUCCESSORS, len(state), p=odds)]
        state = numpy.where(random.random(len(state)) < 0.1, random.integers(0, STATES, len(state)), follow)
    return rows


def add_adapter(model):
    from peft import LoraConfig, get_peft_model
    return get_peft_model(model, LoraConfig(
        r=16, lora_alpha=32, target_modules=["q_proj", "k_proj", "v_proj", "o_proj"],
        target_parameters=["experts.gate_up_proj", "experts.down_proj"]))


def prepare(folder):
    import torch
    from transformers import AutoModelForCausalLM, Qwen3MoeConfig
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(Qwen3MoeConfig(**MODEL), dtype=torch.bfloat16)
    save(model, folder / BASE["full"])
    add_adapter(model).save_pretrained(folder / "adapter")
    for seed, mode in enumerate(BASE):
        with open(folder / f"{mode}.jsonl", "w") as file:
            for row in documents(seed).tolist():
                file.write(json.dumps({"input_ids": row}) + "\n")


def save(model, folder):
    """A checkpoint, and beside it what the peers load: transformers takes minutes to put experts together that its own
    checkpoints hold one by one."""
    import torch
    model.save_pretrained(folder)
    torch.save(model.state_dict(), folder.with_suffix(".pt"))


class MasterAdamW:
    """AdamW on float32 copies of the trained parameters, which are rounded into the model after each step."""

    def __init__(self, params, rate):
        import torch
        self.params = params
        self.masters = [p.detach().float().clone() for p in params]
        self.optimizer = torch.optim.AdamW(self.masters, lr=rate, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0, fused=True)

    def step(self, rate):
        import torch
        for master, p in zip(self.masters, self.params):
            master.grad = torch.zeros_like(master) if p.grad is None else p.grad.float()
            p.grad = None
        torch.nn.utils.clip_grad_norm_(self.masters, 1.0)
        self.optimizer.param_groups[0]["lr"] = rate
        self.optimizer.step()
        with torch.no_grad():
            for master, p in zip(self.masters, self.params):
                p.copy_(master)
                master.grad = None


def peer(folder, mode, kernels):
    import torch
    from torch.nn.attention import sdpa_kernel
    from transformers import AutoModelForCausalLM, Qwen3MoeConfig
    from hf_step import BACKENDS
    experts, sdpa = KERNELS[kernels]
    with torch.device("cuda"):
        model = AutoModelForCausalLM.from_config(Qwen3MoeConfig(**MODEL), dtype=torch.bfloat16, attn_implementation="sdpa")
    model.load_state_dict(torch.load((folder / BASE[mode]).with_suffix(".pt"), map_location="cuda"))
    model.config.use_cache = False
    model.set_experts_implementation(experts)
    if mode == "lora":
        from peft import PeftModel
        model = PeftModel.from_pretrained(model, folder / "adapter", is_trainable=True)
    model.train()
    optimizer = MasterAdamW([p for p in model.parameters() if p.requires_grad], RATE[mode])
    rows = torch.tensor([json.loads(line)["input_ids"] for line in open(folder / f"{mode}.jsonl")]).view(STEPS, BATCH, SEQ)
    losses, begin = [], time.time()
    for step in range(STEPS):
        x = rows[step].cuda()
        with sdpa_kernel(BACKENDS[sdpa], set_priority=True):
            loss = model(input_ids=x, labels=x).loss
            loss.backward()
        optimizer.step(RATE[mode] * min(1.0, (step + 1) / WARM_UP))
        losses.append(loss.detach())
    write(folder, f"peer-{kernels}-{mode}", [l.item() for l in losses], time.time() - begin)
    if mode == "full" and kernels == "fast":
        save(model, folder / BASE["lora"])


def hone(folder, mode, program, base="dtype", model=None, rate=None):
    name = f"hone-{mode}" + ("" if base == "dtype" else f"-{base}")
    settings = dict(model_name_or_path=model or folder / BASE[mode], datasets=folder / f"{mode}.jsonl", max_length=SEQ, packing="false",
                    shuffle="false", train_on="all", per_device_train_batch_size=BATCH, max_steps=STEPS,
                    learning_rate=rate or RATE[mode], lr_scheduler_type="constant_with_warmup", warmup_steps=WARM_UP,
                    router_aux_loss_coef=0, weight_decay=0, dtype="bfloat16", finetuning_type=mode, device="cuda",
                    save_strategy="no", report_to="jsonl", output_dir=folder / name, overwrite_output_dir="true")
    if mode == "lora":
        settings |= dict(adapter_name_or_path=folder / "adapter", base_weight_dtype=base)
    begin = time.time()
    subprocess.run([program, "train", *(f"{key}={value}" for key, value in settings.items())], check=True,
                   stdout=open(folder / f"{name}.log", "w"), stderr=subprocess.STDOUT)
    metrics = [json.loads(line) for line in open(folder / name / "metrics.jsonl")]
    write(folder, name, [m["loss"] for m in metrics if "loss" in m], time.time() - begin)


def write(folder, name, losses, seconds):
    (folder / f"{name}.json").write_text(json.dumps({"run": name, "seconds": seconds, "losses": losses}))
    print(f"{name}: {seconds:.0f} s, loss {losses[0]:.4f} to {mean(losses):.4f}", flush=True)


def mean(losses):
    last = losses[-min(50, len(losses)):]
    return sum(last) / len(last)


def verdict(folder):
    result = {"steps": STEPS, "last": 50, "tokens_per_step": BATCH * SEQ}
    for mode in RATE:
        runs = {name: json.loads((folder / f"{name}-{mode}.json").read_text())["losses"]
                for name in ("hone", "peer-fast", "peer-other")}
        if any(len(losses) != STEPS for losses in runs.values()):
            raise SystemExit(f"{mode}: a run has not {STEPS} losses: { {n: len(l) for n, l in runs.items()} }")
        ours, fast, other = (mean(runs[name]) for name in ("hone", "peer-fast", "peer-other"))
        bound = max(2 * abs(fast - other), 0.005 * fast)
        result[mode] = {"hone": ours, "transformers": fast, "transformers_other_kernels": other,
                        "difference": ours - fast, "bound": bound, "first_losses": [runs[n][0] for n in runs],
                        "same": abs(ours - fast) <= bound}
    result["same"] = all(result[mode]["same"] for mode in RATE)
    (folder / "verdict.json").write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))
    return 0 if result["same"] else 1


def everything(folder, program):
    """The peers wait for their kernels' launches most of the time, so two runs go side by side, then Hone's."""
    prepare(folder)
    script = os.path.abspath(__file__)
    for mode in RATE:
        runs = [subprocess.Popen([sys.executable, script, "--steps", str(STEPS), "peer", str(folder), mode, kernels])
                for kernels in KERNELS]
        failed = [run.args[2:] for run in runs if run.wait() != 0]
        if failed:
            raise SystemExit(f"failed: {failed}")
        hone(folder, mode, program)
    return verdict(folder)


def bases(folder, program):
    """A base passes if the mean of the last 50 losses is within 1.5 % of that of the base in bfloat16."""
    prepare(folder)
    hone(folder, "full", program)
    result = {"steps": STEPS, "last": 50, "bases": {}}
    for base in BASES:
        hone(folder, "lora", program, base, folder / "hone-full", RATE_OF_BASES)
        name = "hone-lora" + ("" if base == "dtype" else f"-{base}")
        losses = json.loads((folder / f"{name}.json").read_text())["losses"]
        result["bases"][base] = {"first": losses[0], "mean": mean(losses)}
    dense = result["bases"]["dtype"]["mean"]
    for entry in result["bases"].values():
        entry["ratio"] = entry["mean"] / dense
    result["same"] = all(abs(entry["ratio"] - 1) <= 0.015 for entry in result["bases"].values())
    (folder / "bases.json").write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))
    return 0 if result["same"] else 1


def main():
    global STEPS
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("part", choices=("prepare", "peer", "hone", "verdict", "all", "bases"))
    p.add_argument("folder", type=pathlib.Path)
    p.add_argument("rest", nargs="*")
    p.add_argument("--steps", type=int, default=STEPS)
    a = p.parse_args()
    STEPS = a.steps
    a.folder.mkdir(parents=True, exist_ok=True)
    parts = {"prepare": prepare, "peer": peer, "hone": hone, "verdict": verdict, "all": everything, "bases": bases}
    return parts[a.part](a.folder, *a.rest)


if __name__ == "__main__":
    sys.exit(main())
