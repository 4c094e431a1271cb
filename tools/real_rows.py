"""The rows of tools/real_proof.py."""
import dataclasses
import itertools
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import pathlib
import time

import torch

import real_reference as reference
import real_text as text
from real_jobs import alone, write_whole

TOOLS = pathlib.Path(__file__).resolve().parent
# What a row may be off where the reference has no more noise of its own: the bounds of hone verify's runs.
LOSS_BOUND = {"full": 5e-5, "lora_attention": 2e-5, "lora_experts": 2e-5}
RATES = {"full": 1e-5, "lora_attention": 2e-4, "lora_experts": 2e-4}
NOISE_FACTOR = 2
MOST_NOISE = 0.02  # of a loss; steps from there on are not compared, and half of all must be
PERPLEXITY_BOUND = 1e-5
LOGITS_BOUND = 2e-5
TIE = 1e-4  # of the largest logit: two tokens that are so near are both right
KINDS = {"dense": ("full", "lora_attention"), "mixtral": ("full", "lora_attention", "lora_experts"),
         "fine": ("full", "lora_attention", "lora_experts")}
# How else the same run is done: the model, its kind, arguments of hone train, ranks.
SAME = {"same/dense/zero_stage_3": ("dense", "lora_attention", ["zero_stage=3"], 2),
        "same/dense/full_zero_stage_3": ("dense", "full", ["zero_stage=3"], 2),
        "same/dense/cpu_offload": ("dense", "lora_attention", ["cpu_offload=[optimizer,params,activations]"], 1),
        "same/mixtral/zero_stage_3": ("mixtral", "lora_experts", ["zero_stage=3"], 2),
        "same/mixtral/expert_parallel": ("mixtral", "lora_experts", ["expert_parallel_size=2"], 2),
        "same/mixtral/experts_on_cpu": ("mixtral", "lora_experts", ["experts_device=cpu"], 1),
        "same/mixtral/cpu_offload": ("mixtral", "lora_experts", ["cpu_offload=[optimizer,params,activations]"], 1),
        "same/fine/expert_parallel": ("fine", "lora_experts", ["expert_parallel_size=2"], 2),
        "same/fine/experts_on_cpu": ("fine", "lora_experts", ["experts_device=cpu"], 1)}
SAME_STEPS = 20


class Skipped(Exception):
    """Why a row cannot run here."""


class Broken(Exception):
    """A program of a row ended as it should not."""


@dataclasses.dataclass
class Check:
    value: float
    bound: float
    what: str
    at_least: bool = False

    @property
    def ok(self):
        return self.value >= self.bound if self.at_least else self.value <= self.bound


def names(options):
    models = list(KINDS)
    rows = [f"verify/{model}" for model in models] + [f"planted/{model}" for model in ("dense", "mixtral")]
    rows += [f"train/{model}/{kind}" for model in models for kind in (*KINDS[model], "nf4")]
    rows += [*SAME, *(f"generate/{model}" for model in models), *(f"perplexity/{model}" for model in models)]
    return rows + ([] if options.short else ["learnt/dense"]) + ["merge/dense", "merge/mixtral"]


def references_of(row, options):
    """What transformers makes for a row without hone, as arguments of Proof.refer: the case of a row of verify, and the losses that
    a row of train compares with, as a seed of noise and a dtype. Those on an nf4 base need what hone exports."""
    what, *rest = row.split("/")
    if what == "verify":
        return [()]
    if what != "train" or rest[1] == "nf4":
        return []
    if options.device == "cuda":
        return [(0, torch.float32), *((seed, torch.bfloat16) for seed in range(options.noise_seeds + 1))]
    return [(seed, torch.float32) for seed in range(options.noise_seeds + 1)]


def relative(ours, theirs):
    return abs(ours - theirs) / abs(theirs)


def root_mean_square(losses, exact):
    return math.sqrt(sum(relative(a, b)**2 for a, b in zip(losses, exact)) / len(exact))


def median(losses, exact):
    return statistics.median(map(relative, losses, exact))


# A run in bfloat16 from one in float32: how far it may be off, as a multiple of what transformers in bfloat16 is, at most, in its runs. Once
# losses are small, the mean square is that of a few steps, which the median passes over, and in which runs half an ulp apart differ, too.
BFLOAT16_FACTORS = {root_mean_square: 1.5, median: 1}


