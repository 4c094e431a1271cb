#!/usr/bin/env python3
"""How often micro-batches of packed documents are queued from a CUDA graph: a simulation of the packer
(src/data/packing.cpp), of the sizes that launches see (src/train/step/device_batch.cpp) and of the cache of graphs
(src/core/stream/graph_cache.h), over two epochs of documents whose lengths have a log-normal distribution and whose supervised
share has a beta distribution with mean 5/8. Prints one JSON object a line."""
import bisect
import json
import math
import random
from collections import OrderedDict

DOCUMENTS, EPOCHS, WINDOW, MOST_KEYS, MOST_GRAPHS = 20000, 2, 4096, 64, 16


def pack(lengths, capacity, most_documents):
    packs = []
    for begin in range(0, len(lengths), WINDOW):
        window, room = [], []  # room: (free tokens, pack)
        order = range(begin, min(begin + WINDOW, len(lengths)))
        for i in sorted(order, key=lambda i: -lengths[i]):
            fit = bisect.bisect_left(room, (lengths[i], 0))
            free, place = room.pop(fit) if fit < len(room) else (capacity, len(window))
            if place == len(window):
                window.append([])
            window[place].append(i)
            if len(window[place]) < most_documents:
                bisect.insort(room, (free - lengths[i], place))
        packs += window
    random.shuffle(packs)
    return packs


def replayed(keys):
    """The share of the keys that a graph is there for."""
    seen, hits = OrderedDict(), 0  # key -> whether it has a graph; used last comes last
    for key in keys:
        known = key in seen
        hits += seen.pop(key, False)
        seen[key] = known
        graphs = [k for k, has_graph in seen.items() if has_graph]
        if len(graphs) > MOST_GRAPHS:
            del seen[graphs[0]]
        if len(seen) > MOST_KEYS:
            seen.popitem(last=False)
    return hits / len(keys)


def power_of_two_from(value):
    return 1 << (max(value, 1) - 1).bit_length()


def simulate(median, sigma, capacity):
    random.seed(1)
    lengths = [min(capacity, max(8, int(random.lognormvariate(math.log(median), sigma)))) for _ in range(DOCUMENTS)]
    supervised = [min(n - 1, max(1, int(n * random.betavariate(5, 3)))) for n in lengths]
    exact = []
    for _ in range(EPOCHS):
        order = list(range(DOCUMENTS))
        random.shuffle(order)
        for members in pack([lengths[i] for i in order], capacity, capacity // min(lengths) + 1):
            documents = [order[i] for i in members]
            exact.append((sum(lengths[i] for i in documents), len(documents), sum(supervised[i] for i in documents),
                          max(lengths[i] for i in documents)))
    step = max(128, power_of_two_from(capacity) // 16)
    rounded = [(t, power_of_two_from(d), -(-s // step), power_of_two_from(m)) for t, d, s, m in exact]
    return {"median": median, "sigma": sigma, "capacity": capacity, "packs": len(exact),
            "full": round(sum(t == capacity for t, *_ in exact) / len(exact), 3),
            "replayed_exact": round(replayed(exact), 3), "replayed_rounded": round(replayed(rounded), 3)}


if __name__ == "__main__":
    for median, sigma in ((90, 0.7), (400, 0.8), (1500, 0.9)):
        for capacity in (4096, 16384):
            print(json.dumps(simulate(median, sigma, capacity)))
