#!/usr/bin/env python3
"""Drives a kvlend gateway with the official OpenAI SDK for Python.

usage: python_sdk.py BASE_URL MODEL [API_KEY]

BASE_URL is the server's address with /v1, such as http://127.0.0.1:8000/v1.
Needs: pip install openai. Exits with 0 when every check holds. The model may
be any: checks compare answers with each other, never with a fixed text.
"""

import sys

import openai
from openai import OpenAI

LIMIT = 24


def main(base_url: str, model: str, key: str) -> None:
    client = OpenAI(base_url=base_url, api_key=key, max_retries=0, timeout=120)
    for check in (models, chat, chat_stream, chat_choices, completions, completion_stream,
                  token_prompts, logprobs, stop_string, receipt, errors, abandoned_stream):
        check(client, model)
        print(f"ok {check.__name__}")


def ask(client, model, **more):
    more.setdefault("messages", [{"role": "system", "content": "Be brief."},
                                 {"role": "user", "content": "Tell me about bees."}])
    return client.chat.completions.create(model=model, max_completion_tokens=LIMIT, seed=1, temperature=0.8, **more)


def check_usage(usage, least_prompt=1, choices=1):
    assert usage.prompt_tokens >= least_prompt, usage
    assert 1 <= usage.completion_tokens <= LIMIT * choices, usage
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens, usage
    assert 0 <= usage.prompt_tokens_details.cached_tokens <= usage.prompt_tokens, usage


def models(client, model):
    names = [m.id for m in client.models.list()]
    assert model in names, names
    card = client.models.retrieve(model)
    assert card.id == model and card.object == "model" and card.max_model_len > LIMIT, card


def chat(client, model):
    r = ask(client, model)
    assert r.object == "chat.completion" and r.model == model and r.id.startswith("chatcmpl-"), r
    assert r.choices[0].message.role == "assistant", r
    assert r.choices[0].finish_reason in ("stop", "length"), r
    check_usage(r.usage)
    again = ask(client, model)
    assert again.choices[0].message.content == r.choices[0].message.content, "equal seeds, different answers"
    assert again.id != r.id


def gather(stream):
    """Returns texts and finish reasons by choice, and the usage, which must come last."""
    texts, finish, usage, roles = {}, {}, None, {}
    for chunk in stream:
        assert usage is None, "a chunk came after the usage"
        if chunk.usage is not None:
            assert chunk.choices == [], chunk
            usage = chunk.usage
        for c in chunk.choices:
            assert c.index not in finish, "a chunk came after the choice's end"
            delta = c.delta.content if hasattr(c, "delta") else c.text
            texts[c.index] = texts.get(c.index, "") + (delta or "")
            if hasattr(c, "delta") and c.delta.role:
                roles[c.index] = c.delta.role
            if c.finish_reason:
                finish[c.index] = c.finish_reason
    assert set(finish) == set(texts), (finish, texts)
    return texts, finish, usage, roles


def chat_stream(client, model):
    whole = ask(client, model)
    texts, finish, usage, roles = gather(ask(client, model, stream=True, stream_options={"include_usage": True}))
    assert texts == {0: whole.choices[0].message.content}, (texts, whole)
    assert finish == {0: whole.choices[0].finish_reason} and roles == {0: "assistant"}
    check_usage(usage)
    assert usage.completion_tokens == whole.usage.completion_tokens
    _, _, usage, _ = gather(ask(client, model, stream=True))
    assert usage is None, "usage came without being asked for"


def chat_choices(client, model):
    whole = ask(client, model, n=3)
    assert [c.index for c in whole.choices] == [0, 1, 2]
    check_usage(whole.usage, choices=3)
    texts, _, _, _ = gather(ask(client, model, n=3, stream=True))
    assert texts == {c.index: c.message.content for c in whole.choices}
    assert texts[0] == ask(client, model).choices[0].message.content, "the first choice depends on n"


def completions(client, model):
    r = client.completions.create(model=model, prompt=["Once upon a time", "One"], max_tokens=LIMIT, temperature=0, echo=True)
    assert r.object == "text_completion" and len(r.choices) == 2, r
    assert r.choices[0].text.startswith("Once upon a time") and r.choices[1].text.startswith("One"), r
    check_usage(r.usage, choices=2)


