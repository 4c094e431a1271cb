#!/usr/bin/env python3
"""Writes what Python's jinja2 makes of the templates in tests/fixtures/templates, for the tests of src/text/jinja.

    python3 tools/make_template_fixtures.py        (needs jinja2 3.1)

The environment is set up as transformers sets it up for chat templates. Outputs: renderings.json (each template over
conversations) and expressions.json (small templates; {"error": true} where Python refuses).
"""
import datetime
import json
import pathlib

import jinja2
import jinja2.ext
import jinja2.nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment

FOLDER = pathlib.Path(__file__).resolve().parent.parent / "tests" / "fixtures" / "templates"
NOW = datetime.datetime(2031, 3, 3, 14, 45)


class Generation(jinja2.ext.Extension):
    """{% generation %} ... {% endgeneration %}: a block whose text is passed through."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_pass"), [], [], body).set_lineno(line)

    def _pass(self, caller):
        return caller()


def environment():
    env = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda form: NOW.strftime(form)
    return env


WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Weather of a city",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "Name, e.g. \"Zürich\""},
                "unit": {"type": "string", "enum": ["C", "F"], "default": "C"},
                "days": {"type": "array", "items": {"type": "integer"}},
                "exact": {"type": ["boolean", "null"]},
            },
            "required": ["city"],
        },
    },
}
CLOCK = {"type": "function", "function": {"name": "clock", "description": "The time", "parameters": {}}}


def call(name, arguments, number=1):
    return {"id": f"call{number:05d}", "type": "function", "function": {"name": name, "arguments": arguments}}


def u(text):
    return {"role": "user", "content": text}


def a(text, **more):
    return {"role": "assistant", "content": text, **more}


def s(text):
    return {"role": "system", "content": text}


CONVERSATIONS = {
    "question": [u("What is 2 + 2?")],
    "turns": [u("Hi"), a("Hello!"), u("  Tell me\nmore  "), a("\nIt's {{ not }} a {% template %}.\n")],
    "system": [s("Be brief."), u("Größe von 東京?"), a("Groß 🗼."), u("<b>\"quoted\" & 'so'</b>")],
    "reasoning": [
        s("Think."),
        u("1+1?"),
        a("2", reasoning_content="One and one."),
        u("2+2?"),
        a("4", reasoning_content="\nTwo and two.\n"),
    ],
    "inline_thoughts": [
        u("1+1?"),
        a("<think>\nOne and one.\n</think>\n\n2"),
        u("2+2?"),
        a("<think>\nTwo\nand two.\n</think>\n\n4"),
    ],
    "call": [
        u("Weather in Zürich?"),
        a("", tool_calls=[call("weather", {"city": "Zürich \"ZH\"", "days": [1, 2], "exact": None, "f": 1.5})]),
        {"role": "tool", "name": "weather", "content": "{\"temp\": 21.5}", "tool_call_id": "call00001"},
        a("It is 21.5 °C."),
        u("Thanks"),
    ],
    "two_calls": [
        s("Use tools."),
        u("Time and weather?"),
        a(
            "Let me look.",
            reasoning_content="Both.",
            tool_calls=[call("clock", {}, 1), call("weather", {"city": "Oslo\n"}, 2)],
        ),
        {"role": "tool", "name": "clock", "content": "14:45", "tool_call_id": "call00001"},
        {"role": "tool", "name": "weather", "content": "rain", "tool_call_id": "call00002"},
        a("Rain at 14:45.", reasoning_content="Done."),
    ],
    "parts": [
        {"role": "system", "content": [{"type": "text", "text": "Look."}]},
        {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": " What is it? "}]},
        {"role": "assistant", "content": [{"type": "text", "text": "A cat."}]},
    ],
    "nothing": [u("Go"), {"role": "assistant", "content": None, "tool_calls": [call("clock", {"zone": "UTC"})]}],
    "empty_answer": [u(""), a("")],
    "wrong_order": [u("one"), u("two")],
    "none": [],
}

TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
VARIANTS = [
    {},
    {"add_generation_prompt": True},
    {"tools": [WEATHER, CLOCK]},
    {"add_generation_prompt": True, "variables": {"enable_thinking": False}},
    {"documents": [{"title": "a tale of two", "text": "It was."}, {"text": "No title"}], "add_generation_prompt": True},
]


class Arguments(dict):
    """A call's arguments: an object that is its JSON where a template reads a text."""

    def __str__(self):
        return json.dumps(self, ensure_ascii=False)

    def __add__(self, text):
        return str(self) + text

    def __radd__(self, text):
        return text + str(self)


def without_nulls(value, key=None):
    """What Hone hands to a template: members that are null are left out, but for the content of a message."""
    value = parsed(value) if key == "arguments" else value
    if isinstance(value, list):
        return [without_nulls(item) for item in value]
    if not isinstance(value, dict):
        return value
    kept = {k: without_nulls(v, k) for k, v in value.items() if v is not None or k == "content"}
    return Arguments(kept) if key == "arguments" else kept


