#!/usr/bin/env python3
"""Tokens a second of a running server with OpenAI's API that gets many requests at once: hone serve, llama-server, vLLM.

  hone serve --model MODEL --batch-size 64 --max-length 768 &
  bench/serve.py --model MODEL --requests 64 --prompt 512 --new 256 --transformers MODEL

Every prompt has --prompt random token ids, every answer the --new most probable ones, whatever they are (ignore_eos).
A round is timed from its first request to its last answer, prompts included, after a round that warms up; each round
has prompts of its own, so that none is in a cache. --transformers MODEL gives the same prompts to transformers'
generate, a round as one batch, in bfloat16 on a GPU, else in --dtype; --rounds counts for both. --no-server leaves the
server out, where one device does not hold both. Prints a line of JSON for each side: tokens of all answers a second.
"""
import argparse
import http.client
import json
import pathlib
import random
import statistics
import threading
import time
import urllib.parse


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--url", default="http://127.0.0.1:8000/v1")
    p.add_argument("--model", required=True, help="the folder that is served: its config.json has the vocabulary")
    p.add_argument("--names", default="", help="names of served models, among which requests take turns: A,B")
    p.add_argument("--requests", type=int, default=8)
    p.add_argument("--prompt", type=int, default=128, help="tokens")
    p.add_argument("--new", type=int, default=128, help="tokens")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--no-server", action="store_true")
    p.add_argument("--transformers", default="", metavar="MODEL")
    p.add_argument("--dtype", default="float32", help="of transformers on a CPU")
    p.add_argument("--threads", type=int, default=0, help="of transformers on a CPU")
    return p.parse_args()


def prompts_of(a, number):
    config = json.loads((pathlib.Path(a.model) / "config.json").read_text())
    vocabulary = config.get("text_config", config)["vocab_size"]
    draw = random.Random(f"{a.seed} {number}")
    return [[draw.randrange(vocabulary) for _ in range(a.prompt)] for _ in range(a.requests)]


def ask(a, prompt, name):
    """The number of tokens of the answer."""
    url = urllib.parse.urlsplit(a.url)
    connection = http.client.HTTPConnection(url.hostname, url.port, timeout=3600)
    body = {"prompt": prompt, "max_tokens": a.new, "temperature": 0, "ignore_eos": True}
    if name:
        body["model"] = name
    connection.request("POST", url.path + "/completions", json.dumps(body), {"Content-Type": "application/json"})
    reply = connection.getresponse()
    text = reply.read()
    if reply.status != 200:
        raise RuntimeError(f"{a.url} answers {reply.status}: {text.decode(errors='replace')[:500]}")
    usage = json.loads(text)["usage"]
    if (usage["prompt_tokens"], usage["completion_tokens"]) != (a.prompt, a.new):
        raise RuntimeError(f"{a.url} counts {usage}, not {a.prompt} and {a.new} tokens")


def server_round(a, prompts):
    names, errors = a.names.split(","), []

    def work(i):
        try:
            ask(a, prompts[i], names[i % len(names)])
        except Exception as error:  # told by the main thread
            errors.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(prompts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise SystemExit(str(errors[0]))


def transformers_round(a):
    import torch
    import transformers
    if a.threads:
        torch.set_num_threads(a.threads)
    gpu = torch.cuda.is_available()
    model = transformers.AutoModelForCausalLM.from_pretrained(
        a.transformers, dtype=torch.bfloat16 if gpu else getattr(torch, a.dtype),
        device_map="cuda" if gpu else "cpu").eval()
    model.generation_config = transformers.GenerationConfig(do_sample=False, eos_token_id=None, pad_token_id=0)

    def run(a, prompts):
        ids = torch.tensor(prompts, device=model.device)
        with torch.inference_mode():
            out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=a.new)
        if out.shape != (len(prompts), a.prompt + a.new):
            raise SystemExit(f"transformers' answers are {tuple(out.shape)}")
        if gpu:
            torch.cuda.synchronize()

    return run


def measure(a, side, run):
    seconds = []
    for number in range(a.rounds + 1):
        prompts = prompts_of(a, number)
        begin = time.perf_counter()
        run(a, prompts)
        seconds.append(time.perf_counter() - begin)
    rates = [a.requests * a.new / s for s in seconds[1:]]
    print(json.dumps({"side": side, "requests": a.requests, "prompt": a.prompt, "new": a.new,
                      "tokens_per_s": round(statistics.median(rates), 1), "rounds": [round(r, 1) for r in rates]}),
          flush=True)
    return statistics.median(rates)


def main():
    a = arguments()
    rates = []
    if not a.no_server:
        rates.append(measure(a, "server", server_round))
    if a.transformers:
        rates.append(measure(a, "transformers", transformers_round(a)))
    if len(rates) == 2:
        print(json.dumps({"server_over_transformers": round(rates[0] / rates[1], 3)}))


if __name__ == "__main__":
    main()
