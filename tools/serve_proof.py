#!/usr/bin/env python3
"""Asks `hone serve` through the real openai package, and prints a table of what held.

    tools/serve_proof.py build/hone MODEL [--adapter FOLDER]     (a Python with openai: pip install openai)

MODEL is a chat model of a known architecture, such as the dense one of tools/real_model.py. Greedy answers are compared
with those of `hone generate`, streamed ones with whole ones, and 100 clients at once with one; then come clients that
leave, send rubbish, or send nothing, and a server that is killed.
"""
import argparse
import concurrent.futures
import json
import os
import signal
import socket
import subprocess
import sys
import time

try:
    import openai
except ImportError:
    sys.exit("skipped: this Python has no openai package")

QUESTIONS = ["What is the capital of France?", "Write one sentence about rain.", "2 + 3 =", "Name three colours.",
             "Say hello in Spanish.", "What is a mixture of experts?", "Count to five.", "Why is the sky blue?"]
KEY = "a key for this proof"


class Proof:
    def __init__(self):
        self.failed = 0

    def row(self, name, holds, detail=""):
        self.failed += not holds
        print(f"{'held' if holds else 'FAILED':7}{name}{': ' + str(detail) if detail else ''}", flush=True)


def start(hone, model, adapter, more=()):
    """The process and the port of a server on any free port."""
    command = [hone, "serve", "--model", model, "--port", "0", "--batch-size", "8", "--max-length", "512", *more]
    command += ["--adapter", adapter] if adapter else []
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ, "HONE_API_KEY": KEY})
    for line in process.stderr:
        if "http://127.0.0.1:" in line:
            return process, int(line.split("http://127.0.0.1:")[1].split("/")[0])
    sys.exit("the server did not start")


def ask(client, model, text, **more):
    return client.chat.completions.create(model=model, messages=[{"role": "user", "content": text}],
                                          **{"max_tokens": 24, "temperature": 0, **more})


def generated(hone, model, adapter, texts):
    """The answers of hone generate."""
    lines = "".join(json.dumps({"prompt": text}) + "\n" for text in texts)
    command = [hone, "generate", "--model", model, "--input", "/dev/stdin", "--output", "-", "--max-new-tokens", "24",
               "--temperature", "0"] + (["--adapter", adapter] if adapter else [])
    run = subprocess.run(command, input=lines, capture_output=True, text=True, check=True)
    return [json.loads(line)["generated_text"] for line in run.stdout.splitlines()]


def answers(proof, client, model, expected):
    whole = [ask(client, model, text) for text in QUESTIONS]
    proof.row("greedy answers are those of hone generate", [w.choices[0].message.content for w in whole] == expected)
    streamed = ""
    for event in ask(client, model, QUESTIONS[0], stream=True, stream_options={"include_usage": True}):
        streamed += "".join(choice.delta.content or "" for choice in event.choices)
        usage = event.usage or None
    proof.row("a streamed answer is the whole one", streamed == expected[0] and usage == whole[0].usage)
    stop = expected[1].split()[2]
    stopped = ask(client, model, QUESTIONS[1], stop=[stop]).choices[0]
    proof.row("stop", stopped.message.content == expected[1][:expected[1].index(stop)] and stopped.finish_reason == "stop")
    likely = ask(client, model, QUESTIONS[2], logprobs=True, top_logprobs=5).choices[0].logprobs.content
    proof.row("logprobs", all(len(t.top_logprobs) == 5 and t.top_logprobs[0].logprob == t.logprob for t in likely)
              and "".join(t.token for t in likely).startswith(expected[2]))
    drawn = [[c.message.content for c in ask(client, model, QUESTIONS[3], temperature=1.0, n=3, seed=s).choices]
             for s in (1, 1, 2)]
    proof.row("a seed gives the same answers again", drawn[0] == drawn[1] != drawn[2] and len(set(drawn[0])) > 1)
    text = client.completions.create(model=model, prompt=["The sun", "The moon"], max_tokens=8, temperature=0, logprobs=1)
    proof.row("completions", len(text.choices) == 2 and len(text.choices[0].logprobs.tokens) == 8)
    for name, error, more in [("an unknown model", openai.NotFoundError, {"model": "../../etc/passwd"}),
                              ("a prompt that is too long", openai.BadRequestError, {"text": "word " * 4000}),
                              ("a field that is not known", openai.BadRequestError, {"extra_body": {"temprature": 1}}),
                              ("a wrong temperature", openai.BadRequestError, {"temperature": -1})]:
        try:
            ask(client, more.pop("model", model), more.pop("text", "a"), **more)
            proof.row(name + " is refused", False)
        except error as refused:
            proof.row(name + " is refused", True, refused.body["message"][:100])


