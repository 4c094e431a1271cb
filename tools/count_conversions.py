#!/usr/bin/env python3
"""Counts what `hone convert-config` makes of published configurations.

    tools/count_conversions.py build/hone AXOLOTL LLAMA_FACTORY

Each folder is a checkout; all .yml and .yaml files below its examples are converted there. Prints how many are converted
(and of those, how many for a model that Hone has), how many are about other work, and for the refused ones the reasons: a
file counts where its first setting that would change what is learnt stands.
"""

import collections
import pathlib
import re
import subprocess
import sys
import tempfile


def outcome(hone, folder, file, output):
    """The kind of a result ("converted", "other", "refused") and its reason."""
    command = [hone, "convert-config", str(file), "--output", output, "--force"]
    run = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if run.returncode == 0:
        lacking = re.search(r"Hone has no (.*): train will refuse it", run.stdout)
        files = re.search(r"files of \w+ are not read", run.stdout)
        return "converted", lacking.group(0) if lacking else files.group(0) if files else "for a model of Hone's"
    reasons = re.findall(r"^  changes results .*?\.(?:ya?ml|json):\d+\): (.*)$", run.stdout, re.MULTILINE)
    reasons += re.findall(r"^  changes results .*?\.ya?ml\): (.*)$", run.stdout, re.MULTILINE)
    if reasons:
        return "refused", reasons[0]
    error = re.search(r"error: (.*)", run.stderr)
    fix = re.search(r"fix: *(.*)", run.stderr)
    other = fix and re.match(r"use `hone|translate it with the configuration", fix.group(1))
    text = error.group(1) if error else run.stderr.strip()
    return ("other", f"{text}: {fix.group(1)}") if other else ("refused", text)


def main():
    hone = str(pathlib.Path(sys.argv[1]).resolve())
    counts = {kind: collections.Counter() for kind in ("converted", "other", "refused")}
    with tempfile.TemporaryDirectory() as scratch:
        for folder in map(pathlib.Path, sys.argv[2:]):
            files = sorted(f for f in (folder / "examples").rglob("*") if f.suffix in (".yml", ".yaml"))
            for file in files:
                kind, reason = outcome(hone, folder, file.relative_to(folder), scratch + "/run.yaml")
                counts[kind][reason] += 1
    for kind, reasons in counts.items():
        print(f"{kind}: {sum(reasons.values())}")
        for reason, count in reasons.most_common():
            print(f"  {count:4}  {reason}")


if __name__ == "__main__":
    main()
