"""The same real text, packed, through each trainer's own trainer on one GPU.

  real_text.py prepare FOLDER --model MODEL --text FILE   documents of FILE and of tools/real_text.py's chats: FOLDER/text.jsonl
  real_text.py wide FOLDER --model MODEL --layers 4       random weights at the width of Qwen3-30B-A3B, with MODEL's tokenizer
  real_text.py run FOLDER TRAINER WORK --model MODEL      one run, and a line of JSON in FOLDER/results.jsonl
  real_text.py table FOLDER                               the runs of FOLDER/results.jsonl

TRAINER is hone, transformers (its Trainer, with PEFT) or trl (SFTTrainer). WORK is full, lora-all (every linear layer) or lora
(attention). A run has STEPS steps of 4 packs of up to 4096 tokens in which documents do not see each other, every token supervised,
in bfloat16: AdamW without decay, clipping at 1, a constant rate. Hone keeps float32 masters and moments in full fine-tuning; the
others load the weights in bfloat16 and step those, which is their fastest way. Tokens a second are the median of the steps after
WARM_UP, between the ends of two steps; a step's tokens are those of documents, without padding. Peak memory is the most that the
driver reports for the GPU, less what it was before; losses are means of the first and the last 10 steps.
"""
import argparse
import json
import os
import pathlib
import random
import re
import shutil
import statistics
import subprocess
import sys
import threading
import time

LENGTH, PACKS, STEPS, WARM_UP, WINDOW = 4096, 4, 40, 10, 10
RATE = {"full": 1e-5, "lora": 2e-4, "lora-all": 2e-4}
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
LINEAR = ATTENTION + ["gate_proj", "up_proj", "down_proj"]
SHORTEST, CHATS = 96, 0.3  # tokens of a document that is cut from the text; share of documents that are chats


# Data

def pieces(text, tokens_of, draw):
    """Documents of whole paragraphs, whose lengths are spread evenly over the orders of magnitude up to a pack's."""
    document, size, wanted = [], 0, 0
    for paragraph in re.split(r"\n\n+", text):
        count = len(tokens_of(paragraph + "\n\n"))
        if count >= LENGTH // 2:
            continue
        wanted = wanted or SHORTEST * (0.9 * LENGTH / SHORTEST)**draw.random()
        if document and size + count > wanted:
            yield "\n\n".join(document)
            document, size, wanted = [], 0, 0
        document.append(paragraph)
        size += count
    yield "\n\n".join(document)