def parsed(arguments):
    """The object of a call's arguments, which may be its JSON; other texts stay."""
    try:
        return json.loads(arguments) if isinstance(arguments, str) and arguments.startswith("{") else arguments
    except ValueError:
        return arguments


def rendered(template, context):
    """The text; where a missing content is written as a word or refused, that of an empty one."""
    context["messages"] = without_nulls(context["messages"])
    try:
        text = template.render(**context)
        if "None" not in text:
            return text
    except Exception:
        if all(message.get("content", "") is not None for message in context["messages"]):
            raise
    context["messages"] = [
        {**message, "content": ""} if message.get("content", "") is None else message for message in context["messages"]
    ]
    return template.render(**context)


def renderings(env):
    cases = []
    for path in sorted(FOLDER.glob("*.jinja")):
        template = env.from_string(path.read_text(encoding="utf-8"))
        for index, (name, messages) in enumerate(CONVERSATIONS.items()):
            for variant in (VARIANTS[0], VARIANTS[1 + index % 4]):
                context = {"messages": messages, "tools": None, "documents": None, "add_generation_prompt": False}
                context.update({k: v for k, v in variant.items() if k != "variables"})
                context.update(TOKENS)
                context.update(variant.get("variables", {}))
                case = {"template": path.name, "conversation": name, "variant": variant}
                try:
                    case["expected"] = rendered(template, context)
                except Exception:
                    case["error"] = True
                cases.append(case)
    return cases


CONTEXT = {
    "s": "Hello World",
    "u": "Grüße, 東京 🗼!",
    "w": "  padded\t\n",
    "e": "",
    "n": 7,
    "m": -3,
    "f": 2.5,
    "t": True,
    "no": False,
    "nil": None,
    "l": [3, 1, 2],
    "words": ["pear", "Apple", "fig", "apple"],
    "nested": [[1, 2], [3, [4]]],
    "d": {"b": 2, "a": 1, "items": "shadow", "key with space": None},
    "people": [
        {"name": "Ann", "age": 31, "tags": ["x", "y"], "home": {"city": "Oslo"}},
        {"name": "bob", "age": 25, "tags": [], "home": {"city": "Bern"}},
        {"name": "Cy", "tags": ["z"], "home": {}},
    ],
    "text": "line one\nline two\r\n\nline four",
    "csv": "a,b,,c",
    "q": "it's \"quoted\"",
}