def completion_stream(client, model):
    args = dict(model=model, prompt="Once upon a time", max_tokens=LIMIT, temperature=0)
    whole = client.completions.create(**args)
    texts, finish, usage, _ = gather(client.completions.create(stream=True, stream_options={"include_usage": True}, **args))
    assert texts == {0: whole.choices[0].text} and finish == {0: whole.choices[0].finish_reason}
    assert usage.completion_tokens == whole.usage.completion_tokens


def token_prompts(client, model):
    args = dict(model=model, max_tokens=LIMIT, temperature=0)
    one = client.completions.create(prompt=[65, 66, 67], **args)
    many = client.completions.create(prompt=[[65, 66, 67], [70]], **args)
    assert one.usage.prompt_tokens == 3 and many.usage.prompt_tokens == 4
    assert one.choices[0].text == many.choices[0].text, "an answer depends on its neighbours"


def logprobs(client, model):
    r = ask(client, model, logprobs=True, top_logprobs=3)
    tokens = r.choices[0].logprobs.content
    assert len(tokens) == r.usage.completion_tokens, r
    for t in tokens:
        assert t.logprob <= 0 and len(t.top_logprobs) == 3, t
        best = [x.logprob for x in t.top_logprobs]
        assert best == sorted(best, reverse=True) and best[0] >= t.logprob - 1e-6, t
    legacy = client.completions.create(model=model, prompt="x", max_tokens=LIMIT, temperature=0, logprobs=2)
    lp = legacy.choices[0].logprobs
    n = legacy.usage.completion_tokens
    assert len(lp.tokens) == len(lp.token_logprobs) == len(lp.top_logprobs) == len(lp.text_offset) == n, lp


def stop_string(client, model):
    args = dict(model=model, prompt="Once upon a time", max_tokens=LIMIT, temperature=0)
    text = client.completions.create(**args).choices[0].text
    middle = text[len(text) // 2:len(text) // 2 + 2]
    if not middle or "\ufffd" in middle:
        print("   skipped: the model's answer has no text to stop at")
        return
    r = client.completions.create(stop=middle, **args)
    assert r.choices[0].text == text[:text.index(middle)], (text, middle, r)
    assert r.choices[0].finish_reason == "stop"
    texts, finish, _, _ = gather(client.completions.create(stop=middle, stream=True, **args))
    assert texts == {0: r.choices[0].text} and finish == {0: "stop"}


def receipt(client, model):
    a = ask(client, model, extra_body={"kvlend": True}).model_extra["kvlend"]
    b = ask(client, model, extra_body={"kvlend": True}).model_extra["kvlend"]
    assert len(a["logits_hash"]) == 16 and a["logits_hash"] == b["logits_hash"], (a, b)
    assert a["token_ids"] == b["token_ids"] and len(a["token_ids"]) <= LIMIT


def expect(kind, status, call, code=None, param=None):
    try:
        call()
    except kind as e:
        assert e.status_code == status, e
        assert code is None or e.code == code, (e.code, e.body)
        assert param is None or e.param == param, (e.param, e.body)
        assert e.body["message"] and e.body["type"], e.body
        return e
    raise AssertionError(f"no {kind.__name__}")


def errors(client, model):
    bad, missing = openai.BadRequestError, openai.NotFoundError
    expect(missing, 404, lambda: ask(client, "no-such-model"), "model_not_found", "model")
    expect(missing, 404, lambda: client.models.retrieve("no-such-model"), "model_not_found")
    expect(bad, 400, lambda: ask(client, model, messages=[]), None, "messages")
    expect(bad, 400, lambda: ask(client, model, top_p=7), "invalid_value", "top_p")
    expect(bad, 400, lambda: ask(client, model, stream=True, presence_penalty=9), "invalid_value", "presence_penalty")
    for n in (-1, 0, 10**12):
        expect(bad, 400, lambda: client.completions.create(model=model, prompt="x", max_tokens=n), None, "max_tokens")
    most = client.models.retrieve(model).max_model_len
    e = expect(bad, 400, lambda: client.completions.create(model=model, prompt="x", max_tokens=most + 1),
               "context_length_exceeded", "prompt")
    assert str(most) in e.body["message"], e.body


def abandoned_stream(client, model):
    """A stream that is closed early does no harm to the next request."""
    stream = ask(client, model, stream=True)
    next(iter(stream))
    stream.close()
    check_usage(ask(client, model).usage)


if __name__ == "__main__":
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__)
    main(sys.argv[1], sys.argv[2], sys.argv[3] if len(sys.argv) == 4 else "none")
