#!/usr/bin/env python3
"""Writes Parquet files of random columns with pyarrow, and compares their rows with those that Hone reads.

    tools/check_parquet.py PROGRAM [--files N] [--seed S] [--before PROGRAM] [--keep FOLDER]

PROGRAM is build/hone_parquet_rows, which prints the rows of a file as JSON. Each file has other columns (types, nesting,
nulls), encodings, codecs, versions of pages, sizes of pages and row groups, with and without Arrow's own schema. Rows are
compared with pyarrow's as docs/data.md says that they become JSON: maps are objects, dates, times and decimals texts,
bytes null, and null members of structs are left out. --before names an older program, whose rows must have the same bytes.
Exit code 1 if a file differs, 77 if pyarrow is missing.
"""
import argparse
import datetime
import decimal
import json
import math
import pathlib
import random
import subprocess
import sys
import tempfile

try:
    import pyarrow as pa
    import pyarrow.parquet as pq
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

CODECS = ["none", "snappy", "gzip", "brotli", "zstd", "lz4"]
WORDS = ["", "a", "Paris", "Élan ✓", "漢字かな", "😀", "line\nbreak", "\"quoted\"", "back\\slash", "\x00\x1f\x7f", "x" * 300,
         "tab\t\r\b\f", "the same beginning of a text", "the same beginning of another"]
ENCODINGS = {
    "int": ["PLAIN", "DELTA_BINARY_PACKED", "BYTE_STREAM_SPLIT", None],
    "float": ["PLAIN", "BYTE_STREAM_SPLIT", None],
    "text": ["PLAIN", "DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY", None],
    "fixed": ["PLAIN", "DELTA_BYTE_ARRAY", "BYTE_STREAM_SPLIT", None],
    "bool": ["PLAIN", "RLE", None],
    "other": [None],
}


def whole(bits, signed):
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    return lambda r: r.choice([low, high, 0, 1, r.randint(low, high), r.randint(max(low, -100), min(high, 100))])


def number(r):
    return r.choice([0.0, -0.0, 1.5, 0.1, 1e20, 1e-20, math.nan, math.inf, -math.inf, r.gauss(0, 1), r.uniform(-1e9, 1e9)])


def text(r):
    return r.choice(WORDS) if r.random() < 0.7 else "".join(chr(r.choice([65, 97, 0xe9, 0x4e00, 0x1f600]) + r.randint(0, 20))
                                                           for _ in range(r.randint(0, 40)))


def octets(length=None):
    return lambda r: r.randbytes(r.randint(0, 20) if length is None else length)


def decimal_of(precision, scale):
    def make(r):
        digits = r.randint(1, precision)
        return decimal.Decimal(r.choice([0, 1, -1, r.randint(-10**digits + 1, 10**digits - 1)])).scaleb(
            -scale, decimal.Context(prec=80))
    return make


def instant(unit):
    """Timestamps of any year; where `r.int96` is set, of those that pyarrow reads back from 96 bits as they are."""
    most = {"ms": 2**42, "us": 2**52, "ns": 2**62}
    return lambda r: r.randint(-most[unit], most[unit]) if r.int96 else r.randint(-2**58, 2**58) >> r.randint(0, 30)


def leaves():
    """(type, how to make a value, kind of its encodings)"""
    found = [(pa.bool_(), lambda r: r.random() < 0.5, "bool"), (pa.string(), text, "text"), (pa.large_string(), text, "text"),
             (pa.string_view(), text, "text"), (pa.binary(), octets(), "text"), (pa.binary(7), octets(7), "fixed"),
             (pa.float32(), number, "float"), (pa.float64(), number, "float"),
             (pa.float16(), lambda r: r.choice([0.0, 1.5, -2.0, 65504.0, 6e-8, 1e-5, 3.1e-5, 0.1, math.nan, math.inf, r.uniform(-9, 9)]),
              "fixed"),
             (pa.date32(), lambda r: r.randint(-800000, 3000000), "int"), (pa.null(), lambda r: None, "other")]
    for bits in (8, 16, 32, 64):
        found.append((getattr(pa, f"int{bits}")(), whole(bits, True), "int"))
        found.append((getattr(pa, f"uint{bits}")(), whole(bits, False), "int"))
    for unit in ("ms", "us", "ns"):
        for zone in (None, "UTC", "Europe/Paris"):
            found.append((pa.timestamp(unit, zone), instant(unit), "int"))
        found.append((pa.duration(unit), whole(64, True), "int"))
    found.append((pa.time32("ms"), lambda r: r.randint(0, 86399999), "int"))
    found.append((pa.time64("us"), lambda r: r.randint(0, 86399999999), "int"))
    found.append((pa.time64("ns"), lambda r: r.randint(0, 86399999999999), "int"))
    for precision, scale in ((5, 2), (9, 9), (18, 4), (38, 10), (38, 0), (76, 30)):
        found.append((pa.decimal128(precision, scale) if precision <= 38 else pa.decimal256(precision, scale),
                      decimal_of(precision, scale), "fixed"))
    found.append((pa.dictionary(pa.int32(), pa.string()), text, "other"))
    return found


