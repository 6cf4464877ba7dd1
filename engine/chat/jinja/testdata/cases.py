#!/usr/bin/env python3
"""Writes cases.json: what Jinja2 makes of small templates.

Needs `pip install jinja2==3.1.6`. The environment is that of
../../testdata/oracle.py. Each line of TEMPLATES is a template ("\\n" stands
for a newline); the variables are VARS.
"""
import json
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "..", "testdata"))
from oracle import environment  # noqa: E402

VARS = {
    "s": "Hello World", "pad": "  x y\t\n", "u": "Größe 日本 👍🏽", "e": "", "n": 7, "neg": -7, "z": 0, "f": 2.5, "big": 1e20, "tiny": 1.5e-7,
    "t": True, "no": False, "nil": None, "l": [3, 1, 2], "w": ["b", "A", "c", "a"], "empty": [], "d": {"b": 1, "a": [1, {"x": None}], "C": "q'"}, "o": {},
    "p": [{"k": "x", "v": 2, "in": {"deep": 1}}, {"k": "y", "v": 1, "in": {"deep": 2}}, {"k": "X", "v": 3, "on": True, "in": {"deep": 0}}],
    "j": {"q": "\"\\/\b\f\n\r\t\u0001\u007f\u00e9\u2028\U0001f600<'&>", "n": [1, 2.0, 1e100, -0.0, None, True], "e": [], "o": {}},
}

