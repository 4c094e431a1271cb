#!/usr/bin/env python3
"""Compares Hone's tokenizer with Hugging Face tokenizers on real tokenizer.json files.

    python3 tools/compare_tokenizers.py PROGRAM FOLDER [FOLDER ...] [--texts FILE_OR_FOLDER ...] [--count 10000]

PROGRAM is build/hone_text_compare; each FOLDER holds a tokenizer.json. Strings are lines, stretches and mixtures of the
texts (by default this repository), random Unicode and the tokenizer's own special tokens; the same ones in every run.
Needs the package tokenizers. For development: the files themselves are not part of the project.
"""
import argparse
import json
import pathlib
import random
import subprocess
import sys
import tempfile

from tokenizers import Tokenizer

ROOT = pathlib.Path(__file__).resolve().parent.parent
SUFFIXES = {".md", ".py", ".cpp", ".h", ".cu", ".txt", ".po", ".rst", ".json", ".jinja", ".html"}
ALPHABETS = [
    "abcdefghijklmnopqrstuvwxyz", "0123456789", " \t\n\r ", "ABC'sdtm.,;:!?()[]{}<>|/\\\"`~@#$%^&*-_=+",
    "éèüßñçøåÿœšžğİıſ", "абвгдежзийклмн", "αβγδεζηθ", "אבגדהוז", "ابتثجحخ", "अआइईकखगिीु्", "กขคงจเแโไ", "你好世界漢字龍",
    "あいうカキク", "한국어가각", "😀🎉👩‍👩‍👧🇩🇪🏽", "\u0301\u0308\u200b\u200d\ufeff\u00a0\u3000\u2028", "ﬁⅣ①ｱ㌔½²™", "\x00\x01\x7f\x80",
]


def texts_of(paths):
    files = []
    for path in map(pathlib.Path, paths):
        files += sorted(p for p in path.rglob("*") if p.suffix in SUFFIXES) if path.is_dir() else [path]
    texts = [p.read_text(encoding="utf-8", errors="replace") for p in files if p.stat().st_size < 4 << 20]
    return [text for text in texts if text.strip()]


def strings(texts, special, count):
    draw = random.Random(1)
    lines = [line for text in texts for line in text.split("\n") if line]
    for i in range(count):
        kind = i % 8
        if kind < 3:
            yield draw.choice(lines)
        elif kind < 5:
            text = draw.choice(texts)
            at = draw.randrange(len(text))
            yield text[at : at + draw.randrange(1, 600)]
        elif kind == 5:
            yield "".join(draw.choice(draw.choice(ALPHABETS)) for _ in range(draw.randrange(60)))
        elif kind == 6:
            parts = [draw.choice(special) if special and draw.random() < 0.5 else draw.choice(lines)[:30] for _ in range(6)]
            yield draw.choice(["", " ", "\n"]).join(parts)
        else:
            code = [c for c in (draw.randrange(0x30000) for _ in range(draw.randrange(30))) if not 0xD800 <= c < 0xE000]
            yield "".join(map(chr, code))


def compare(program, folder, texts, count):
    path = folder / "tokenizer.json" if folder.is_dir() else folder
    theirs = Tokenizer.from_file(str(path))
    theirs.no_truncation()
    theirs.no_padding()
    special = [token.content for token in theirs.get_added_tokens_decoder().values()]
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl", encoding="utf-8") as file:
        for text in strings(texts, special, count):
            ids = theirs.encode(text).ids
            case = {"text": text, "ids": ids, "decoded": theirs.decode(ids, skip_special_tokens=False)}
            case["decoded_skip"] = theirs.decode(ids, skip_special_tokens=True)
            file.write(json.dumps(case) + "\n")
        file.flush()
        print(f"{folder.name}: ", end="", flush=True)
        return subprocess.run([program, "tokenizer", path, file.name]).returncode == 0


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("folders", nargs="+", type=pathlib.Path)
    parser.add_argument("--texts", nargs="+", default=[ROOT / "src", ROOT / "docs", ROOT / "tools"])
    parser.add_argument("--count", type=int, default=10000)
    options = parser.parse_args()
    texts = texts_of(options.texts)
    equal = [compare(options.program, folder, texts, options.count) for folder in options.folders]
    sys.exit(0 if all(equal) else 1)


if __name__ == "__main__":
    main()