LEAVES = leaves()
KEYS = [leaf for leaf in LEAVES if str(leaf[0]) in ("string", "int32", "bool", "date32[day]", "uint64", "timestamp[us]")]
# Python writes some doubles with a digit less than JSON does, which keys, being text, would show.
KEYS.append((pa.float64(), lambda r: r.choice([0.0, 1.5, 0.1, 1e20, 1e-20]), "float"))


class Column:
    """A random type; `make` makes a value, `json` what it becomes."""

    def __init__(self, r, depth, nullable=True):
        self.nulls = r.choice([0, 0, 0.1, 0.5, 1.0]) if nullable else 0
        self.nullable = nullable
        self.shape = r.choices(["leaf", "struct", "list", "map", "fixed"], [5, 2, 3, 1, 0.4] if depth > 0 else [1, 0, 0, 0, 0])[0]
        self.parts = []
        if self.shape == "leaf":
            self.type, self.value, self.kind = r.choice(LEAVES)
            if pa.types.is_null(self.type):
                self.nullable = True
        elif self.shape == "struct":
            self.names = r.sample(["role", "content", "weight", "a b", "é", "\"q\""], r.randint(1, 4))
            self.parts = [Column(r, depth - 1, r.random() < 0.8) for _ in self.names]
            self.type = pa.struct([part.field(name) for name, part in zip(self.names, self.parts)])
        elif self.shape == "map":
            key = Column(r, 0, False)
            key.type, key.value, key.kind = r.choice(KEYS)
            key.nullable = False
            self.parts = [key, Column(r, depth - 1, r.random() < 0.8)]
            self.type = pa.map_(key.field("key"), self.parts[1].field("value"))
        else:
            self.parts = [Column(r, depth - 1, r.random() < 0.8)]
            item = self.parts[0].field("element")
            self.length = r.randint(1, 3)
            self.most = r.choice([0, 1, 3, 20])
            self.type = pa.list_(item, self.length) if self.shape == "fixed" else r.choice([pa.list_, pa.large_list])(item)

    def field(self, name):
        return pa.field(name, self.type, nullable=self.nullable)

    def make(self, r):
        if self.nullable and r.random() < self.nulls:
            return None
        if self.shape == "leaf":
            return self.value(r)
        if self.shape == "struct":
            return {name: part.make(r) for name, part in zip(self.names, self.parts)}
        if self.shape == "map":
            return [(self.parts[0].make(r), self.parts[1].make(r)) for _ in range(r.randint(0, 3))]
        return [self.parts[0].make(r) for _ in range(self.length if self.shape == "fixed" else r.randint(0, self.most))]

    def encodings(self, r, path, into):
        if self.shape == "leaf":
            kind = "fixed" if pa.types.is_fixed_size_binary(self.type) or pa.types.is_float16(self.type) else self.kind
            if pa.types.is_decimal(self.type) and self.type.precision > 18:
                kind = "fixed"
            elif pa.types.is_decimal(self.type):
                kind = "other"
            into[path] = r.choice(ENCODINGS[kind])
        elif self.shape == "struct":
            for name, part in zip(self.names, self.parts):
                part.encodings(r, f"{path}.{name}", into)
        elif self.shape == "map":
            self.parts[0].encodings(r, f"{path}.key_value.key", into)
            self.parts[1].encodings(r, f"{path}.key_value.value", into)
        else:
            self.parts[0].encodings(r, f"{path}.list.element", into)