EXPRESSIONS = r"""
1 + 2 * 3 ;; (1 + 2) * 3 ;; 7 // 2 ;; -7 // 2 ;; 7 % 3 ;; -7 % 3 ;; 7 % -3 ;; 7 / 2 ;; 6 / 2 ;; 2 ** 10 ;; 2 ** -1
-2 ** 2
2 ** 3 ** 2 ;; 7.5 // 2 ;; 7.5 % 2 ;; -7.5 % 2 ;; 1e3 ;; 1.5e-7 ;; 1e16 ;; 123456789.123456789 ;; 0.1 + 0.2 ;; 1e22
100000000000000000000.0
1_000 + 1 ;; 0x1F ;; 0b101 ;; 0o17 ;; 1 / 0 ;; 1 % 0 ;; 1 // 0.0 ;; 3 - -3 ;; +n ;; -f ;; +t ;; -t ;; true + 1
5 * 1.0 ;; 1.0 ;; 10.0 / 4
9223372036854775807 ;; 'a' * 3 ;; 3 * 'ab' ;; [1] * 3 ;; 'a' * 0 ;; 'a' * -1 ;; (1, 2) * 2 ;; 'a' + 'b' ;; [1] + [2]
(1,) + (2,)
'a' + 1 ;; 1 + 'a' ;; [1] + (2,) ;; nil + 1 ;; missing + 1 ;; 'a' ~ 1 ~ 2.0 ~ true ~ none ~ missing ;; 1 ~ 2 ;; n ~ f
l ~ d
1 < 2 ;; 2 < 1 ;; 1 < 2 < 3 ;; 1 < 3 < 2 ;; 1 == 1.0 ;; true == 1 ;; 'a' == 'a' ;; 'a' < 'b' ;; 'a' < 1
[1, 2] < [1, 3] ;; [1] == [1] ;; (1,) == [1]
nil == none ;; missing == none ;; {'a': 1} == {'a': 1} ;; {'a': 1, 'b': 2} == {'b': 2, 'a': 1} ;; 1 != 2 ;; 'B' < 'a'
l == [3, 1, 2] ;; nested == [[1, 2], [3, [4]]]
1 >= 1 ;; 1 <= 0 ;; 'é' > 'z' ;; none < 1 ;; [1, 'a'] < [1, 2] ;; 3 > 2 > 1 ;; 1 == 1 != 2 ;; 2 in [1, 2]
'ell' in s ;; 'x' not in s ;; 'a' in d ;; 1 in d ;; 1 in s
3 in l and 4 not in l ;; not 1 in l ;; not (1 in l) ;; x in missing ;; 'x' in missing ;; 1 in nil ;; '' in s
'b' in d.keys() ;; 2 in d.values() ;; 2 in range(3)
true and false ;; true or false ;; not true ;; 0 or 'x' ;; '' or none ;; 1 and 2 ;; nil and 1 ;; not nil ;; not []
not [0] ;; not '' ;; not 0.0 ;; not missing ;; e or missing or 'z'
'yes' if t else 'no' ;; 'yes' if no else 'no' ;; 'yes' if no ;; ('yes' if no) is defined ;; 1 if 0 else 2 if 0 else 3
(1 if t else 2) + 1 ;; 'a' if missing else 'b'
s[0] ;; s[-1] ;; s[1:3] ;; s[:5] ;; s[6:] ;; s[::-1] ;; s[::2] ;; s[-5:] ;; s[:-6] ;; s[20] ;; s[20:] ;; s[5:2]
s[5:2:-1] ;; s[-100:100] ;; s[::0] ;; u[7:9] ;; u[::-1] ;; u[-3:] ;; u[2]
l[0] ;; l[-1] ;; l[5] ;; l[5] is defined ;; l[1:] ;; l[::-1] ;; l[:2] ;; l[-2:] ;; l[::2] ;; l[5:] ;; l['x']
l[none:1] ;; (1, 2, 3)[1:] ;; range(10)[2:8:3] | list ;; l[1.0] ;; l[true]
d.a ;; d['a'] ;; d.missing ;; d['missing'] ;; d.missing.x ;; d.missing is defined ;; d.missing.x is defined
d['key with space'] ;; d.items ;; d['items'] ;; nil.x ;; nil.x.y ;; s.foo ;; s.foo is defined
people[0].name ;; people[0]['home'].city ;; people[-1].age ;; people[-1].age | default('?') ;; people.0.name
people[0].tags[1] ;; nested[1][1][0] ;; nested.1.1.0
{'a': 1, 'b': [1, 2]} ;; {} ;; {1: 'x', 'y': none} ;; {'a': 1,} ;; [] ;; [1,] ;; () ;; (1,) ;; (1, 'a')
[1, 'two', 3.0, none, true] ;; {'a': {'b': 'c'}}.a.b ;; {'a': 1, 'a': 2} ;; {[1]: 2} ;; {(1, 2): 3}
['it\'s', "q\"", 'both \' "', 'nl\n', 'tab\t', 'back\\slash', '\x00\x7f', 'é東', '\u200b'] ;; 'a' 'b' ;; "dq \"x\""
'\u00e9\x41\101\n' ;; 'unknown \q' ;; '\\n'
none ;; None ;; true ;; True ;; false ;; nil ;; t ;; f ;; l ;; d ;; people[2] ;; missing ;; missing | string
[missing] is defined ;; 1.0 ;; -0.0 ;; 1e-5 ;; 0.0001 ;; 1.1e10
s.upper() ;; s.lower() ;; u.upper() ;; u.lower() ;; 'straße'.upper() ;; s.title() ;; "they're bill's friends".title()
'hELLO wORLD'.capitalize() ;; u.capitalize() ;; s.swapcase() ;; 'ß'.casefold() ;; 'ǆ'.title() ;; 'ÀÉ'.lower()
w.strip() ;; w.lstrip() ;; w.rstrip() ;; 'xxaxx'.strip('x') ;; 'xyaxy'.lstrip('yx') ;; 'aéé'.rstrip('é')
w.strip(none) ;; ''.strip() ;; '\u00a0x\u3000'.strip() ;; s.strip(1)
csv.split(',') ;; csv.split(',', 1) ;; csv.rsplit(',', 1) ;; w.split() ;; 'a  b c'.split() ;; 'a  b c '.split(none, 1)
' a  b c'.rsplit(none, 1) ;; 'a  b'.split(' ') ;; ''.split() ;; ''.split(',') ;; 'ab'.split('')
'a<>b<>c'.split('<>') ;; 'aXbXc'.rsplit('X', 1) ;; 'a b'.split(maxsplit=0) ;; csv.split(sep=',', maxsplit=2)
'x'.split('</think>')[-1]
text.splitlines() ;; text.splitlines(true) ;; ''.splitlines() ;; 'a\n'.splitlines() ;; 'a\n\nb\u2028c'.splitlines()
s.startswith('He') ;; s.startswith(('x', 'H')) ;; s.endswith('ld') ;; s.endswith(('a', 'b')) ;; s.startswith('W', 6)
s.endswith('o', 0, 5) ;; s.startswith('') ;; ''.startswith('') ;; 'a'.startswith('', 2) ;; s.startswith(['H'])
s.replace('l', 'L') ;; s.replace('l', 'L', 1) ;; 'aaa'.replace('aa', 'b') ;; 'abc'.replace('', '-')
'abc'.replace('', '-', 2) ;; ''.replace('', 'x') ;; 'aaa'.replace('a', '', 2) ;; u.replace('東', 'x')
s.replace('o', 1) ;; 'x'.replace('x', 'xx', -1)
s.find('o') ;; s.find('o', 5) ;; s.find('z') ;; s.rfind('o') ;; u.find('東') ;; u.find('') ;; s.find('o', -3)
s.index('W') ;; s.index('z') ;; s.count('l') ;; s.count('') ;; u.count('') ;; s.count('o', 5) ;; 'aaaa'.count('aa')
s.find('l', 3, 4) ;; s.rindex('l') ;; 'abc'.find('', 4) ;; 'abc'.find('', 3)
', '.join(words) ;; ''.join([]) ;; '-'.join('abc') ;; ', '.join(l) ;; ','.join(d) ;; s.removeprefix('He')
s.removesuffix('ld') ;; s.removeprefix('x') ;; s.partition(' ') ;; s.rpartition('o') ;; s.partition('zz')
'x'.partition('') ;; 'ab'.center(7, '*') ;; 'abc'.center(8) ;; 'ab'.ljust(4) ~ '|' ;; 'ab'.rjust(5, '0')
'-42'.zfill(6) ;; '7'.zfill(3) ;; 'abc'.zfill(2)
'12'.isdigit() ;; ''.isdigit() ;; 'a1'.isalnum() ;; 'ab'.isalpha() ;; ' \t'.isspace() ;; 'AB1'.isupper()
'ab1'.islower() ;; '1'.isupper() ;; '²'.isdigit() ;; '½'.isnumeric() ;; '²'.isdecimal() ;; 'Ab'.islower()
u.isalpha() ;; '東京'.isalpha()
'{} {}'.format(1, 'a') ;; '{1}{0}'.format('a', 'b') ;; '{x}'.format(x=5) ;; '{:>5}|'.format('a')
'{:^7}'.format('mid') ;; '{:*<5}'.format(1) ;; '{:.2f}'.format(3.14159) ;; '{:05d}'.format(42)
'{:,}'.format(1234567) ;; '{{}}'.format() ;; '{'.format() ;; '{}'.format() ;; '{:x}'.format(255)
'{:#x}'.format(255) ;; '{:e}'.format(12345.678) ;; '{:+d}'.format(5) ;; '{!r}'.format('q') ;; '{:.3}'.format('abcdef')
'{:%}'.format(0.25) ;; '{:d}'.format('x') ;; '{:s}'.format('x') ;; '{}'.format(none) ;; '{:.1f}'.format(2)
'{:>4}'.format(true) ;; '{:<6}|'.format(2.5) ;; '{:g}'.format(0.00001234)
'%s' % 'a' ;; '%s %s' % ('a', 1) ;; '%d' % 5.7 ;; '%05.1f' % 3.14159 ;; '%x' % 255 ;; '%-5s|' % 'ab' ;; '%5s|' % 'ab'
'%%' % () ;; '%(k)s' % {'k': 'v'} ;; '%s' % none ;; '%r' % 'a' ;; '%d' % 'a' ;; '%s' ;; '%s' % (1, 2) ;; '%s %s' % 'a'
'%+d' % 3 ;; '%03d' % -5 ;; '%s' % [1] ;; '%.2s' % 'abc' ;; '%e' % 1234.5 ;; '%i' % 7 ;; 'plain' % () ;; 'plain' % 1
'%g' % 1e10 ;; '%5.2f' % 1.005 ;; '%s' % (('a', 1),) ;; '%o' % 8
d.get('a') ;; d.get('z') ;; d.get('z', 5) ;; d.keys() | list(d) ;; d.keys() | list
d.values() | list ;; d.items() | list ;; d.items() ;; d.pop('a') ;; d.update({}) ;; d.copy()
d.keys() | length ;; l.index(1) ;; l.index(9) ;; l.count(3) ;; l.append(4) ;; l.copy() ;; (1, 2).index(2)
words.sort() ;; people[0].get('name', 'x').upper()
w | trim ;; s | upper ;; s | lower ;; 'hello there' | title ;; "it's (ok) a-b <c" | title ;; 'hELLO' | capitalize
s | length ;; u | length ;; l | length ;; d | length ;; n | length ;; missing | length ;; range(5) | length
s | count ;; nil | length
l | join ;; l | join('-') ;; people | join(', ', attribute='name') ;; d | join ;; [1, none, true, 'x'] | join('|')
s | join(' ') ;; missing | join ;; n | join ;; words | join(', ') | upper
missing | default('x') ;; e | default('x') ;; e | default('x', true) ;; e | d('x', boolean=true) ;; nil | default('x')
nil | default('x', true) ;; missing | default ;; no | default(1, true) ;; missing.x | default('x')
d.zz | default([]) | length
l | first ;; l | last ;; [] | first ;; [] | first is defined ;; s | first ;; s | last ;; d | first ;; e | first
l | list ;; s | list ;; d | list ;; missing | list ;; nil | list ;; n | list ;; range(4) | list ;; (1, 2) | list
range(3) ;; range(1, 9, 3) ;; range(3, 0, -1) | list ;; range(0) | list ;; range(1, 2, 0) ;; range(200000) | length
d | items | list ;; {'x': 1} | items | list ;; missing | items | list ;; l | items | list ;; d | dictsort
{'b': 1, 'A': 2, 'c': 0} | dictsort ;; {'b': 1, 'A': 2, 'c': 0} | dictsort(true)
{'b': 1, 'A': 2, 'c': 0} | dictsort(by='value') ;; {'b': 1, 'a': 2} | dictsort(reverse=true)
{'b': 1, 'a': 2} | dictsort(false, 'value', true) ;; {'b': 1} | dictsort(by='x')
people | map(attribute='name') | list ;; people | map(attribute='age') | list | length
people | map(attribute='age', default=0) | list ;; people | map(attribute='home.city', default='?') | join(',')
people | map(attribute='tags.0', default='-') | join ;; words | map('upper') | list ;; words | map('length') | sum
words | map('replace', 'p', 'P') | join(' ') ;; l | map('string') | join('+') ;; [[1, 2], [3]] | map('first') | list
nested | map(attribute=0) | list ;; words | map ;; words | map('nofilter') | list
[1.234, 5.678] | map('round', 1) | list
people | selectattr('age') | map(attribute='name') | list ;; people | selectattr('age', 'defined') | list | length
people | selectattr('name', 'equalto', 'bob') | list
people[:2] | selectattr('age', 'gt', 30) | map(attribute='name') | first
people | rejectattr('age', 'defined') | map(attribute='name') | join
people | selectattr('name', 'in', ['Ann', 'Cy']) | list | length
people | rejectattr('tags') | map(attribute='name') | join ;; l | select('odd') | list ;; l | reject('odd') | list
[0, 1, '', 'a', none] | select | list ;; l | select('gt', 1) | list ;; l | select('divisibleby', 3) | list
['a', 1] | select('string') | list ;; l | select('nope') | list
people | selectattr('home.city', '==', 'Oslo') | map(attribute='age') | list
people | selectattr('role', 'equalto', 'x') is defined ;; 'a' if (l | select('gt', 100)) else 'b'
(l | select('gt', 1) | length) ;; (l | map('string'))[0] is defined ;; l | reverse | list ;; s | reverse ;; l | sort
l | sort(true) ;; words | sort ;; words | sort(case_sensitive=true)
people | sort(attribute='name') | map(attribute='name') | list
people[:2] | sort(attribute='age') | map(attribute='name') | list
people[:2] | sort(attribute='home.city,age', reverse=true) | map(attribute='name') | list ;; ['a', 1] | sort
d | sort ;; words | unique | list ;; words | unique(true) | list ;; [1, 1.0, true, 2] | unique | list
l | sum ;; people[:2] | sum(attribute='age') ;; [] | sum ;; [[1], [2]] | sum(start=[]) ;; words | sum ;; l | min
l | max ;; words | min ;; words | max ;; [] | max ;; [] | max is defined ;; people[:2] | max(attribute='age')
words | max(case_sensitive=true) ;; [1, 'a'] | max ;; ([0.1] * 3) | sum
'42' | int ;; '4.7' | int ;; 'x' | int ;; 'x' | int(-1) ;; '0x1A' | int(base=16) ;; '101' | int(base=2) ;; 4.9 | int
-4.9 | int ;; true | int ;; nil | int ;; ' 7 ' | int ;; '1_000' | int ;; '' | int ;; '3.5' | float ;; 'x' | float
'x' | float(1.5) ;; 3 | float ;; '1e3' | float ;; 'inf' | float ;; nil | float(2.0) ;; missing | int ;; [1] | int(9)
'-5' | int ;; '+5' | int
-5 | abs ;; -2.5 | abs ;; 'x' | abs ;; 2.5 | round ;; 3.5 | round ;; 2.567 | round(2) ;; 2.1 | round(method='ceil')
2.9 | round(0, 'floor') ;; 1234 | round(-2) ;; 5 | round ;; 2.675 | round(2) ;; 1250 | round(-2)
42.55 | round(1, 'floor') ;; 'x' | round ;; 7.0 | round | int ;; 0.5 | round ;; 1.5 | round
1 | string ;; l | string ;; s | string ;; nil | string ;; 1.0 | string ;; true | string ;; s | safe
'<a href="x">\'&' | e ;; '<b>' | escape ;; s | replace('o', '0') ;; s | replace('o', '0', 1)
1.5 | replace('.', ',') ;; l | replace('1', 'x') ;; s | nofilter ;; s | trim('Hd') ;; n | trim ;; 'a%sb' | format('X')
'%s-%d' | format('a', 3) ;; '%(a)s' | format(a=1)
text | indent ;; text | indent(2, true) ;; text | indent(2, false, true) ;; text | indent('> ')
text | indent(width=1, first=true, blank=true) ;; 'one' | indent ;; '' | indent ;; 'a\n' | indent
s | tojson ;; u | tojson ;; u | tojson(ensure_ascii=true) ;; q | tojson ;; 'a\nb\t\\ \x01\x7f/' | tojson
'\x7f🗼' | tojson(true) ;; l | tojson ;; d | tojson ;; people[0] | tojson ;; people | tojson(indent=2)
d | tojson(indent=4) ;; {} | tojson(indent=2) ;; [] | tojson(indent=2) ;; [[], {}] | tojson(indent=1) ;; nil | tojson
t | tojson ;; f | tojson ;; 1.0 | tojson ;; 1e20 | tojson ;; {'b': 1, 'a': 2} | tojson(sort_keys=true)
{'a': [1, 2]} | tojson(separators=(',', ':')) ;; {'a': [1, 2]} | tojson(indent=2, separators=(', ', ' : '))
(1, 2) | tojson ;; {1: 2, none: 3, true: 4, 1.5: 5} | tojson ;; missing | tojson ;; range(3) | tojson
{(1, 2): 3} | tojson ;; d.keys() | tojson ;; [1, [2, {'x': '<>&'}]] | tojson(indent='\t') ;; l | tojson(indent=0)
'é' | tojson(false) ;; [1] | tojson(indent=none) ;; namespace(a=1) | tojson
s is string ;; n is string ;; n is number ;; f is number ;; t is number ;; n is integer ;; t is integer ;; f is float
n is float ;; t is boolean ;; n is boolean ;; d is mapping ;; l is mapping ;; l is sequence ;; s is sequence
d is sequence ;; n is sequence ;; l is iterable ;; s is iterable ;; n is iterable ;; nil is none ;; missing is none
missing is defined ;; missing is undefined ;; s is defined ;; missing is iterable ;; missing is sequence
(l | map('string')) is sequence ;; (l | map('string')) is iterable ;; range(3) is sequence ;; d.items() is sequence
s.upper is callable ;; range is callable ;; n is callable ;; t is true ;; n is true ;; 1 is true ;; no is false
0 is false ;; t is sameas true ;; 1 is sameas 1 ;; l is sameas l ;; [1] is sameas [1]
n is odd ;; n is even ;; 2.0 is even ;; 's' is odd ;; n is divisibleby 7 ;; n is divisibleby(2) ;; n is divisibleby 0
n is eq 7 ;; n is equalto 7 ;; n is ne 7 ;; n is gt 6 ;; n is ge 7 ;; n is lt 7 ;; n is le 7 ;; n is greaterthan 3
n is lessthan(9) ;; 'A' is upper ;; 'a' is lower ;; 'a1' is upper ;; 1 is in l ;; 1 is in([2]) ;; 'x' is not in s
n is not string ;; not n is string ;; n is not none and t ;; n is string or t ;; missing is not defined
d.a is defined and d.a == 1 ;; n is nothing ;; 'upper' is filter ;; 'zzz' is filter ;; 'defined' is test
s is string is defined ;; l is in [[3, 1, 2]] ;; n is number and f is number ;; nil is not none
range(3) | join(',') ;; dict(a=1, b='x') ;; dict({'a': 1}, b=2) ;; dict([('k', 1)]) ;; namespace(x=1).x
namespace({'a': 5}).a ;; namespace().y is defined ;; range('a') ;; dict(1) ;; undefined_function() ;; s()
d.nothing() ;; strftime_now('%d %b %Y') ;; strftime_now('%A, %H:%M') ;; strftime_now('') ;; raise_exception('no')
loop is defined ;; (1, 2) | first ;; ((1, 2), 3) | first | last
1 + ;; {{ ;; (1 ;; [1 ;; {1: } ;; 'abc ;; 1 2 ;; a b ;; not ;; if ;; d. ;; d.1x ;; s[ ;; s[1:2:3:4] ;; 1.2.3
%} ;; a = 1 ;; $ ;; ? ;; `x` ;; * ;; 08 ;; f(*l) ;; f(a=1, 2) ;; x ;; | 'a' if ;; is ;; 1 is ;; 0x ;; 1__0 ;; @
""".strip("\n")

