#!/usr/bin/env python3
"""Writes the quickstart's data: random moments, and calendar entries that say them in English or German.

    examples/quickstart/make_data.py FOLDER [SEED]

The files beside this script are those of seed 42. A tenth of all moments, by a hash of the moment, is reserved for the
tests, so that no seed trains on them.
"""
import calendar
import json
import pathlib
import sys

ENGLISH_EVENTS = """lunch, dinner, breakfast, meeting, team meeting, dentist, haircut, piano lesson, yoga, call with Anna,
lunch with Tom, train to Paris, flight to Rome, concert, exam, book club, birthday party, doctor, school play,
job interview, movie night, board meeting, football, wedding, garden party, coffee with Mia, car inspection,
vet appointment, chess club, rehearsal"""
GERMAN_EVENTS = """Mittagessen, Abendessen, Frühstück, Besprechung, Teamsitzung, Zahnarzt, Friseur, Klavierstunde, Yoga,
Anruf bei Anna, Essen mit Tom, Zug nach Paris, Flug nach Rom, Konzert, Prüfung, Lesekreis, Geburtstag, Arzttermin,
Schultheater, Vorstellung, Kinoabend, Vorstandssitzung, Fußball, Hochzeit, Gartenfest, Kaffee mit Mia, Autowerkstatt,
Tierarzt, Schachclub, Probe"""
GERMAN_MONTHS = "Januar Februar März April Mai Juni Juli August September Oktober November Dezember".split()

# {short}: the month in three letters; {th}: 3rd; {dd}, {mm}: in two digits.
ENGLISH_TAUGHT = [
    "{event} {month} {day}, {year} at {time}",
    "{event} on {month} {th}, {year} at {time}",
    "{event} at {time} on {month} {day}, {year}",
    "{event} on the {th} of {month} {year}, {time}",
    "{event}, {time}, {short} {day} {year}",
    "{event} ({month} {th} {year}, {time})",
    "{time} on the {th} of {month} {year}: {event}",
    "{month} {day} {year}, {time}, {event}",
    "{short} {th} {year} at {time} {event}",
    "on {short} {day}, {year} at {time}: {event}",
    "please schedule {event} for {short} {day} {year}, {time}",
    "remind me of {event} at {time}, {month} {day}, {year}",
    "is {event} on the {th} of {month} {year} at {time}?",
    "there is {event} at {time} on {short} {th}, {year}",
]
ENGLISH_NEW = [
    "can we move {event} to {time}, {month} {th}, {year}?",
    "don't forget: {event} ({month} {day}, {year}, {time})",
    "{event} starts at {time} sharp on {short} {day}, {year}",
    "on {month} {day} {year} we have {event} at {time}",
    "{year}, {month} the {th}, {time}: {event}",
]
GERMAN_TAUGHT = [
    "{event} am {day}. {month} {year} um {time}",
    "am {day}. {month} {year} um {time}: {event}",
    "{event}, {dd}.{mm}.{year}, {time}",
    "um {time} am {dd}.{mm}.{year} {event}",
    "{event} um {time} am {day}. {month} {year}",
    "{event} ({day}. {month} {year}, {time})",
    "bitte {event} für den {day}. {month} {year}, {time} eintragen",
    "ist am {dd}.{mm}.{year} um {time} {event}?",
    "erinnere mich an {event} um {time} am {day}. {month} {year}",
]
GERMAN_NEW = [
    "können wir {event} auf den {day}. {month} {year}, {time} verschieben?",
    "nicht vergessen: {event} ({dd}.{mm}.{year}, {time})",
    "wir haben am {day}. {month} {year} um {time} {event}",
    "{event} beginnt um {time}, und zwar am {dd}.{mm}.{year}",
]


def philox(key, counter):
    """Four random words (Philox4x32-10: Salmon, Moraes, Dror, Shaw, SC 2011)."""
    mask = 0xFFFFFFFF
    k0, k1 = key & mask, key >> 32
    c0, c1, c2, c3 = counter
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (p1 >> 32) ^ c1 ^ k0, p1 & mask, (p0 >> 32) ^ c3 ^ k1, p0 & mask
        k0, k1 = (k0 + 0x9E3779B9) & mask, (k1 + 0xBB67AE85) & mask
    return c0, c1, c2, c3