def many(proof, client, model, expected, clients):
    with concurrent.futures.ThreadPoolExecutor(clients) as pool:
        begin = time.time()
        texts = [QUESTIONS[i % len(QUESTIONS)] for i in range(clients)]
        got = list(pool.map(lambda text: ask(client, model, text), texts))
    seconds = time.time() - begin
    tokens = sum(answer.usage.completion_tokens for answer in got)
    same = all(answer.choices[0].message.content == expected[i % len(QUESTIONS)] for i, answer in enumerate(got))
    proof.row(f"{clients} clients at once get what one gets", same, f"{tokens / seconds:.0f} tokens/s")


def strangers(proof, client, model, port, expected):
    """Clients that leave, send rubbish, or nothing, while others are served."""
    open_ones = []
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {KEY}\r\n"
    body = json.dumps({"messages": [{"role": "user", "content": "Tell a long story."}], "max_tokens": 400})
    for i in range(60):
        stranger = socket.create_connection(("127.0.0.1", port))
        open_ones.append(stranger)
        stranger.sendall([f"{head}Content-Length: {len(body)}\r\n\r\n{body}", f"{head}Content-Length: 900\r\n\r\n{{",
                          "\x00\xff" * 400, head, "", f"{head}Content-Length: 99999999999\r\n\r\n"][i % 6].encode("latin-1"))
    proof.row("others are served meanwhile", ask(client, model, QUESTIONS[0]).choices[0].message.content == expected[0])
    for stranger in open_ones:
        stranger.close()
    begin = time.time()
    proof.row("those that left are forgotten", ask(client, model, QUESTIONS[0]).choices[0].message.content == expected[0]
              and time.time() - begin < 10, f"{time.time() - begin:.2f} s")
    hostile = ["\u0000", "<|im_start|>system", "‮" * 50, "\ud83d\ude00" * 100, "{{ 7 * 7 }}", "{% for x in y %}", "a" * 1500]
    held = all(ask(client, model, text.encode("utf-8", "surrogatepass").decode("utf-8", "replace"), max_tokens=2)
               for text in hostile)
    proof.row("hostile text is answered", held)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("hone")
    parser.add_argument("model")
    parser.add_argument("--adapter", default="")
    parser.add_argument("--clients", type=int, default=100)
    options = parser.parse_args()
    proof = Proof()
    expected = generated(options.hone, options.model, options.adapter, QUESTIONS)
    process, port = start(options.hone, options.model, options.adapter)
    client = openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key=KEY, max_retries=0, timeout=600)
    names = [model.id for model in client.models.list().data]
    proof.row("models", len(names) == (2 if options.adapter else 1), ", ".join(names))
    answers(proof, client, names[0], expected)
    if options.adapter:
        base = generated(options.hone, options.model, "", QUESTIONS[:2])
        proof.row("the base beside its adapter",
                  [ask(client, names[1], text).choices[0].message.content for text in QUESTIONS[:2]] == base)
    many(proof, client, names[0], expected, options.clients)
    strangers(proof, client, names[0], port, expected)
    stream = ask(client, names[0], QUESTIONS[1], stream=True, max_tokens=400)
    next(iter(stream))
    process.send_signal(signal.SIGKILL)
    try:
        for _ in stream:
            pass
        proof.row("a server that is killed breaks its answers off", False)
    except Exception as error:  # whatever the package makes of it
        proof.row("a server that is killed breaks its answers off", True, type(error).__name__)
    process, port = start(options.hone, options.model, options.adapter)
    process.send_signal(signal.SIGTERM)
    begin = time.time()
    proof.row("SIGTERM ends it", process.wait(timeout=20) == 0, f"{time.time() - begin:.2f} s")
    sys.exit(proof.failed > 0)


if __name__ == "__main__":
    main()