def prepare(a):
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools"))
    import real_text
    from transformers import AutoTokenizer
    tokenizer = AutoTokenizer.from_pretrained(a.model)
    draw = random.Random(1)
    texts = list(pieces(a.text.read_text(), lambda text: tokenizer(text, add_special_tokens=False).input_ids, draw))
    chats = real_text.rows(3, int(len(texts) * CHATS / (1 - CHATS)))
    texts += [tokenizer.apply_chat_template(row["messages"], tokenize=False).removesuffix("\n").removesuffix(tokenizer.eos_token)
              for row in chats]
    draw.shuffle(texts)
    a.folder.mkdir(parents=True, exist_ok=True)
    (a.folder / "text.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    lengths = [len(ids) for ids in documents(a.folder, tokenizer)]
    (a.folder / "plain.txt").write_text("\n\n".join(texts))
    print(f"{len(lengths)} documents, {sum(lengths)} tokens, median {statistics.median(lengths):.0f}, longest {max(lengths)}; "
          f"a token has {sum(n * n for n in lengths) / sum(lengths):.0f} tokens of its own document")


def documents(folder, tokenizer):
    for line in open(folder / "text.jsonl"):
        yield tokenizer(json.loads(line)["text"], add_special_tokens=False).input_ids + [tokenizer.eos_token_id]


def packed(lengths, most):
    """Best fit, decreasing: lists of documents that together have at most `most` tokens."""
    room, packs = [[] for _ in range(most + 1)], []
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if lengths[i] > most:
            continue
        left = next((n for n in range(lengths[i], most + 1) if room[n]), None)
        if left is None:
            packs.append([])
            pack, left = packs[-1], most
        else:
            pack = room[left].pop()
        pack.append(i)
        room[left - lengths[i]].append(pack)
    random.Random(2).shuffle(packs)
    return packs


def wide(a):
    """Qwen3-30B-A3B, cut, as transformers saves it: for steps that a GPU is busy with."""
    import torch
    import shapes
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM, AutoTokenizer
    config = shapes.config("qwen3-30b-a3b", a.layers)
    config.architectures, config.dtype = ["Qwen3MoeForCausalLM"], torch.bfloat16
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    state = {}
    for name, tensor in model.state_dict().items():
        value = torch.ones if tensor.dim() == 1 else lambda *shape, **kw: torch.randn(*shape, **kw) * config.initializer_range
        value = value(*tensor.shape, dtype=torch.bfloat16, device=device).cpu()
        if name.endswith("experts.gate_up_proj"):
            for i, (gate, up) in enumerate(expert.chunk(2) for expert in value):
                stem = name.removesuffix("gate_up_proj") + f"{i}."
                state |= {stem + "gate_proj.weight": gate.contiguous(), stem + "up_proj.weight": up.contiguous()}
        elif name.endswith("experts.down_proj"):
            state |= {name.removesuffix("down_proj") + f"{i}.down_proj.weight": value[i].clone() for i in range(len(value))}
        elif name != "lm_head.weight" or not config.tie_word_embeddings:
            state[name] = value
    a.folder.mkdir(parents=True, exist_ok=True)
    save_file(state, a.folder / "model.safetensors", metadata={"format": "pt"})
    config.save_pretrained(a.folder)
    AutoTokenizer.from_pretrained(a.model).save_pretrained(a.folder)


# Trainers. Each returns the seconds, tokens and losses of its steps.

def hone(a, output):
    target = {"full": ["finetuning_type=full"], "lora": ["lora_target_modules=attention"], "lora-all": ["lora_target_modules=all-linear"]}
    lora = [] if a.work == "full" else ["finetuning_type=lora", "lora_r=16", "lora_alpha=32"]
    command = [a.hone, "train", f"model_name_or_path={a.model}", f"datasets={a.folder / 'text.jsonl'}", "train_on=all", "packing=true",
               f"max_length={a.length}", f"per_device_train_batch_size={a.packs}", f"max_steps={a.steps}", f"learning_rate={RATE[a.work]}",
               "lr_scheduler_type=constant", "warmup_ratio=0", "weight_decay=0", "max_grad_norm=1", "router_aux_loss_coef=0",
               f"dtype={a.dtype}", f"device={a.device}", "save_strategy=no", "report_to=jsonl", f"output_dir={output}", *target[a.work],
               *lora]
    subprocess.run([str(part) for part in command], check=True, stdout=open(f"{output}.log", "w"), stderr=subprocess.STDOUT)
    steps = [json.loads(line) for line in open(output / "metrics.jsonl")]
    tokens = [after["num_tokens"] - before["num_tokens"] for before, after in zip([{"num_tokens": 0}, *steps], steps)]
    return [step["step_time"] for step in steps], tokens, [step["loss"] for step in steps]


def clock():
    """A callback of transformers' Trainer that notes the ends of steps, on the GPU's own clock."""
    import torch
    from transformers import TrainerCallback

    class Clock(TrainerCallback):
        ends = []

        def on_step_end(self, args, state, control, **kwargs):
            if torch.cuda.is_available():
                self.ends.append(torch.cuda.Event(enable_timing=True))
                self.ends[-1].record()
            else:
                self.ends.append(time.monotonic())

        def seconds(self):
            if not torch.cuda.is_available():
                return [b - a for a, b in zip(self.ends, self.ends[1:])]
            torch.cuda.synchronize()
            return [a.elapsed_time(b) / 1e3 for a, b in zip(self.ends, self.ends[1:])]

    return Clock()


def model_of(a):
    import shapes
    import torch
    from transformers import AutoModelForCausalLM
    model = AutoModelForCausalLM.from_pretrained(a.model, dtype=getattr(torch, a.dtype), attn_implementation=a.attention)
    model.config.use_cache = False
    if hasattr(model, "set_experts_implementation") and shapes.is_sparse(model.config):
        model.set_experts_implementation(a.experts)
    return model


def adapter_of(a):
    from peft import LoraConfig
    if a.work == "full":
        return None
    return LoraConfig(r=16, lora_alpha=32, target_modules=ATTENTION if a.work == "lora" else LINEAR, task_type="CAUSAL_LM")


def settings(a, output):
    return dict(output_dir=str(output), max_steps=a.steps, learning_rate=RATE[a.work], lr_scheduler_type="constant", weight_decay=0.0,
                max_grad_norm=1.0, bf16=a.dtype == "bfloat16", optim="adamw_torch_fused", logging_steps=min(WINDOW, a.steps),
                save_strategy="no", report_to="none", gradient_checkpointing=a.checkpointing,
                gradient_checkpointing_kwargs={"use_reentrant": False},
                use_liger_kernel=a.liger, use_cpu=a.device == "cpu", disable_tqdm=True)


def logged(trainer):
    """Trainer logs the mean of WINDOW steps; each counts for those."""
    return [line["loss"] for line in trainer.state.log_history if "loss" in line for _ in range(WINDOW)]


def transformers(a, output):
    import torch
    from peft import get_peft_model
    from transformers import AutoTokenizer, Trainer, TrainingArguments
    tokenizer = AutoTokenizer.from_pretrained(a.model)
    all_ids = list(documents(a.folder, tokenizer))
    packs = packed([len(ids) for ids in all_ids], a.length)

    def collate(rows):
        """Packs side by side: positions begin again with each document, of which transformers makes the mask."""
        ids, labels, positions = (torch.full((len(rows), a.length), value) for value in (0, -100, 0))
        for i, row in enumerate(rows):
            at = 0
            for document in row["documents"]:
                end = at + len(all_ids[document])
                ids[i, at:end] = torch.tensor(all_ids[document])
                labels[i, at + 1:end] = ids[i, at + 1:end]
                positions[i, at:end] = torch.arange(end - at)
                at = end
            positions[i, at:] = torch.arange(a.length - at)  # padding is a document whose tokens are not learnt
        return {"input_ids": ids, "labels": labels, "position_ids": positions}

    tokens = []

    def counting(rows):
        tokens.append(sum(len(all_ids[document]) for row in rows for document in row["documents"]))
        return collate(rows)

    model = model_of(a)
    if a.work != "full":
        model = get_peft_model(model, adapter_of(a))
        if a.checkpointing:
            model.enable_input_require_grads()
    arguments = TrainingArguments(per_device_train_batch_size=a.packs, remove_unused_columns=False,
                                  **settings(a, output))
    ends = clock()
    trainer = Trainer(model=model, args=arguments, train_dataset=[{"documents": pack} for pack in packs], data_collator=counting,
                      callbacks=[ends])
    trainer.train()
    return ends.seconds(), tokens[1:], logged(trainer)


def trl(a, output):
    """TRL's own packing and collator."""
    from datasets import load_dataset
    from transformers import AutoTokenizer
    from trl import SFTConfig, SFTTrainer
    data = load_dataset("json", data_files=str(a.folder / "text.jsonl"), split="train")
    arguments = SFTConfig(per_device_train_batch_size=a.packs, packing=True, max_length=a.length, dataset_text_field="text",
                          **settings(a, output))
    ends = clock()
    trainer = SFTTrainer(model=model_of(a), args=arguments, train_dataset=data, processing_class=AutoTokenizer.from_pretrained(a.model),
                         callbacks=[ends], peft_config=adapter_of(a))
    tokens, collate = [], trainer.data_collator

    def counting(rows):
        batch = collate(rows)
        tokens.append(sum(len(row["input_ids"]) for row in rows))
        return batch

    trainer.data_collator = counting
    trainer.train()
    return ends.seconds(), tokens[1:], logged(trainer)


TRAINERS = {"hone": hone, "transformers": transformers, "trl": trl}


# Measuring

class Memory(threading.Thread):
    """The most memory of the GPU that is in use, by any process."""

    def __init__(self):
        super().__init__(daemon=True)
        self.before = self.most = self.used()
        self.stopped = threading.Event()

    @staticmethod
    def used():
        if shutil.which("nvidia-smi") is None:
            return 0
        shown = subprocess.run(["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"], capture_output=True,
                               text=True, check=True)
        return int(shown.stdout.split()[0])

    def run(self):
        while not self.stopped.wait(0.2):
            self.most = max(self.most, self.used())


def run(a):
    """The run is a process of its own, beside one that watches the GPU's memory."""
    name = f"{a.trainer}-{a.model.name}-{a.work}" + ("" if a.trainer == "hone" else f"-{a.attention}") + \
        "-checkpointing" * a.checkpointing + "-liger" * a.liger
    line = {"name": name, "trainer": a.trainer, "model": a.model.name, "work": a.work}
    if a.trainer != "hone":
        line |= {"attention": a.attention, "checkpointing": a.checkpointing, "liger": a.liger}
    output = a.folder / name
    if os.environ.get("REAL_TEXT_PART") == "1":
        seconds, tokens, losses = TRAINERS[a.trainer](a, output)
        (a.folder / f"{name}.json").write_text(json.dumps({"seconds": seconds, "tokens": tokens, "losses": losses}))
        return 0
    shutil.rmtree(output, ignore_errors=True)
    memory = Memory()
    memory.start()
    begin = time.monotonic()
    with open(a.folder / f"{name}.part.log", "w") as log:
        code = subprocess.run([sys.executable, *sys.argv], env=os.environ | {"REAL_TEXT_PART": "1"}, stdout=log,
                              stderr=subprocess.STDOUT).returncode
    memory.stopped.set()
    line["wall_seconds"] = round(time.monotonic() - begin, 1)
    if code != 0:
        line["failed"] = open(a.folder / f"{name}.part.log").read().strip().splitlines()[-1][:300]
    else:
        part = json.loads((a.folder / f"{name}.json").read_text())
        first = len(part["seconds"]) - a.steps + min(WARM_UP, a.steps // 2)  # seconds end with the last step
        pairs = list(zip(part["tokens"], part["seconds"]))[first:]
        rates = [tokens / seconds for tokens, seconds in pairs]
        line |= {"tokens_per_second": round(statistics.median(rates), 1), "slowest": round(min(rates), 1), "fastest": round(max(rates), 1),
                 "step_ms": round(1e3 * statistics.median(seconds for _, seconds in pairs), 2), "steps": len(rates),
                 "tokens_per_step": round(statistics.mean(tokens for tokens, _ in pairs), 1),
                 "peak_mib": memory.most - memory.before, "first_loss": round(statistics.mean(part["losses"][:WINDOW]), 4),
                 "last_loss": round(statistics.mean(part["losses"][-WINDOW:]), 4)}
    with open(a.folder / "results.jsonl", "a") as file:
        file.write(json.dumps(line) + "\n")
    print(json.dumps(line), flush=True)
    return int(code != 0)


def table(a):
    for line in map(json.loads, open(a.folder / "results.jsonl")):
        if "failed" in line:
            print(f"{line['name']:<52} failed: {line['failed']}")
        else:
            print(f"{line['name']:<52} {line['tokens_per_second']:>10,.0f} tokens/s  {line['step_ms']:>8.1f} ms"
                  f"  {line['peak_mib'] * 1.048576e-3:>6.1f} GB  loss {line['first_loss']:.3f} to {line['last_loss']:.3f}"
                  f"  {line['tokens_per_step']:.0f} tokens a step")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("part", choices=("prepare", "wide", "run", "table"))
    p.add_argument("folder", type=pathlib.Path)
    p.add_argument("trainer", nargs="?", choices=tuple(TRAINERS))
    p.add_argument("work", nargs="?", choices=tuple(RATE))
    p.add_argument("--model", type=pathlib.Path)
    p.add_argument("--text", type=pathlib.Path)
    p.add_argument("--layers", type=int, default=4)
    p.add_argument("--hone", type=pathlib.Path, default=pathlib.Path("build/hone"))
    p.add_argument("--attention", default="sdpa", help="of transformers: sdpa, flex_attention, eager")
    p.add_argument("--experts", default="grouped_mm", help="of transformers: grouped_mm, batched_mm or eager")
    p.add_argument("--checkpointing", action="store_true")
    p.add_argument("--liger", action="store_true", help="Liger's kernels, which compute the loss in pieces")
    p.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    p.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32"))
    p.add_argument("--steps", type=int, default=STEPS)
    p.add_argument("--length", type=int, default=LENGTH, help="tokens of a pack")
    p.add_argument("--packs", type=int, default=PACKS, help="of a step")
    a = p.parse_args()
    a.folder, a.hone = a.folder.resolve(), a.hone.resolve()
    return {"prepare": prepare, "wide": wide, "run": run, "table": table}[a.part](a)


if __name__ == "__main__":
    sys.exit(main())
