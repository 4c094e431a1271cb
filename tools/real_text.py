"""Instruction text from a seed: chats in several formats whose answers can be checked, and prose where Debian's files are.

A row is {"messages": [...], "kind": KIND}; its last message is the answer. Rows of one seed have no prompt of another part:
`split` gives training rows and held-out rows.
"""
import datetime
import pathlib
import random
import re

NAMES = "Ada Ben Cleo Dan Eva Finn Gina Hugo Ida Jon Kim Leo Mia Ned Ola Pia Rob Sue Tom Uma".split()
CITIES = "Bern Oslo Lima Cairo Delhi Quito Rome Seoul Turin Perth Accra Paris".split()
THINGS = "apples pens books coins stamps cards shells marbles tickets candles".split()
PLACES = [("shop", "buys"), ("market", "buys"), ("garden", "finds"), ("school", "gets")]
PROSE = ("/usr/share/common-licenses/GPL-3", "/usr/share/common-licenses/Apache-2.0", "/usr/share/common-licenses/MPL-2.0",
         "/usr/share/common-licenses/GFDL-1.3", "/usr/share/common-licenses/Artistic")


def chat(kind, user, answer, system=None):
    start = [{"role": "system", "content": system}] if system else []
    return {"messages": [*start, {"role": "user", "content": user}, {"role": "assistant", "content": answer}], "kind": kind}


def arithmetic(draw):
    a, b = draw.randint(2, 99), draw.randint(2, 99)
    sign, value = draw.choice([("+", a + b), ("-", a - b), ("*", a * b)])
    return chat("arithmetic", draw.choice(["What is {} {} {}?", "Compute {} {} {}."]).format(a, sign, b), str(value))


def dates(draw):
    day = datetime.date(1980, 1, 1) + datetime.timedelta(draw.randint(0, 20000))
    written = draw.choice([f"{day:%B} {day.day}, {day.year}", f"{day.day} {day:%B} {day.year}", f"{day:%A}, {day.day} {day:%b} {day.year}"])
    return chat("dates", f"Write the date {written} as year-month-day.", day.isoformat())


def extraction(draw):
    name, city, age = draw.choice(NAMES), draw.choice(CITIES), draw.randint(18, 90)
    text = draw.choice(["{n}, {a} years old, lives in {c}.", "In {c} I met {n}, who is {a}.", "{n} moved to {c} at the age of {a}."])
    return chat("extraction", text.format(n=name, a=age, c=city), f'{{"name": "{name}", "age": {age}, "city": "{city}"}}',
                "Answer with a JSON object of name, age and city.")


def problem(draw):
    name, thing, (place, verb) = draw.choice(NAMES), draw.choice(THINGS), draw.choice(PLACES)
    first, packs, each = draw.randint(2, 30), draw.randint(2, 9), draw.randint(2, 12)
    question = f"{name} has {first} {thing}. At the {place} {name} {verb} {packs} bags with {each} {thing} in each. How many {thing} does {name} have now?"
    answer = (f"The bags hold {packs} * {each} = {packs * each} {thing}.\n"
              f"With the first ones that makes {first} + {packs * each} = {first + packs * each}.\n#### {first + packs * each}")
    return chat("problem", question, answer)


def dialogue(draw):
    """Two turns, of which both answers are learnt."""
    first, second = arithmetic(draw), dates(draw)
    return {"messages": first["messages"] + second["messages"], "kind": "dialogue"}


KINDS = (arithmetic, dates, extraction, problem, dialogue)
# What a small model learns in few steps: answers that are in the question, in another form.
LEARNABLE = (dates, extraction)


def rows(seed, count, kinds=KINDS, without=()):
    """`count` rows without a repeated prompt, nor one of `without`."""
    draw, seen, result = random.Random(seed), {prompt_of(row) for row in without}, []
    while len(result) < count:
        row = kinds[len(result) % len(kinds)](draw)
        if prompt_of(row) not in seen:
            seen.add(prompt_of(row))
            result.append(row)
    return result


def split(seed, train, held_out, kinds=KINDS):
    training = rows(seed, train, kinds)
    return training, rows(seed + 1, held_out, kinds, training)


def prompt_of(row):
    return str(row["messages"][:-1])


def answer_of(row):
    return row["messages"][-1]["content"]


def is_answered(row, text):
    """Exact match; of a word problem that of the number behind ####."""
    if row["kind"] == "problem":
        return re.findall(r"#### (-?\d+)", text)[-1:] == re.findall(r"#### (-?\d+)", answer_of(row))
    return text.strip() == answer_of(row)


def prose(characters):
    """Pieces of English text from this system, [] where it has none."""
    pieces = []
    for path in map(pathlib.Path, PROSE):
        if path.exists():
            text = re.sub(r"[ \t]+", " ", path.read_text(errors="ignore"))
            pieces += [piece.strip() for piece in re.split(r"\n\s*\n", text) if len(piece.strip()) > 200]
    chosen, size = [], 0
    for piece in pieces:
        if size >= characters:
            break
        chosen.append(piece)
        size += len(piece)
    return chosen