STATEMENTS = [
    "{% for x in l %}{{ x }}{% endfor %}",
    "{% for x in l %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}"
    "{{ loop.first }}{{ loop.last }}{{ loop.length }} {% endfor %}",
    "{% for x in l %}{{ loop.previtem }}<{{ x }}>{{ loop.nextitem }} {% endfor %}",
    "{% for x in l %}{{ loop.cycle('a', 'b') }}{{ loop.depth }}{{ loop.depth0 }}{% endfor %}",
    "{% for x in [] %}x{% else %}none{% endfor %}",
    "{% for x in missing %}x{% else %}none{% endfor %}",
    "{% for x in nil %}x{% endfor %}",
    "{% for x in n %}x{% endfor %}",
    "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}",
    "{% for k in d %}{{ k }};{% endfor %}",
    "{% for c in 'añ東' %}{{ c }}-{% endfor %}",
    "{% for (a, b), c in [((1, 2), 3)] %}{{ a }}{{ b }}{{ c }}{% endfor %}",
    "{% for a, b in [(1, 2, 3)] %}{{ a }}{% endfor %}",
    "{% for a, b in ['xy', 'zw'] %}{{ a }}{{ b }}{% endfor %}",
    "{% for a, b in [1] %}{% endfor %}",
    "{% for x in l if x > 1 %}{{ x }}{{ loop.length }}{% else %}none{% endfor %}",
    "{% for x in l if x > 9 %}{{ x }}{% else %}none{% endfor %}",
    "{% for x in 1, 2, 3 %}{{ x }}{% endfor %}",
    "{% for x in l %}{% for y in l %}{{ loop.index }}{{ x }}{{ y }} {% endfor %}{{ loop.index }}|{% endfor %}",
    "{% for x in range(10) %}{% if x == 2 %}{% continue %}{% endif %}{% if x == 5 %}{% break %}{% endif %}"
    "{{ x }}{% endfor %}",
    "{% for x in l %}{% break %}{% else %}none{% endfor %}",
    "{% break %}",
    "{% set x = 1 %}{% for i in l %}{% set x = x + i %}{{ x }} {% endfor %}{{ x }}",
    "{% set ns = namespace(x=1) %}{% for i in l %}{% set ns.x = ns.x + i %}{% endfor %}{{ ns.x }}",
    "{% set ns = {} %}{% set ns.x = 1 %}",
    "{% set missing.x = 1 %}",
    "{% set a, b = 1, 2 %}{{ b }}{{ a }}",
    "{% set a = 1, 2 %}{{ a }}",
    "{% set (a, b) = l[:2] %}{{ a }}{{ b }}",
    "{% set a, b = l %}",
    "{% if t %}{% set inner = 5 %}{% endif %}{{ inner }}",
    "{% if no %}a{% elif n == 7 %}b{% else %}c{% endif %}",
    "{% if no %}a{% elif nil %}b{% else %}c{% endif %}",
    "{% if no %}a{% elif nil %}b{% endif %}.",
    "{% if missing.x %}a{% endif %}",
    "{% if missing %}a{% else %}b{% endif %}",
    "{% set x %}  block {{ n }} {% endset %}[{{ x }}]",
    "{% set x | upper | trim %}  block {{ n }} {% endset %}[{{ x }}]",
    "{% set x %}{% set y = 3 %}{{ y }}{% endset %}{{ x }}{{ y }}",
    "{% macro m(a, b=2, c=a) %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ m(1) }} {{ m(1, 3) }} {{ m(1, c=5) }} "
    "{{ m(a=7) }}",
    "{% macro m(a) %}[{{ a }}]{% endmacro %}{{ m() }}",
    "{% macro m(a) %}{{ a.x }}{% endmacro %}{{ m() }}",
    "{% macro m() %}x{% endmacro %}{{ m(1) }}",
    "{% macro m() %}x{% endmacro %}{{ m(z=1) }}",
    "{% macro m(a, b=1, c) %}x{% endmacro %}",
    "{% macro fact(k) %}{% if k <= 1 %}1{% else %}{{ k * (fact(k - 1) | int) }}{% endif %}{% endmacro %}"
    "{{ fact(5) }}",
    "{% macro m() %}{{ later }}{% endmacro %}{% set later = 4 %}{{ m() }}",
    "{% macro m() %}{% set n = 1 %}{{ n }}{% endmacro %}{{ m() }}{{ n }}",
    "{% macro m() %}{{ x }}{% endmacro %}{% for x in l %}{{ m() }}{% endfor %}",
    "{% for x in l %}{% macro m() %}{{ x }}{% endmacro %}{{ m() }}{% endfor %}",
    "{% macro m(x) %}{{ x }}{% endmacro %}{{ m('a') ~ m('b') | upper }}{{ m(1) is string }}",
    "{% macro outer() %}{% macro inner() %}i{% endmacro %}{{ inner() }}o{% endmacro %}{{ outer() }}",
    "{% macro m(f) %}{{ f(2) }}{% endmacro %}{% macro g(k) %}<{{ k }}>{% endmacro %}{{ m(g) }}",
    "{% with %}{% set a = 1 %}{{ a }}{% endwith %}{{ a }}",
    "{% with a = 1, b = n %}{{ a }}{{ b }}{% endwith %}{{ a }}",
    "{% filter upper %}abc {{ s }}{% endfilter %}",
    "{% filter replace('a', 'b') | trim %} abc {% endfilter %}.",
    "{% generation %}a{{ n }}{% set z = 1 %}{% endgeneration %}{{ z }}",
    "{% raw %}{{ x }}{% if %}{% endraw %}",
    "a {%- raw -%} {{ x }} {%- endraw -%} b",
    "  {% raw %}  x  {% endraw %}\n  y",
    "{# comment #}a{#- comment -#} b {# c",
    "a\n{# comment #}\nb",
    "a\n  {#- comment -#}\n  b",
    "{#--#}x{# - #}",
    "a\n  {% if t %}\n  b\n  {% endif %}\n  c\n",
    "a\n  {%+ if t %}\n  b\n  {%+ endif %}\n  c\n",
    "a\n  {% if t +%}\n  b\n  {% endif +%}\n  c\n",
    "a\n  {%- if t %}\n  b\n  {%- endif %}\n  c\n",
    "a\n  {% if t -%}\n  b\n  {% endif -%}\n  c\n",
    "a\n  {%- if t -%}\n  b\n  {%- endif -%}\n  c\n\n",
    "a  {% if t %}  b  {% endif %}  c",
    "  {{ n }}  \n  {{- n -}}  \n  {{ n }}\n",
    "\t{% set x = 1 %}\t{% set y = 2 %}\nz",
    "   {% if t %}x{% endif %}\n   {% if t %}y{% endif %}   \nz",
    "{% if t %}\n\n\nx{% endif %}\n\n",
    "a\r\nb\rc\n{{ 'x\r\ny' }}\n",
    "line\n\n",
    "line\n\n\n",
    "{{ '\n' }}\n{% set a = 1 %}\n{{ a }}",
    "{%- for x in l %}\n  {{ x }}\n{%- endfor %}\n",
    "{% for x in l -%}\n  {{ x }}\n{%- endfor -%}\n  end",
    "{{- 'a' -}}   {{- 'b' }}   {{ 'c' -}}",
    "{{ {'a': {'b': 1}}['a']['b'] }}",
    "{{ {'a': '}}'} }}",
    "{{ '{{' }}{{ \"%}\" }}",
    "}} %} #}",
    "{",
    "{ {",
    "{{ n }",
    "{% if t %}",
    "{% endif %}",
    "{% if t %}{% endfor %}",
    "{% unknown %}",
    "{% for x l %}{% endfor %}",
    "{% for in l %}{% endfor %}",
    "{% set %}",
    "{% set true = 1 %}",
    "{% set x = %}",
    "{% if %}{% endif %}",
    "{% macro %}{% endmacro %}",
    "{% %}",
    "{{ }}",
    "{%",
    "{{",
    "{% else %}",
    "{{ n }}{# #}{{ n }}",
    "{% if t %}a{% else %}b{% elif no %}c{% endif %}",
    "{% if n == 7 and s is string and 'H' in s and not missing %}ok{% endif %}",
    "{% set l2 = l + [9] %}{{ l2 }}{{ l }}",
    "{% set l = l + [9] %}{% set l = l + [10] %}{{ l | length }}",
    "{% for m in people %}{% set name = m.name %}{% if m.age is defined and m.age > 30 %}"
    "{% set name = name | upper %}{% endif %}{{ name }} {% endfor %}",
    "{% for x in people | selectattr('age', 'defined') %}{{ loop.index }}{{ loop.last }}{{ x.name }}{% endfor %}",
    "{% set g = l | map('string') %}{% for x in g %}{{ x }}{% endfor %}{% for x in g %}{{ x }}{% endfor %}.",
    "{{ range(3) | map('string') | list }}{{ loop }}",
    "{% for x in l %}{% if loop.first %}{{ 'f' }}{% elif loop.last %}l{% else %}m{% endif %}{% endfor %}",
    "{% set x = namespace(found=false, items=[]) %}{% for i in l %}{% set x.items = x.items + [i * 2] %}"
    "{% endfor %}{{ x.items }}",
    "{%set x=1%}{{x}}{%if x==1%}y{%endif%}",
    "{{ [1,2,3][1:] | first }}{{ (l | sort)[0] }}{{ l|length > 2 }}{{ -1|abs }}{{ -n|abs }}",
    "{{ 'a\\\nb' }}",
    "{{ l|join(',')|upper ~ '!' }}{{ 'a' ~ 'b' * 2 + 'c' }}{{ 1 ~ 2 * 3 }}",
    "{{ n if n is defined else 'x' ~ 'y' }}{{ not n == 7 }}{{ not t and no }}{{ 1 if t else 2, 3 }}",
    "{{ 2 * 3 ** 2 }}{{ -2 ** 2 }}{{ 10 - 2 - 3 }}{{ 100 / 10 / 2 }}{{ 7 // 2 * 2 }}{{ 'a' in 'abc' == true }}",
]


def expressions(env):
    templates = ["{{ " + case + " }}" for line in EXPRESSIONS.split("\n") for case in line.split(" ;; ")]
    cases = []
    for template in dict.fromkeys(templates + STATEMENTS):
        case = {"template": template}
        try:
            case["expected"] = env.from_string(template).render(**CONTEXT)
        except Exception:
            case["error"] = True
        if "0x" not in case.get("expected", "") or "0x" in template:
            cases.append(case)  # an address in the text (a function, a generator) differs from run to run
    return cases


def write(name, value):
    text = json.dumps(value, ensure_ascii=False, indent=0)
    (FOLDER / name).write_text(text + "\n", encoding="utf-8")


def main():
    env = environment()
    cases = renderings(env)
    write("renderings.json", {"conversations": CONVERSATIONS, "tokens": TOKENS, "cases": cases})
    small = expressions(env)
    write("expressions.json", {"context": CONTEXT, "cases": small})
    errors = sum("error" in case for case in cases)
    print(f"{len(cases)} renderings ({errors} refused), {len(small)} small templates")


if __name__ == "__main__":
    main()
