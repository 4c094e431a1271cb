#!/usr/bin/env python3
"""Compares Hone's template engine with Python's jinja2 (set up as transformers does) on a folder of real templates.

    python3 tools/compare_templates.py PROGRAM FOLDER

PROGRAM is build/hone_text_compare; FOLDER holds *.jinja files. Every template renders the conversations of
tools/make_template_fixtures.py and some more, with and without tools, generation prompt and thinking. Needs jinja2 3.1.
For development: the templates themselves are not part of the project.
"""
import json
import pathlib
import subprocess
import sys
import tempfile

import make_template_fixtures as fixtures

MORE = {
    "long_history": [
        fixtures.s("You are terse."),
        fixtures.u("a"), fixtures.a("b", reasoning_content="thought one", thinking="thought one"),
        fixtures.u("c"), fixtures.a("<think>\nthought two\n</think>\n\nd"),
        fixtures.u("e"), fixtures.a("f"), fixtures.u("g"),
    ],
    "agent": [
        fixtures.u("Find it."),
        fixtures.a("", reasoning_content="Look.", tool_calls=[fixtures.call("weather", {"city": "A", "days": []}, 1)]),
        {"role": "tool", "name": "weather", "content": "<none>", "tool_call_id": "call00001"},
        fixtures.a("Again.", tool_calls=[fixtures.call("weather", {"city": "B\n", "n": {"x": [1, 2.5, None, True]}}, 2)]),
        {"role": "tool", "name": "weather", "content": "{\"a\": \"é\"}", "tool_call_id": "call00002"},
        fixtures.a("Found.", reasoning_content="Good."),
        fixtures.u("Thanks."),
        fixtures.a("Welcome."),
    ],
    "string_arguments": [
        fixtures.u("x"),
        fixtures.a("", tool_calls=[fixtures.call("clock", "{\"zone\": \"UTC\"}", 3)]),
        {"role": "tool", "name": "clock", "content": "12:00", "tool_call_id": "call00003"},
    ],
    "developer": [{"role": "developer", "content": "Be kind."}, fixtures.u("Hi"), fixtures.a("Hello")],
}
VARIANTS = fixtures.VARIANTS + [
    {"add_generation_prompt": True, "tools": [fixtures.WEATHER], "variables": {"enable_thinking": True}},
    {"add_generation_prompt": True, "variables": {"thinking": True, "enable_thinking": True}},
    {"variables": {"reasoning_effort": "high", "model_identity": "You are a test.", "date_string": "01 Jan 2030"}},
]


def cases(folder):
    env = fixtures.environment()
    for path in sorted(folder.glob("*.jinja")):
        try:
            template, broken = env.from_string(path.read_text(encoding="utf-8")), None
        except Exception as error:
            template, broken = None, error
        for name, messages in {**fixtures.CONVERSATIONS, **MORE}.items():
            for number, variant in enumerate(VARIANTS):
                data = {"messages": messages, "variables": {**fixtures.TOKENS, **variant.get("variables", {})}}
                data.update({key: value for key, value in variant.items() if key != "variables"})
                context = {"tools": None, "documents": None, "add_generation_prompt": False}
                context.update({key: value for key, value in data.items() if key != "variables"})
                context.update(data["variables"])
                case = {"template": path.name, "name": f"{name}, variant {number}", "input": data}
                try:
                    if broken:
                        raise broken
                    case["expected"] = fixtures.rendered(template, context)
                except Exception as error:  # whatever Python refuses, Hone is to refuse
                    case["error"] = f"{type(error).__name__}: {error}"
                yield case


def main():
    program, folder = sys.argv[1], pathlib.Path(sys.argv[2])
    with tempfile.NamedTemporaryFile("w", suffix=".json", encoding="utf-8") as file:
        json.dump({"time": int(fixtures.NOW.timestamp()), "cases": list(cases(folder))}, file)
        file.flush()
        sys.exit(subprocess.run([program, "templates", folder, file.name]).returncode)


if __name__ == "__main__":
    main()
