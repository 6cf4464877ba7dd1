#!/usr/bin/env python3
"""Writes oracle.json.gz: what Jinja2 makes of the templates on many inputs.

Needs `pip install jinja2==3.1.6`. The environment is the one that Hugging
Face's transformers sets up for chat templates.
"""
import datetime
import gzip
import json
import os
import random

from jinja2.exceptions import TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

HERE = os.path.dirname(os.path.abspath(__file__))
RNG = random.Random(7)
NOW = datetime.datetime(2025, 3, 4, 5, 6, 7)


class Generation(Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        from jinja2 import nodes

        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller):
        return caller()


def raise_exception(message):
    raise TemplateError(message)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def environment():
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda f: NOW.strftime(f)
    return env


TEXTS = [
    "Hi", "", " padded \n", "two\nlines\n", "Größe 日本語 👩‍👩‍👧 é", "it's \"quoted\" \\ back", "<|im_start|>user\nhack<|im_end|>",
    "<think>\nsome thought\n</think>\n\nan answer", "<think></think>x", "a</think>b</think>c", "<tool_response>\n42\n</tool_response>",
    "{{ not_a_template }}", "tab\tnbsp\u00a0line\u2028sep\u0085 ctl\x01\x7f", "<b>&amp;</b>",
]
SCHEMAS = [
    {"type": "function", "function": {"name": "weather", "description": "Tells the weather.\nOr not.", "parameters": {"type": "object", "properties": {"city": {"type": "string", "description": "Town's name"}, "unit": {"type": "string", "enum": ["°C", "F", 1, None]}}, "required": ["city"]}}},
    {"type": "function", "function": {"name": "add", "parameters": {"properties": {"b": {"type": ["integer", "null"]}, "a": {"type": "array", "items": {"type": "number"}}, "z": {}}, "type": "object"}, "strict": True, "limit": 18446744073709551615, "eps": 1e-07, "big": 1e+22, "half": 0.5, "none": None}},
    {"function": {"name": "noop"}, "type": "function"},
]
CALLS = [
    {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": {"city": "Zürich", "n": [1, 2.0, True, None, {"x": "'"}]}}},
    {"type": "function", "function": {"name": "add", "arguments": {}}},
]


def message(role):
    m = {"role": role, "content": RNG.choice(TEXTS)}
    if role == "assistant":
        kind = RNG.random()
        if kind < 0.25:
            m["tool_calls"] = RNG.sample(CALLS, RNG.randint(1, 2))
            m["content"] = RNG.choice([None, "", "Calling."])
        elif kind < 0.4:
            m["reasoning_content"] = RNG.choice(TEXTS)
    if role == "tool":
        m["tool_call_id"] = "c1"
    if role == "user" and RNG.random() < 0.1:
        m["name"] = "Ann"
    if role == "user" and RNG.random() < 0.06:
        m["content"] = [{"type": "text", "text": "see"}, {"type": "image", "image": "x"}]
    return m


def conversation():
    roles = ["system"] if RNG.random() < 0.4 else []
    if RNG.random() < 0.7:
        for _ in range(RNG.randint(1, 4)):
            roles += ["user", "assistant"] if RNG.random() < 0.7 else ["user", "assistant", "tool", "tool", "assistant"]
        roles = roles[: len(roles) - RNG.randint(0, 1)]
    else:
        roles += [RNG.choice(["user", "assistant", "tool", "system"]) for _ in range(RNG.randint(1, 6))]
    return [message(r) for r in roles]


def inputs():
    for _ in range(220):
        case = {"messages": conversation(), "add_generation_prompt": RNG.random() < 0.6, "tools": None, "extra": {}}
        if RNG.random() < 0.3:
            case["tools"] = RNG.sample(SCHEMAS, RNG.randint(1, 3))
        if RNG.random() < 0.4:
            case["extra"] = RNG.choice([{"enable_thinking": False}, {"enable_thinking": True}, {"tools_in_user_message": False}, {"date_string": "1 May 2025"}])
        yield case


def main():
    env = environment()
    names = sorted(f for f in os.listdir(os.path.join(HERE, "templates")) if f.endswith(".jinja"))
    templates = {n: env.from_string(open(os.path.join(HERE, "templates", n), encoding="utf-8").read()) for n in names}
    cases, errors = [], 0
    for case in inputs():
        case["want"] = {}
        for n in names:
            try:
                case["want"][n] = templates[n].render(
                    messages=case["messages"], tools=case["tools"], documents=None, add_generation_prompt=case["add_generation_prompt"],
                    bos_token="<s>", eos_token="</s>", **case["extra"])
            except TemplateError as e:
                case["want"][n], errors = {"error": str(e)}, errors + 1
            except TypeError as e:  # such as a string and None added
                case["want"][n], errors = {"error": ""}, errors + 1
        cases.append(case)
    data = json.dumps(cases, ensure_ascii=False, separators=(",", ":")).encode()
    with open(os.path.join(HERE, "oracle.json.gz"), "wb") as f:
        f.write(gzip.compress(data, 9, mtime=0))
    print(len(cases), "inputs", len(names), "templates", errors, "errors")


if __name__ == "__main__":
    main()
