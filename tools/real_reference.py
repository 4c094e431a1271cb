"""transformers and PEFT beside Hone, for tools/real_proof.py: the same rows, batches and optimizer."""
import json

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer

from case_model import IGNORED, cross_entropy, jitter

ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
MLP = ["gate_proj", "up_proj", "down_proj"]
EXPERTS = ["experts.gate_up_proj", "experts.down_proj"]


class Tokens:
    """Tokens and labels of rows. Learnt are the answers with the token that ends them, as Hone's train_on: assistant."""

    def __init__(self, model):
        self.tokenizer = AutoTokenizer.from_pretrained(model)

    def text(self, messages, start=False):
        return self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=start)

    def ids(self, text):
        return self.tokenizer(text, add_special_tokens=False).input_ids

    def of_chat(self, messages):
        ids, labels = [], []
        for i, message in enumerate(messages):
            if message["role"] != "assistant":
                continue
            before = self.text(messages[:i], start=True)
            answer = before + message["content"] + self.tokenizer.eos_token
            parts = self.ids(before), self.ids(answer)
            if parts[1][:len(parts[0])] != parts[0]:
                raise SystemExit(f"tokens of an answer and its prompt join: {message['content']!r}")
            labels += [IGNORED] * (len(parts[0]) - len(labels)) + parts[1][len(parts[0]):]
        ids = self.ids(self.text(messages))
        return ids, labels + [IGNORED] * (len(ids) - len(labels))

    def of_prose(self, text):
        ids = [*self.ids(text), self.tokenizer.eos_token_id]
        return ids, ids

    def prompt(self, row):
        return self.ids(self.text(row["messages"][:-1], start=True))

    def words(self, ids):
        return self.tokenizer.decode(ids, skip_special_tokens=True)


def load(path, dtype=torch.float32, device="cpu", adapter=None):
    model = AutoModelForCausalLM.from_pretrained(path, dtype=dtype, attn_implementation="eager").to(device)
    if hasattr(model, "set_experts_implementation"):
        model.set_experts_implementation("eager")
    return PeftModel.from_pretrained(model, adapter, is_trainable=True) if adapter else model


def make_adapter(model, folder, kind, rank=8):
    """PEFT's adapter as it starts, whose B is zero."""
    torch.manual_seed(7)
    options = {"r": rank, "lora_alpha": 2 * rank, "target_modules": ATTENTION, "task_type": "CAUSAL_LM"}
    if kind == "lora_all":
        options["target_modules"] = ATTENTION + MLP
    if kind == "lora_experts":
        options["target_parameters"] = EXPERTS
    get_peft_model(load(model), LoraConfig(**options)).save_pretrained(folder)


class Masters:
    """AdamW on float32 copies of what is trained in bfloat16; float32 weights are their own."""

    def __init__(self, model, rate):
        self.weights = [p for p in model.parameters() if p.requires_grad]
        self.masters = [p if p.dtype == torch.float32 else p.detach().float().requires_grad_() for p in self.weights]
        self.optimizer = torch.optim.AdamW(self.masters, lr=rate, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0)

    def step(self):
        for weight, master in zip(self.weights, self.masters):
            if master is not weight:
                master.grad = None if weight.grad is None else weight.grad.float()
        torch.nn.utils.clip_grad_norm_(self.masters, 1.0)
        self.optimizer.step()
        with torch.no_grad():
            for weight, master in zip(self.weights, self.masters):
                if master is not weight:
                    weight.copy_(master)
                weight.grad = None


def loss_of(model, rows):
    """The sum over the supervised tokens of rows. They are padded behind their ends, where no token of a row looks."""
    width = max(len(ids) for ids, _ in rows)
    filled = lambda part, value: torch.tensor([row[part] + [value] * (width - len(row[part])) for row in rows], device=model.device)
    logits = model(input_ids=filled(0, 0), use_cache=False).logits[:, :-1]
    return cross_entropy(logits.flatten(0, 1), filled(1, IGNORED)[:, 1:].flatten(), "sum")


def supervised(labels):
    return sum(label != IGNORED for label in labels[1:])


def train(model, batches, rate):
    """The loss of every step: the mean over the supervised tokens of its rows."""
    model.train()
    masters = Masters(model, rate)
    losses = []
    for batch in batches:
        loss = loss_of(model, batch) / sum(supervised(labels) for _, labels in batch)
        loss.backward()
        masters.step()
        losses.append(loss.detach())
    return [loss.item() for loss in losses]


def curve(cache, path, batches, rate, dtype=torch.float32, device="cpu", adapter=None, seed=0):
    """The losses of a run, of weights half an ulp off with a seed; kept in the file `cache`."""
    if cache.exists():
        losses = json.loads(cache.read_text())
        if len(losses) >= len(batches):
            return losses[:len(batches)]
    model = load(path, dtype, device, adapter)
    if seed:
        jitter_on_cpu(model, seed)
    losses = train(model, batches, rate)
    cache.parent.mkdir(parents=True, exist_ok=True)
    cache.write_text(json.dumps(losses))
    return losses


def jitter_on_cpu(model, seed):
    """The same weights on every device."""
    device = model.device
    model.to("cpu")
    jitter(model, seed)
    model.to(device)


def mean_loss(model, rows):
    model.eval()
    with torch.no_grad():
        total = sum(loss_of(model, [row]).item() for row in rows)
    return total / sum(supervised(labels) for _, labels in rows)


def continuation(model, prompt, count, end):
    """Greedy tokens up to `end`, and of each by how much its logit is above the next one, relative to the largest logit."""
    model.eval()
    with torch.no_grad():
        out = model.generate(input_ids=torch.tensor([prompt], device=model.device), max_new_tokens=count, do_sample=False,
                             eos_token_id=end, pad_token_id=end, return_dict_in_generate=True, output_logits=True)
    margins = []
    for logits in out.logits:
        top = logits[0].float().topk(2).values
        margins.append(((top[0] - top[1]) / logits[0].abs().max()).item())
    return out.sequences[0, len(prompt):].tolist(), margins


def cut(model, folder, layers):
    """The first layers of a model, as a folder of its own."""
    read = load(model)
    read.model.layers = read.model.layers[:layers]
    read.config.num_hidden_layers = layers
    read.save_pretrained(folder)
    AutoTokenizer.from_pretrained(model).save_pretrained(folder)