def date_text(days):
    """Of the proleptic Gregorian calendar, which Python's own dates have from year 1 to 9999 alone."""
    shift = 0
    while days < -719162:
        days, shift = days + 146097, shift - 400
    while days > 2932896:
        days, shift = days - 146097, shift + 400
    date = datetime.date(1970, 1, 1) + datetime.timedelta(days)
    year = date.year + shift
    return f"{'-' if year < 0 else ''}{abs(year):04}-{date.month:02}-{date.day:02}"


LAST_DAY = {True: -12687428, False: 11248737}  # of the years -32767 and 32767


def in_range(days):
    return LAST_DAY[True] <= days <= LAST_DAY[False]


def clock_text(units, per_second):
    seconds, rest = divmod(units, per_second)
    text = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    return text + ("" if per_second == 1 else f".{rest:0{len(str(per_second)) - 1}}")


def decimal_text(value, scale):
    sign, digits, exponent = value.as_tuple()
    digits = "".join(map(str, digits)).lstrip("0") + "0" * (exponent + scale) or "0"
    point = len(digits) - 1 - scale
    if scale and point < -6:
        text = digits[0] + ("." + digits[1:] if len(digits) > 1 else "") + f"E{point}"
    elif scale:
        digits = digits.rjust(scale + 1, "0")
        text = digits[:-scale] + "." + digits[-scale:]
    else:
        text = digits
    return ("-" if sign and digits.strip("0") else "") + text


PER_SECOND = {"s": 1, "ms": 1000, "us": 10**6, "ns": 10**9}


def as_json(value, type, stored):
    """What a pyarrow scalar becomes."""
    if not value.is_valid:
        return None
    kind = pa.types
    if kind.is_struct(type):
        pairs = [(field.name, as_json(value[i], field.type, stored), value[i]) for i, field in enumerate(type)]
        return {name: item for name, item, part in pairs if item is not None or is_number_null(part)}
    if kind.is_map(type):
        found = {}
        for pair in value.values if value.values is not None else []:
            key, item = as_json(pair[0], type.key_type, stored), as_json(pair[1], type.item_type, stored)
            found[key if isinstance(key, str) else dump(key)] = item
        return found
    if kind.is_list(type) or kind.is_large_list(type) or kind.is_fixed_size_list(type):
        return [as_json(item, type.value_type, stored) for item in value.values]
    if kind.is_dictionary(type):
        return value.as_py()
    if kind.is_binary(type) or kind.is_fixed_size_binary(type):
        return None
    if kind.is_decimal(type):
        return decimal_text(value.as_py(), type.scale)
    if kind.is_date(type):
        return date_text(value.value)
    if kind.is_time(type):
        return clock_text(value.value, PER_SECOND[type.unit])
    if kind.is_timestamp(type):
        per_second = PER_SECOND[type.unit]
        days, units = divmod(value.value, 86400 * per_second)
        if not in_range(days):
            return f"<value out of range: {value.value}>"
        return f"{date_text(days)} {clock_text(units, per_second)}{'Z' if type.tz else ''}"
    if kind.is_duration(type):
        return str(value.value) if stored else value.value
    if kind.is_float16(type):
        return half_text(float(value.as_py()))
    if kind.is_floating(type):
        number = value.as_py()
        return number if math.isfinite(number) else None
    return value.as_py()


def is_number_null(value):
    """NaN and infinities become null, but are no nulls of Parquet: members keep them."""
    return value.is_valid and pa.types.is_floating(value.type) and not pa.types.is_float16(value.type)


def half_text(number):
    if not math.isfinite(number):
        return "nan" if math.isnan(number) else "inf" if number > 0 else "-inf"
    if number and abs(number) < 1e-5:
        mantissa, exponent = repr(number).split("e") if "e" in repr(number) else f"{number:e}".split("e")
        return f"{mantissa}e{int(exponent)}"
    text = format(decimal.Decimal(repr(number)), "f")
    return text[:-2] if text.endswith(".0") else text