def mixed(seed, use):
    words = philox(seed, (use & 0xFFFFFFFF, use >> 32, 0x686F6E65, 0))
    return words[1] << 32 | words[0]


def words_of(key):
    position = 0
    while True:
        yield from philox(key, (position, 0, 0, 0))
        position += 1


class Random:
    def __init__(self, key):
        self.words = words_of(key)

    def below(self, bound):
        most = 2**64 - 1
        while True:
            value = next(self.words) << 32 | next(self.words)
            if value < most - most % bound:
                return value % bound

    def choice(self, values):
        return values[self.below(len(values))]


def days_in(year, month):
    return calendar.monthrange(year, month)[1]


def draw_moment(random):
    """(year, month, day, hour, minute) of 2020 to 2059; a quarter are full hours, some of them noon or midnight."""
    while True:
        year, month, day = 2020 + random.below(40), 1 + random.below(12), 1 + random.below(31)
        if day <= days_in(year, month):
            break
    hour, minute = random.below(24), random.below(60)
    if random.below(4) == 0:
        minute = 0
        if random.below(4) == 0:
            hour = 0 if random.below(2) == 0 else 12
    return year, month, day, hour, minute


def is_reserved(moment):
    year, month, day, hour, minute = moment
    minutes = (((year * 12 + month) * 32 + day) * 24 + hour) * 60 + minute
    return mixed(int.from_bytes(b"calendar", "big"), minutes) % 10 == 0


def ordinal(day):
    return f"{day}" + ("th" if 11 <= day <= 13 else {1: "st", 2: "nd", 3: "rd"}.get(day % 10, "th"))


def english_time(hour, minute, random):
    style = random.below(4)
    if style == 0:
        return f"{hour:02}:{minute:02}"
    if minute == 0 and style == 1 and hour in (0, 12):
        return "noon" if hour == 12 else "midnight"
    half, twelve = "am" if hour < 12 else "pm", hour % 12 or 12
    return f"{twelve} {half}" if minute == 0 and style <= 2 else f"{twelve}:{minute:02} {half}"


def german_time(hour, minute, random):
    style = random.below(3)
    if minute == 0 and hour == 0 and style == 0:
        return "Mitternacht"
    if minute == 0 and style != 1:
        return f"{hour} Uhr"
    return f"{hour} Uhr {minute}" if style == 2 else f"{hour}{'.' if style == 0 else ':'}{minute:02} Uhr"


def sentence(moment, german, new, random):
    year, month, day, hour, minute = moment
    patterns = (GERMAN_NEW if new else GERMAN_TAUGHT) if german else (ENGLISH_NEW if new else ENGLISH_TAUGHT)
    pattern = random.choice(patterns)
    event = random.choice([e.strip() for e in (GERMAN_EVENTS if german else ENGLISH_EVENTS).split(",")])
    name = GERMAN_MONTHS[month - 1] if german else calendar.month_name[month]
    time = (german_time if german else english_time)(hour, minute, random)
    return pattern.format(event=event, month=name, short=name[:3], day=day, th=ordinal(day), dd=f"{day:02}",
                          mm=f"{month:02}", year=year, time=time)


def examples(seed, german, new, reserved, count):
    """Rows of distinct moments."""
    random = Random(mixed(seed, german + 2 * new + 4 * reserved))
    seen = set()
    while len(seen) < count:
        moment = draw_moment(random)
        if is_reserved(moment) != reserved or moment in seen:
            continue
        seen.add(moment)
        yield {"prompt": sentence(moment, german, new, random),
               "response": "{:04}-{:02}-{:02}T{:02}:{:02}".format(*moment)}


def main():
    folder = pathlib.Path(sys.argv[1])
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else 42
    folder.mkdir(parents=True, exist_ok=True)
    for language, german, count in (("english", False, 40_000), ("german", True, 14_000)):
        for kind, new, reserved, rows in (("train", False, False, count), ("test", False, True, 300),
                                          ("new_wordings", True, True, 200)):
            lines = (json.dumps(row, ensure_ascii=False, separators=(",", ":")) + "\n"
                     for row in examples(seed, german, new, reserved, rows))
            (folder / f"{language}_{kind}.jsonl").write_text("".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