def bfloat16_checks(ours, theirs, exact, note):
    def check(measure, factor):
        of_theirs = [measure(run, exact) for run in theirs]
        return Check(measure(ours, exact), factor * max(of_theirs),
                     f"deviation from float32, {measure.__name__.replace('_', ' ')} of {len(exact)} steps; transformers in bfloat16 "
                     f"{', '.join(f'{value:.3g}' for value in of_theirs)}; {note}")
    return [check(measure, factor) for measure, factor in BFLOAT16_FACTORS.items()]


def losses_in(folder):
    metrics = folder / "metrics.jsonl"
    return [json.loads(line)["loss"] for line in metrics.read_text().splitlines()] if metrics.exists() else []


def write_rows(path, rows):
    return write_whole(path, "".join(json.dumps({key: value for key, value in row.items() if key != "kind"}) + "\n" for row in rows))


class Proof:
    def __init__(self, options, models):
        self.options, self.models, self.out = options, models, options.output
        self.beside = options.reference_device or options.device
        self.factor = 5 if "cuda" in (options.device, self.beside) else 1  # kGpuFactor of hone verify
        self.work = self.out / ("short" if options.short else "whole")
        self.batch = 2 if options.short else 4
        self.tokens = reference.Tokens(models / "dense")
        training, self.held_out = text.split(1, self.batch * options.steps, 20 if options.short else 100)
        self.data = write_rows(self.work / f"train-{options.steps}.jsonl", training)
        self.held_out_data = write_rows(self.work / f"held_out-{options.steps}.jsonl", self.held_out)
        tokens = [self.tokens.of_chat(row["messages"]) for row in training]
        self.batches = [tokens[i:i + self.batch] for i in range(0, len(tokens), self.batch)]

    def run(self, row):
        what, *rest = row.split("/")
        return self.same(row) if what == "same" else getattr(self, what)(*rest)

    def timed(self, row):
        """The checks of a row, and its seconds."""
        begin = time.monotonic()
        return self.run(row), time.monotonic() - begin

    # Programs

    def program(self, name, *arguments, code=0):
        """Runs hone; its output is kept in OUT/logs."""
        log = self.out / "logs" / self.options.device / (name.replace("/", "-") + ".log")
        log.parent.mkdir(parents=True, exist_ok=True)
        done = subprocess.run([str(part) for part in (self.options.hone, *arguments)], capture_output=True, text=True)
        log.write_text(" ".join(map(str, arguments)) + "\n" + done.stdout + done.stderr)
        if done.returncode not in (code if isinstance(code, tuple) else (code,)):
            raise Broken(f"{name}: hone {arguments[0]} ended with {done.returncode}; see {log}\n{done.stderr[-2000:]}")
        return done.stdout

    def hone_losses(self, name, model, kind, extra=(), ranks=1, steps=None, data=None, batch=None, rate=None, adapter=None):
        """The losses of hone train, and its folder. A run that is complete is not run again."""
        steps = steps or self.options.steps
        folder = self.work / self.options.device / name
        with alone(folder):
            if self.options.again or len(losses_in(folder)) < steps:
                shutil.rmtree(folder, ignore_errors=True)
                self.hone_train(name, folder, model, kind, extra, ranks, steps, data or self.data, batch or self.batch,
                                rate or RATES[kind], adapter)
            return losses_in(folder)[:steps], folder

    def hone_train(self, name, folder, model, kind, extra, ranks, steps, data, batch, rate, adapter):
        local = ["--device", "cpu"] if self.options.device == "cpu" else []
        launch = ["launch", "-n", ranks, *local, "--"] if ranks > 1 else []
        how = ["finetuning_type=full", "router_aux_loss_coef=0"] if kind == "full" else [
            f"adapter_name_or_path={adapter or self.adapter(model, kind)}"]
        dtype = "float32" if self.options.device == "cpu" else "bfloat16"
        self.program(name, *launch, "train", f"model_name_or_path={self.models / model}", f"datasets={data}",
                     "shuffle=false", "packing=false", f"per_device_train_batch_size={batch // ranks}", f"global_batch_size={batch}",
                     f"max_steps={steps}", f"learning_rate={rate}", "lr_scheduler_type=constant", "warmup_ratio=0",
                     f"dtype={dtype}", f"device={self.options.device}", f"output_dir={folder}", "report_to=jsonl",
                     "save_strategy=no", "max_length=512", *how, *extra)

    def adapter(self, model, kind):
        folder = self.work / "adapters" / f"{model}-{kind}"
        with alone(folder):
            if not (folder / "adapter_model.safetensors").exists():
                reference.make_adapter(self.models / model, folder, kind)
        return folder

    def refer(self, row, seed=0, dtype=torch.float32):
        """Makes what references_of names."""
        what, model, *kind = row.split("/")
        if what == "verify":
            self.case(model)
        else:
            self.curve(f"{model}-{kind[0]}", model, kind[0], seed=seed, dtype=dtype)

    def curve(self, name, model, kind, folder=None, seed=0, dtype=torch.float32):
        adapter = None if kind == "full" else self.adapter(model, kind)
        cache = self.work / "reference" / f"{self.beside}-{name}-{str(dtype)[6:]}-{seed}.json"
        with alone(cache):
            return reference.curve(cache, folder or self.models / model, self.batches, RATES[kind], dtype, self.beside, adapter,
                                   seed)

    # Rows

    def case(self, model):
        case = self.work / "cases" / model
        with alone(case):
            if not (case / "expected.json").exists():
                self.make_case(model, case)
        return case

    def make_case(self, model, case):
        shutil.rmtree(case, ignore_errors=True)
        prose = case.with_suffix(".txt")
        prose.write_text("\n\n".join(text.prose(100000) or [text.answer_of(row) for row in text.rows(9, 2000)]))
        seeds = self.options.noise_seeds + (0 if self.options.short else 1)
        subprocess.run([sys.executable, TOOLS / "make_case.py", self.models / model, case, "--text", prose, "--rows", "1",
                        "--length", "32", "--steps", "2", "--noise-seeds", str(seeds)], check=True,
                       stdout=subprocess.DEVNULL, stderr=None if os.environ.get("VERBOSE") else subprocess.DEVNULL)

    def failures(self, name, case, *arguments):
        report = json.loads(self.program(name, "verify", case, "--json", *arguments, code=(0, 1)))
        return report["rows"], [row["name"] for row in report["rows"] if row["required"] and not row["ok"]]

    def verify(self, model):
        checks = []
        for dtype in ("float32", "bfloat16"):
            rows, failed = self.failures(f"verify-{model}-{dtype}", self.case(model), "--device", self.options.device, "--dtype", dtype)
            widened = sum("noise" in row for row in rows)
            checks.append(Check(len(failed), 0, f"of {len(rows)} rows of hone verify in {dtype} failed {failed or ''}; {widened} "
                                "have bounds of noise"))
        return checks

    def planted(self, model):
        """Errors of the model that verify must find, in the rows of logits and of gradients; of the base of RoPE, which hardly
        turns the few tokens of the shorter documents, in gradients of longer rows."""
        from safetensors.torch import load_file, save_file
        case = self.case(model)

        def scale(name):
            def change(folder):
                file = folder / "model.safetensors"
                tensors = load_file(file)
                found = next(key for key in sorted(tensors) if key.endswith(name))
                tensors[found] = tensors[found] * 1.001
                save_file(tensors, file, metadata={"format": "pt"})
            return change

        def rope(folder):
            config = json.loads((folder / "config.json").read_text())
            place = config["rope_parameters"] if config.get("rope_parameters") else config
            place["rope_theta"] *= 1.001
            (folder / "config.json").write_text(json.dumps(config))

        long = {"gradients", "accumulation, gradients"}
        every = long | {"logits", "documents packed, gradients"}
        plants = {"base of RoPE": (rope, long), "weights of a norm": (scale("input_layernorm.weight"), every),
                  "down of a layer": (scale("down_proj.weight" if model == "dense" else "w2.weight"), every)}
        copy, accepted = self.work / self.options.device / f"planted-{model}", []
        for what, (change, wanted) in plants.items():
            shutil.rmtree(copy, ignore_errors=True)
            copy.mkdir(parents=True)
            for path in case.iterdir():
                if path.name != "model":
                    (copy / path.name).symlink_to(path)
            shutil.copytree(case / "model", copy / "model")
            change(copy / "model")
            missed = wanted - set(self.failures(f"planted-{model}", copy, "--device", self.options.device)[1])
            accepted += [f"{what}: {row}" for row in sorted(missed)]
        shutil.rmtree(copy)
        count = sum(len(wanted) for _, wanted in plants.values())
        return [Check(len(accepted), 0, f"of {count} rows accept an error of 1e-3 in {', '.join(plants)} "
                      f"{accepted or ''}")]

    def train(self, model, kind):
        extra, folder, name = [], None, f"{model}-{kind}"
        if kind == "nf4":
            kind = KINDS[model][-1]
            extra, folder = ["base_weight_dtype=nf4"], self.unpacked(model, kind)
        ours, _ = self.hone_losses(f"train/{name}", model, kind, extra)
        exact = self.curve(name, model, kind, folder)
        ends = f"loss {exact[0]:.4f} to {exact[-1]:.4f} in {len(exact)} steps"
        if self.options.device == "cuda":
            theirs = [self.curve(name, model, kind, folder, seed, torch.bfloat16) for seed in range(self.options.noise_seeds + 1)]
            return bfloat16_checks(ours, theirs, exact, ends)
        noise = [0.0] * len(exact)
        for seed in range(1, self.options.noise_seeds + 1):
            moved = self.curve(name, model, kind, folder, seed)
            noise = [max(pair) for pair in zip(noise, itertools.accumulate(map(relative, moved, exact), max))]
        compared = next((i for i, value in enumerate(noise) if value > MOST_NOISE), len(noise))
        errors = list(map(relative, ours, exact))
        bounds = [max(LOSS_BOUND[kind], NOISE_FACTOR * value) for value in noise]
        worst = max(range(max(compared, 1)), key=lambda i: errors[i] / bounds[i])
        return [Check(errors[worst], bounds[worst], f"relative, of step {worst + 1}, the nearest to its bound; noise at most "
                      f"{max(noise):.2g}; {ends}"),
                Check(compared, len(exact) / 2, "steps before the reference's own noise hides errors", at_least=True)]

    def unpacked(self, model, kind):
        """The model with the weights that nf4 stands for: exported with an adapter that changes nothing."""
        folder = self.work / "nf4" / model
        with alone(folder):
            if not (folder / "config.json").exists():
                self.program(f"export-{model}", "export", self.adapter(model, kind), folder, "--model", self.models / model,
                             "--base-weight-dtype", "nf4", "--dtype", "float32")
        return folder

    def same(self, row):
        model, kind, extra, ranks = SAME[row]
        cuda = self.options.device == "cuda"
        if cuda and ranks > torch.cuda.device_count():
            raise Skipped(f"it needs {ranks} GPUs")
        steps = min(SAME_STEPS, self.options.steps)
        plain = self.hone_losses(f"train/{model}-{kind}", model, kind)[0][:steps]
        ours, _ = self.hone_losses(row, model, kind, extra, ranks, steps)
        if cuda:
            name = f"{model}-{kind}"
            exact, theirs = self.curve(name, model, kind)[:steps], self.curve(name, model, kind, dtype=torch.bfloat16)[:steps]
            return bfloat16_checks(ours, [theirs], exact, f"one GPU {root_mean_square(plain, exact):.3g}, root mean square")
        equal = sum(a == b for a, b in zip(ours, plain))
        return [Check(max(map(relative, ours, plain)), LOSS_BOUND[kind],
                      f"relative to the plain run, worst of {steps} steps; {equal} have the same bits")]

    def answers(self, name, rows, model, adapter=None, count=48):
        """Hone's greedy answers in float32."""
        prompts = write_rows(self.work / self.options.device / f"prompts-{name}.jsonl", rows)
        output = prompts.with_name(f"answers-{name}.jsonl")
        self.program(f"generate-{name}", "generate", "--model", model, *(["--adapter", adapter] if adapter else []), "--input", prompts,
                     "--output", output, "--force", "--temperature", 0, "--max-new-tokens", count, "--dtype", "float32", "--device",
                     self.options.device)
        return [json.loads(line)["generated_text"] for line in output.read_text().splitlines()]

    def compare_answers(self, ours, rows, model, count=48):
        """Whether each of our answers is that of transformers, up to a token that is nearly tied there."""
        wrong, tied, total = 0, 0, 0
        for answer, row in zip(ours, rows, strict=True):
            tokens, margins = reference.continuation(model, self.tokens.prompt(row), count, self.tokens.tokenizer.eos_token_id)
            total += len(tokens)
            if answer == self.tokens.words(tokens):
                continue
            same = max(n for n in range(len(tokens)) if answer.startswith(self.tokens.words(tokens[:n])))
            # A token may be part of a character: the one before may be the first that differs.
            near = min(margins[max(0, same - 1):same + 1])
            tied, wrong = tied + (near <= TIE), wrong + (near > TIE)
        return Check(wrong, 0, f"of {len(rows)} greedy answers differ, {total} tokens; {tied} at a tie")

    def generate(self, model):
        rows = self.held_out[:5 if self.options.short else 20]
        ours = self.answers(model, rows, self.models / model)
        return [self.compare_answers(ours, rows, reference.load(self.models / model, device=self.beside))]

    def perplexity(self, model):
        prose = text.prose(2000 if self.options.short else 20000)
        data = {"chats": (self.held_out_data, [self.tokens.of_chat(row["messages"]) for row in self.held_out])}
        if prose:
            data["prose"] = (write_rows(self.work / "prose.jsonl", [{"text": piece} for piece in prose]),
                             [self.tokens.of_prose(piece) for piece in prose])
        theirs = reference.load(self.models / model, device=self.beside)
        bound = PERPLEXITY_BOUND * self.factor
        checks = []
        for name, (path, rows) in data.items():
            output = self.program(f"eval-{model}-{name}", "eval", f"model_name_or_path={self.models / model}", f"eval_datasets={path}",
                                  "packing=false", "dtype=float32", f"device={self.options.device}", "max_length=2048", "--json")
            report = json.loads(output[output.index("{"):])
            exact = reference.mean_loss(theirs, rows)
            count = sum(reference.supervised(labels) for _, labels in rows)
            if report["num_supervised_tokens"] != count:
                return [Check(abs(report["num_supervised_tokens"] - count), 0, f"learnt tokens of {name} differ from {count}")]
            checks.append(Check(abs(math.expm1(report["eval_loss"] - exact)), bound,
                                f"relative, of a perplexity of {math.exp(exact):.6g} ({name}, {count} tokens)"))
        return checks

    def taught(self):
        """An adapter of the dense model that learnt to write dates and to extract, in Hone."""
        steps, batch = (20, 4) if self.options.short else (200, 16)
        training, held_out = text.split(5, steps * batch, 100, text.LEARNABLE)
        data = write_rows(self.work / "learnable.jsonl", training)
        losses, folder = self.hone_losses("learnt/dense", "dense", "lora_all", steps=steps, data=data, batch=batch, rate=5e-4,
                                          adapter=self.adapter("dense", "lora_all"))
        return losses, folder, held_out

    def learnt(self, model):
        losses, adapter, rows = self.taught()
        share = lambda answers: sum(map(text.is_answered, rows, answers)) / len(rows)
        before = share(self.answers("before", rows, self.models / model))
        after = share(self.answers("after", rows, self.models / model, adapter))
        return [Check(after, before + 0.3, f"exact match of {len(rows)} held-out answers after {len(losses)} steps, {before:.0%} "
                      f"before; loss {losses[0]:.3f} to {losses[-1]:.3f}", at_least=True)]

    def merge(self, model):
        if model == "dense":
            _, adapter, rows = self.taught()
        else:
            _, adapter = self.hone_losses(f"train/{model}-lora_experts", model, "lora_experts")
            rows = self.held_out
        rows = rows[:5 if self.options.short else 20]
        merged = self.work / self.options.device / f"merged-{model}"
        self.program(f"merge-{model}", "merge", "--model", self.models / model, "--adapter", adapter, "--output", merged, "--force")
        ours = self.answers(f"merge-{model}", rows, self.models / model, adapter)
        loaded = reference.load(merged, device=self.beside)
        return [self.compare_answers(ours, rows, loaded), self.compare_logits(loaded, model, adapter, rows)]

    def compare_logits(self, merged, model, adapter, rows):
        worst = 0.0
        exact = reference.load(self.models / model, device=self.beside, adapter=adapter)
        merged.eval(), exact.eval()
        with torch.no_grad():
            for row in rows:
                ids = torch.tensor([self.tokens.of_chat(row["messages"])[0]], device=self.beside)
                a, b = merged(input_ids=ids).logits, exact(input_ids=ids).logits
                worst = max(worst, ((a - b).abs().max() / b.abs().max()).item())
        return Check(worst, LOGITS_BOUND * self.factor,
                     "logits of the merged model from those of PEFT, of the largest")