def dump(value):
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def random_file(r, path):
    """Writes a file; returns what its rows are and how it was written."""
    r.int96 = r.random() < 0.1
    columns = {f"c{i}": Column(r, r.randint(0, 3), r.random() < 0.8) for i in range(r.randint(1, 5))}
    rows = r.choice([0, 1, 2, 7, 100, 1000, 3000])
    fields = [column.field(name) for name, column in columns.items()]
    arrays = [pa.array([column.make(r) for _ in range(rows)], column.type) for column in columns.values()]
    table = pa.table(arrays, schema=pa.schema(fields))
    encodings = {}
    for name, column in columns.items():
        column.encodings(r, name, encodings)
    dictionary = [path for path in encodings if encodings[path] is None and r.random() < 0.7]
    options = {
        "compression": r.choice(CODECS), "data_page_version": r.choice(["1.0", "2.0"]), "use_dictionary": dictionary or False,
        "row_group_size": r.choice([1, 3, 50, 700, 10000]) if rows < 200 else r.choice([50, 700, 10000]),
        "data_page_size": r.choice([1, 100, 1 << 20]), "dictionary_pagesize_limit": r.choice([20, 1 << 20]),
        "write_batch_size": r.choice([1, 10, 1024]), "store_schema": r.random() < 0.5, "write_page_checksum": r.random() < 0.3,
        "version": r.choice(["1.0", "2.4", "2.6"]), "column_encoding": {k: v for k, v in encodings.items() if v} or None,
        "use_compliant_nested_type": True, "use_deprecated_int96_timestamps": r.int96,
        "store_decimal_as_integer": r.random() < 0.5,
    }
    if options["version"] == "1.0":
        options["coerce_timestamps"], options["allow_truncated_timestamps"] = "us", True
    pq.write_table(table, path, **options)
    return options


def expected_rows(path, options):
    table = pq.ParquetFile(path).read()
    stored = options["store_schema"]
    for batch in table.to_batches(max_chunksize=1000):
        for row in range(batch.num_rows):
            yield {name: as_json(batch.column(i)[row], batch.schema.field(i).type, stored)
                   for i, name in enumerate(batch.schema.names)}


def same(a, b):
    if isinstance(a, float) and isinstance(b, float):
        return a == b and math.copysign(1, a) == math.copysign(1, b)
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


def run(program, path):
    result = subprocess.run([program, str(path)], capture_output=True)
    return result.returncode, result.stdout, result.stderr.decode(errors="replace").strip()


def compare(program, before, path, options):
    """What differs, or nothing; None if pyarrow cannot read what it wrote, or reads fewer rows."""
    try:
        expected = list(expected_rows(path, options))
    except (pa.ArrowException, OSError):
        return None
    if len(expected) != pq.ParquetFile(path).metadata.num_rows:
        return None
    code, out, error = run(program, path)
    problem = error if code else difference(out, expected)
    if not before:
        return problem
    old_code, old, old_error = run(before, path)
    if (old_code, old) == (code, out):
        return problem
    lines = zip(old.decode(errors="replace").splitlines(), out.decode(errors="replace").splitlines())
    first = next((f"\n  before {a[:2000]}\n  now    {b[:2000]}" for a, b in lines if a != b),
                 f"{old.count(10)} and {out.count(10)} rows {old_error}")
    return f"not as before{'' if problem else ', but as pyarrow reads it'}: {first}"


def difference(out, expected):
    found = [json.loads(line) for line in out.decode().split("\n") if line]
    if len(found) != len(expected):
        return f"{len(found)} rows, {len(expected)} expected"
    for i, (ours, theirs) in enumerate(zip(found, expected)):
        if not same(ours, theirs):
            return f"row {i + 1}\n  expected {dump(theirs)[:2000]}\n  found    {dump(ours)[:2000]}"
    return ""


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--files", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--before")
    parser.add_argument("--keep", help="folder for the files that differ")
    options = parser.parse_args()
    different = refused = 0
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "rows.parquet"
        for seed in range(options.seed, options.seed + options.files):
            try:
                written = random_file(random.Random(seed), path)
            except (pa.ArrowException, OSError) as error:  # what pyarrow cannot write
                refused += 1
                print(f"seed {seed} was not written: {str(error)[:150]}")
                continue
            problem = compare(options.program, options.before, path, written)
            if problem is None:
                refused += 1
            elif problem:
                different += 1
                print(f"seed {seed}: {problem}\n  {written}")
                if options.keep:
                    (pathlib.Path(options.keep) / f"{seed}.parquet").write_bytes(path.read_bytes())
    print(f"{options.files - refused} files compared, {different} different")
    sys.exit(1 if different else 0)


if __name__ == "__main__":
    main()