TEMPLATES = r"""
{{ s }}|{{ n }}|{{ f }}|{{ t }}|{{ nil }}|{{ missing }}|{{ l }}|{{ d }}|{{ p }}
{{ big }}|{{ tiny }}|{{ 1.0 }}|{{ 1e16 }}|{{ 123456789012345678.0 }}|{{ 0.0001 }}|{{ 1e-5 }}|{{ 100000.0 }}|{{ 3.14159 }}
{{ 'a' 'b' "c" }}|{{ 'it\'s' }}|{{ "q\"q" }}|{{ '\n\t\\x' }}|{{ '\x41\u00e9\U0001F600\101' }}|{{ 'a\qb' }}
{{ ["it's", 'q"q', "both'\"", "nl\n", "\x00\x7f\u00a0\u200b", u] }}
{{ (1, 2) }}|{{ (1,) }}|{{ () }}|{{ 1, 2 }}|{{ (1) }}|{{ [1, 2,] }}|{{ {'a': 1, 'b': [2],} }}|{{ {} }}|{{ [] }}
{{ 1 + 2 * 3 - 4 }}|{{ 7 / 2 }}|{{ 7 // 2 }}|{{ -7 // 2 }}|{{ -7 % 3 }}|{{ 7 % -3 }}|{{ 2 ** 10 }}|{{ 2 ** -1 }}|{{ 7.5 // 2 }}|{{ -7.5 % 2 }}|{{ 6 / 3 }}
{{ 2 ** 3 ** 2 }}|{{ -2 ** 2 }}|{{ 10 - 3 - 2 }}|{{ 2 * 'ab' }}|{{ [1] * 3 }}|{{ 'ab' * 0 }}|{{ 'x' * -1 }}|{{ t + 1 }}
{{ 1_000 }}|{{ 0x1f }}|{{ 0b101 }}|{{ 0o17 }}|{{ 1_0.5 }}|{{ 1e3 }}|{{ 5.e }}
{{ 'a' ~ 1 ~ nil ~ t ~ missing ~ 1.5 }}|{{ 1 ~ 2 + 3 }}|{{ 'a' + 'b' ~ 'c' }}
{{ [1] + [2] }}|{{ (1,) + (2,) }}|{{ [1] + (2,) }}
{{ 'a' + 1 }}
{{ 1 + nil }}
{{ missing + 'a' }}
{{ 'a' ~ missing.x }}
{{ nil.x }}|{{ nil.x is undefined }}|{{ d.zz is defined }}|{{ d.a[5] is defined }}|{{ s.zz is defined }}
{{ missing.x }}
{{ missing[0] }}
{{ missing() }}
{{ 1 < 2 < 3 }}|{{ 1 < 3 < 2 }}|{{ 1 == 1.0 }}|{{ t == 1 }}|{{ 'a' < 'b' }}|{{ [1, 2] < [1, 3] }}|{{ 1 != '1' }}|{{ nil == missing }}|{{ l == [3, 1, 2] }}|{{ (1,) == [1] }}
{{ 1 < 'a' }}
{{ missing < 1 }}
{{ 'ell' in s }}|{{ 'x' not in s }}|{{ 3 in l }}|{{ 'b' in d }}|{{ 'x' in missing }}|{{ 1 in [true] }}|{{ 'a' in {'a': 1} }}|{{ nil in [none] }}
{{ 1 in 'abc' }}
{{ 1 in 5 }}
{{ not t }}|{{ not not e }}|{{ t and no }}|{{ e or 'x' }}|{{ s and n }}|{{ nil or missing or 0 }}|{{ not 1 == 2 }}|{{ no and missing.x }}
{{ 'y' if t }}|{{ 'y' if no }}|{{ 'y' if no else 'n' }}|{{ 1 if no else 2 if no else 3 }}|{{ ('y' if no) is undefined }}
{{ l[0] }}|{{ l[-1] }}|{{ [9][-1] }}|{{ [9][-2] is defined }}|{{ s[0] }}|{{ s[-1] }}|{{ u[6] }}|{{ d['b'] }}|{{ d.b }}|{{ p[0].k }}|{{ p.0.k }}|{{ d['items'] is callable }}|{{ l[true] }}
{{ l[::-1] }}|{{ l[1:] }}|{{ l[:-1] }}|{{ l[-2:] }}|{{ l[5:] }}|{{ l[::2] }}|{{ l[2:0:-1] }}|{{ s[::-1] }}|{{ u[2:8:2] }}|{{ (1,2,3)[1:] }}|{{ l[none:none] }}|{{ l[-100:100] }}|{{ s[100:] }}
{{ l[::0] }}
{{ l['a':] }}
{{ 5[1:] }}
{{ d.items() | list }}|{{ d.keys() | list }}|{{ d.values() | list }}|{{ d.get('b') }}|{{ d.get('zz') }}|{{ d.get('zz', 5) }}
{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}|{% for k in d %}{{ k }}{% endfor %}|{% for k, v in d | items %}{{ k }}{% endfor %}|{{ missing | items | list }}
{{ 'ΟΔΟΣ ΣΑΣ. ǆ ß ŉ İ'.lower() }}|{{ 'ǆ ß ŉ ﬁ'.upper() }}|{{ 'ΟΔΟΣ' | lower }}|{{ s.upper() }}|{{ s.lower() }}|{{ 'hELLO wORLD'.title() }}|{{ "they're bill's".title() }}|{{ 'hELLO'.capitalize() }}|{{ ''.capitalize() }}|{{ u.upper() }}
{{ pad.strip() }}|{{ pad.lstrip() }}|{{ pad.rstrip() }}|{{ 'xxaxx'.strip('x') }}|{{ 'xyaxy'.lstrip('yx') }}|{{ 'a\n\n'.rstrip('\n') }}|{{ ' \u00a0\u3000a'.strip() }}|{{ '\x1ca'.strip() }}
{{ 'a,b,,c'.split(',') }}|{{ ' a  b c '.split() }}|{{ 'a b c'.split(' ', 1) }}|{{ ' a  b c '.split(none, 1) }}|{{ 'a,b,c'.rsplit(',', 1) }}|{{ ' a b  c '.rsplit(none, 1) }}|{{ ''.split() }}|{{ ''.split(',') }}|{{ 'a,b'.split(',', maxsplit=0) }}
{{ 'a'.split('') }}
{{ s.startswith('He') }}|{{ s.endswith(('x', 'ld')) }}|{{ s.startswith('') }}|{{ s.find('o') }}|{{ s.rfind('o') }}|{{ s.find('zz') }}|{{ u.find('日') }}|{{ s.count('l') }}|{{ 'aaa'.count('aa') }}
{{ s.replace('l', 'L') }}|{{ s.replace('l', 'L', 1) }}|{{ 'aaa'.replace('', '-') }}|{{ 'abc'.removeprefix('a') }}|{{ 'abc'.removesuffix('c') }}|{{ '-'.join(['a', 'b']) }}
{{ '-'.join([1]) }}
{{ 'a\nb\r\nc\n'.splitlines() }}|{{ ''.splitlines() }}|{{ 'a\n\nb'.splitlines() }}
{{ '12'.isdigit() }}|{{ ''.isdigit() }}|{{ 'a1'.isalnum() }}|{{ 'ab'.isalpha() }}|{{ ' '.isspace() }}|{{ 'AB'.isupper() }}|{{ 'aB'.islower() }}|{{ '1'.islower() }}
{{ l.index(1) }}|{{ l.count(3) }}|{{ [1, 1.0, true, 2].count(1) }}
{{ l.index(9) }}
{{ l.append(1) }}
{{ d.update({'x': 1}) }}
{{ d.pop('b') }}
{{ s | length }}|{{ u | length }}|{{ l | count }}|{{ d | length }}|{{ missing | length }}
{{ n | length }}
{{ s | upper | lower | title | capitalize }}|{{ "foo-bar (baz) qux" | title }}|{{ n | upper }}|{{ nil | upper }}
{{ pad | trim }}|{{ 'xax' | trim('x') }}|{{ n | trim }}|{{ missing | trim }}|{{ nil | trim }}
{{ missing | default('x') }}|{{ e | default('x') }}|{{ e | default('x', true) }}|{{ nil | default('x') }}|{{ nil | d('x', boolean=true) }}|{{ missing.a | default('x') }}
{{ missing | default }}|{{ z | default(5, true) }}|{{ d.zz.yy | default('x') }}
{{ l | first }}|{{ l | last }}|{{ s | first }}|{{ s | last }}|{{ empty | first is defined }}|{{ empty | last }}|{{ d | first }}
{{ l | join(', ') }}|{{ l | join }}|{{ p | join('-', attribute='k') }}|{{ [1, none, true, 'x'] | join('/') }}|{{ s | join('.') }}|{{ missing | join }}
{{ l | sort }}|{{ w | sort }}|{{ w | sort(case_sensitive=true) }}|{{ l | sort(reverse=true) }}|{{ p | sort(attribute='v') | map(attribute='k') | list }}|{{ w | sort(true, true) }}
{{ [1, 'a'] | sort }}
{{ d | dictsort }}|{{ {'b': 2, 'a': 3} | dictsort(by='value') }}|{{ d | dictsort(case_sensitive=true) | map('first') | list }}|{{ {'b': 2, 'a': 3} | dictsort(reverse=true) }}
{{ ['a', 'A', 'b', 1, 1.0] | unique | list }}|{{ ['a', 'A'] | unique(case_sensitive=true) | list }}|{{ p | unique(attribute='k') | map(attribute='v') | list }}
{{ l | max }}|{{ l | min }}|{{ w | max }}|{{ w | min }}|{{ empty | max is defined }}|{{ p | max(attribute='v') }}
{{ l | sum }}|{{ p | sum(attribute='v') }}|{{ p | sum(attribute='in.deep', start=10) }}|{{ [1.5, 2] | sum }}
{{ l | reverse | list }}|{{ s | reverse }}|{{ l | list }}|{{ s | list }}|{{ d | list }}|{{ u | reverse }}
{{ p | map(attribute='in.deep') | list }}|{{ p | map(attribute='on', default='-') | list }}|{{ ['a', 'b'] | map('upper') | join }}|{{ [' a '] | map('trim') | list }}|{{ ['a-b'] | map('replace', '-', '+') | list }}
{{ p | map(attribute='zz') | list }}
{{ [0, 1, '', 'x'] | select | list }}|{{ [0, 1, '', 'x'] | reject | list }}|{{ [1, 2, 3] | select('odd') | list }}|{{ [1, 2, 3] | reject('gt', 1) | list }}|{{ w | select('in', ['a', 'b']) | list }}
{{ p | selectattr('on') | list | length }}|{{ p | rejectattr('on') | map(attribute='k') | list }}|{{ p | selectattr('k', 'equalto', 'x') | map(attribute='v') | first }}|{{ p | selectattr('on', 'defined') | list | length }}|{{ p | selectattr('in.deep', '>', 0) | list | length }}
{{ '42' | int }}|{{ '42.9' | int }}|{{ 'x' | int }}|{{ 'x' | int(7) }}|{{ 'ff' | int(0, 16) }}|{{ 2.9 | int }}|{{ -2.9 | int }}|{{ nil | int }}|{{ t | int }}|{{ ' 5 ' | int }}|{{ '0x1f' | int(base=16) }}
{{ '1.5' | float }}|{{ 'x' | float }}|{{ 3 | float }}|{{ nil | float(2.5) }}|{{ '1e3' | float }}
{{ 2.5 | round }}|{{ 3.5 | round }}|{{ 2.675 | round(2) }}|{{ 7 | round }}|{{ 2.1 | round(0, 'ceil') }}|{{ 2.19 | round(1, 'floor') }}|{{ 1234.5 | round(-2) }}|{{ 42.55 | round | int }}
{{ neg | abs }}|{{ -2.5 | abs }}|{{ (-2.5) | abs }}|{{ 5 | string }}|{{ l | string }}|{{ '<&">' | e }}|{{ "it's" | escape }}|{{ '<b>' | safe }}|{{ 'a b  c' | wordcount }}
{{ 'a\nb\n\nc' | indent }}|{{ 'a\nb' | indent(2, true) }}|{{ 'a\n\nb' | indent(2, blank=true) }}|{{ 'a\nb\n' | indent('> ') }}|{{ '' | indent }}
{{ j | tojson }}
{{ j | tojson(indent=2) }}
{{ j | tojson(indent=0) }}|{{ [[], {}, [1], {'a': []}] | tojson(indent=1) }}
{{ j | tojson(ensure_ascii=true) }}
{{ d | tojson(sort_keys=true) }}|{{ d | tojson(separators=(',', ':')) }}|{{ (1, 2) | tojson }}|{{ s | tojson }}|{{ nil | tojson }}|{{ 1.0 | tojson }}|{{ {1: 2, none: 3, true: 4} | tojson }}|{{ d | tojson(indent='\t') }}
{{ missing | tojson }}
{{ missing is defined }}|{{ nil is defined }}|{{ missing is undefined }}|{{ nil is none }}|{{ nil is not none }}|{{ missing is none }}|{{ e is defined }}|{{ d.b is defined and d.b == 1 }}
{{ s is string }}|{{ n is string }}|{{ n is number }}|{{ t is number }}|{{ f is float }}|{{ n is integer }}|{{ t is integer }}|{{ t is boolean }}|{{ n is boolean }}|{{ d is mapping }}|{{ l is mapping }}
{{ l is sequence }}|{{ s is sequence }}|{{ d is sequence }}|{{ n is sequence }}|{{ l is iterable }}|{{ s is iterable }}|{{ n is iterable }}|{{ missing is iterable }}|{{ nil is iterable }}|{{ missing is sequence }}
{{ t is true }}|{{ 1 is true }}|{{ no is false }}|{{ 0 is false }}|{{ nil is false }}|{{ n is odd }}|{{ n is even }}|{{ 9 is divisibleby 3 }}|{{ 9 is divisibleby(2) }}|{{ n is eq 7 }}|{{ n is ne 7 }}|{{ n is gt 5 }}|{{ n is lt(5) }}|{{ n is ge 7 }}|{{ n is le 6 }}
{{ 'abc' is lower }}|{{ 'ABC' is upper }}|{{ 'aBc' is lower }}|{{ '12' is lower }}|{{ nil is sameas none }}|{{ n is in [7] }}|{{ 'a' is in 'abc' }}|{{ s is not string }}|{{ range is callable }}|{{ n is not defined or n is eq 7 }}|{{ t is sameas 1 }}
{{ -1 is eq -1 }}|{{ n + 1 is eq 8 }}|{{ (n + 1) is eq 8 }}|{{ n is eq 7 and 'y' }}|{{ not n is eq 7 }}|{{ 'x' if n is odd else 'y' }}
{{ n is even is true }}
{{ range(3) | list }}|{{ range(1, 4) | list }}|{{ range(5, 0, -2) | list }}|{{ range(0) | list }}|{{ range(3)[-1] }}|{% for i in range(2, 4) %}{{ i }}{% endfor %}
{{ range(1.5) }}
{{ dict(a=1, b='x') }}|{{ dict({'q': 1}, z=2) }}
{{ raise_exception('No: ' + s) }}
{{ strftime_now('%d %b %Y %H:%M:%S %A %B %y %j %p %I %% %F %T %-d %-m %e') }}
{% set x = 1 %}{% if t %}{% set x = 2 %}{% endif %}{{ x }}|{% for i in [1] %}{% set x = 3 %}{{ x }}{% endfor %}{{ x }}
{% set a, b = 1, 2 %}{{ a }}{{ b }}|{% set (a, b) = [3, 4] %}{{ a }}{{ b }}|{% set c = 1, 2 %}{{ c }}|{% set x %}a{{ n }}b{% endset %}{{ x }}|{% set x | upper | trim %} q {% endset %}{{ x }}|{{ x | length }}
{% set a, b = [1] %}
{% set ns = namespace(a=1) %}{% for i in l %}{% set ns.a = ns.a + i %}{% endfor %}{{ ns.a }}|{% set ns.b = 'x' %}{{ ns.b }}|{{ ns.c is defined }}|{% set m = namespace({'k': 1}) %}{{ m.k }}
{% set d.b = 2 %}{{ d.b }}
{% for i in l %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.depth }};{% endfor %}
{% for i in l %}{{ loop.previtem }}<{{ i }}>{{ loop.nextitem }};{% endfor %}|{% for i in l %}{{ loop.cycle('a', 'b') }}{% endfor %}|{% for i in [1, 1, 2, 2, 1] %}{{ loop.changed(i) }};{% endfor %}
{% for i in l if i > 1 %}{{ i }}:{{ loop.index }}/{{ loop.length }};{% else %}none{% endfor %}|{% for i in l if i > 9 %}x{% else %}none{% endfor %}|{% for i in empty %}x{% else %}E{% endfor %}|{% for i in missing %}x{% else %}M{% endfor %}
{% for i in nil %}{% endfor %}
{% for i in n %}{% endfor %}
{% for a, b in [[1, 2], [3, 4]] %}{{ a + b }};{% endfor %}|{% for (a, b), c in [((1, 2), 3)] %}{{ a }}{{ b }}{{ c }}{% endfor %}|{% for c in u %}{{ c }}.{% endfor %}|{% for i in 1, 2 %}{{ i }}{% endfor %}
{% for i in range(5) %}{% if i == 1 %}{% continue %}{% elif i == 3 %}{% break %}{% endif %}{{ i }}{% endfor %}|{{ i is defined }}
{% for i in [1, 2] %}{% for j in [1, 2] %}{% if j == 2 %}{% break %}{% endif %}{{ i }}{{ j }}{{ loop.depth }}{% endfor %};{% endfor %}
{% for x in [[1, [2]], [3]] recursive %}{% if x is iterable %}({{ loop(x) }}){% else %}{{ x }}@{{ loop.depth }}{% endif %}{% endfor %}
{% if n == 7 %}a{% elif t %}b{% else %}c{% endif %}|{% if e %}a{% elif no %}b{% else %}c{% endif %}|{% if missing %}a{% endif %}|{% if [[]] %}a{% endif %}|{% if 0.0 %}a{% else %}b{% endif %}
{% macro m(a, b=2, c='x') %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ m(1) }}|{{ m(1, 3) }}|{{ m(c=5, a=4) }}|{{ m() }}|{{ m(1) | upper }}
{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, 2) }}
{% macro m(a) %}{{ a }}{% endmacro %}{{ m(z=2) }}
{% macro fact(n) %}{% if n > 1 %}{{ n }}*{{ fact(n - 1) }}{% else %}1{% endif %}{% endmacro %}{{ fact(5) }}
{% set q = 1 %}{% macro m() %}{{ q }}{{ s }}{% set q = 2 %}{{ q }}{% endmacro %}{{ m() }}{{ q }}
{% macro m(x, y=x) %}{{ x }}{{ y }}{% endmacro %}{{ m(1) }}
{% with a = 1, b = n %}{{ a }}{{ b }}{% set a = 5 %}{{ a }}{% endwith %}{{ a is defined }}
{% filter upper %}a{{ s }}{% endfilter %}|{% filter trim | upper %} q {% endfilter %}
{% raw %}{{ x }}{% if %}{% endraw %}|{%- raw -%}  {{ y }}  {%- endraw -%}  z
a {# comment #} b{#- c -#} d{# {{ x }} #}
  {% if t %}\n  x\n  {% endif %}\ny
{% if t %}\n\nx{% endif %}\n\ny
a\n   {%- if t %}  \n  b  {%- endif -%}  \n c
a\n   {%+ if t %}b{% endif +%}\nc
  {{ n }}\n  {{- n -}}  \n  x
x  {% set y = 1 %}  z
   {# c #}\n   {# d #} e\n{# f -#}   \n g
{% for i in l %}\n  - {{ i }}\n{% endfor %}\nend\n
{% if t -%}  a  {%- endif %}|{%- if t %} b {% endif -%}|
line1\r\nline2\r{% if t %}\r\nx{% endif %}\r\n
{{ {'a': {'b': 1}}['a']['b'] }}|{{ {'a': {}} }}|{{ [{'x': '}}'}] }}|{{ '%}' }}|{{ "{{" }}
{{ s | replace('World', 'x') | length }}|{{ (s ~ '!') | upper }}|{{ -l | first }}
{{ 'a'.b is defined }}|{{ l.zz is defined }}|{{ s.upper is defined }}
{{ d | items | list }}|{{ (d | items | list)[0][1] }}
{{ u | tojson }}|{{ u | upper }}|{{ [u] }}
{{ (n, f, s)[1] }}|{{ 5 if n > 3 and f < 3 or no }}|{{ (1 if no) or 'x' }}|{{ [1 if t, 2] }}
{% generation %}x{{ n }}{% endgeneration %}|{% generation %}\n  y\n{% endgeneration %}
{{ x
{{ 1 + }}
{% if %}{% endif %}
{% if t %}x
{% endif %}
{% for in l %}{% endfor %}
{% for x l %}{% endfor %}
{% set %}
{% unknown %}
{{ s | nofilter }}
{{ s is notest }}
{{ 'abc }}
{{ (1 }}
{{ 1) }}
{{ a b }}
{% break %}
{# open
{{ @ }}
{{ n // 0 }}
{{ n % 0 }}
{{ n / 0 }}
{{ 'a' is odd }}
{{ -s }}
{{ n() }}
{{ s.upper(1) }}
{{ loop }}|{{ loop is defined }}
{{ true and True }}{{ none is none and None is none }}{{ False or false }}
{{ '' if not s else s[:5] }}{{ s[6:] if s | length > 5 }}
{{ messages | length if messages is defined else 0 }}
{{ d.a.1.x is none }}|{{ d['a'][1]['x'] }}|{{ d.C }}|{{ d['zz'] }}|{{ d[1] is defined }}
{%- set l2 = l + [4] -%}{{ l2 | length }}{{ l | length }}{%- set l2 = l2 + [5] %}{{ l2[-1] }}
{% set ns = namespace(x=[]) %}{% for i in range(3) %}{% set ns.x = ns.x + [i * i] %}{% endfor %}{{ ns.x }}
{{ "a" if true else "b" ~ "c" }}|{{ ("a" if false else "b") ~ "c" }}
{{ [1, 2, 3] | map('string') | join('+') }}|{{ w | map('lower') | unique | join }}
{{ not missing }}|{{ missing == '' }}|{{ missing ~ '' == '' }}|{{ missing != nil }}
{{ p | map(attribute='k') | select('equalto', 'x') | list | length > 0 }}
{{ '%s' | length }}|{{ '{}' | length }}|{{ 1 == true }}|{{ '1' == 1 }}|{{ 'a' == "a" }}
"""


def main():
    env = environment()
    cases = []
    for line in TEMPLATES.strip("\n").split("\n"):
        # Outside of tags \n, \r and \t stand for the characters.
        parts, depth = [], 0
        i = 0
        while i < len(line):
            if line[i : i + 2] in ("{{", "{%", "{#"):
                depth = 1
            if line[i : i + 2] in ("}}", "%}", "#}"):
                depth = 0
            if depth == 0 and line[i : i + 2] in ("\\n", "\\r"):
                parts.append({"n": "\n", "r": "\r"}[line[i + 1]])
                i += 2
                continue
            parts.append(line[i])
            i += 1
        source = "".join(parts)
        try:
            cases.append({"template": source, "want": env.from_string(source).render(**VARS)})
        except Exception as e:  # any failure: the Go code must fail too
            cases.append({"template": source, "error": type(e).__name__ + ": " + str(e)})
    with open(os.path.join(HERE, "cases.json"), "w", encoding="utf-8") as f:
        json.dump({"vars": VARS, "cases": cases}, f, ensure_ascii=False, indent=1)
        f.write("\n")
    print(len(cases), sum("error" in c for c in cases))


main()
