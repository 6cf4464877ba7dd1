#!/usr/bin/env python3
"""Writes oracle.json.gz: what the Rust tokenizers library makes of many strings.

Needs `pip install tokenizers==0.22.1`. It trains small tokenizers in the
image of real ones (same components and patterns, small vocabularies) and
records their tokenizer.json, the ids of every string and the decoded texts.
The Go tests compare themselves with the file and need no Python.
"""
import gzip
import json
import os
import random
import unicodedata

from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, trainers

HERE = os.path.dirname(os.path.abspath(__file__))
RNG = random.Random(20240607)

LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN2 = LLAMA3.replace("{1,3}", "")
DEEPSEEK = r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

SENTENCES = [
    "The quick brown fox jumps over the lazy dog, doesn't it? They're sure we'll see I'm right; you'd say he's WRONG.",
    "Memory that one model does not need is lent to another, block by block, and given back in constant time.",
    "def lend(blocks: list[int], *, deadline_ms=1_000) -> bool:\n    return all(b % 16 == 0 for b in blocks)  # 42.5%",
    "{\"role\": \"user\", \"content\": \"Hello\\nworld\", \"n\": [1, 2.5, -3e10, null, true]}",
    "https://example.org/path/to?q=a+b&x=%20#frag  user@example.com  C:\\Temp\\file.txt",
    "Größe, Straße, naïve café, coöperate, Ångström, İstanbul, ılık, œuvre, ĲSSEL, smörgåsbord",
    "Съешь же ещё этих мягких французских булок, да выпей чаю. Їжак, ґанок, ўсё.",
    "Ξεσκεπάζω την ψυχοφθόρα βδελυγμία. ΟΔΟΣ Ὀδυσσεύς",
    "敏捷的棕色狐狸跳过了懒狗。内存可以借给别的模型！「引用」，数字１２３。",
    "いろはにほへと ちりぬるを カタカナ ﾊﾝｶｸ ㌔ ㍿ 令和㋿",
    "다람쥐 헌 쳇바퀴에 타고파. 한글 자모 ㄱㄴㄷ",
    "نص حكيم له سر قاطع وذو شأن عظيم، مكتوب على ثوب أخضر ١٢٣٤",
    "דג סקרן שט בים מאוכזב ולפתע מצא חברה שָׁלוֹם",
    "ऋषियों को सताने वाले दुष्ट राक्षसों के राजा रावण का सर्वनाश १२३",
    "เป็นมนุษย์สุดประเสริฐเลิศคุณค่า กว่าบรรดาฝูงสัตว์เดรัจฉาน ๑๒๓",
    "Tiếng Việt có nhiều dấu: ắ ằ ẳ ẵ ặ ế ề ể ễ ệ ố ồ ổ ỗ ộ",
    "👩‍👩‍👧‍👦 👍🏽 🇩🇪🇯🇵 🏴󠁧󠁢󠁥󠁮󠁧󠁿 ❤️‍🔥 1️⃣ #️⃣ 🧑🏿‍🚀 ☕︎ ☕️ 😀😃😄",
    "∀x∈ℝ: ⌈x⌉ = −⌊−x⌋, α ∧ ¬β = ¬(¬α ∨ β), ℵ₀ ½ ¼ Ⅷ ⑨ x² H₂O €£¥₿",
    "\tindented\twith\ttabs\n\n\nthree newlines\r\nwindows\rmac\u2028line\u2029para\u0085next   trailing   ",
]

# First and last characters of scripts and other neighbourhoods.
RANGES = [
    (0x21, 0x7E), (0xA1, 0xFF), (0x100, 0x24F), (0x250, 0x2AF), (0x300, 0x36F), (0x370, 0x3FF), (0x400, 0x52F),
    (0x531, 0x58F), (0x591, 0x5F4), (0x600, 0x6FF), (0x700, 0x74F), (0x780, 0x7B1), (0x7C0, 0x7FF), (0x840, 0x85E),
    (0x8A0, 0x8FF), (0x900, 0x97F), (0x980, 0x9FE), (0xA01, 0xA76), (0xA81, 0xAFF), (0xB01, 0xB77), (0xB82, 0xBFA),
    (0xC00, 0xC7F), (0xC80, 0xCF3), (0xD00, 0xD7F), (0xD81, 0xDF4), (0xE01, 0xE5B), (0xE81, 0xEDF), (0xF00, 0xFDA),
    (0x1000, 0x109F), (0x10A0, 0x10FF), (0x1100, 0x11FF), (0x1200, 0x139F), (0x13A0, 0x13FD), (0x1400, 0x167F),
    (0x1680, 0x169C), (0x16A0, 0x16F8), (0x1700, 0x1773), (0x1780, 0x17F9), (0x1800, 0x18AA), (0x1900, 0x19DF),
    (0x1A00, 0x1AFF), (0x1B00, 0x1BFF), (0x1C00, 0x1CFF), (0x1D00, 0x1DFF), (0x1E00, 0x1FFF), (0x2000, 0x206F),
    (0x2070, 0x20FF), (0x2100, 0x218F), (0x2190, 0x23FF), (0x2400, 0x245F), (0x2460, 0x24FF), (0x2500, 0x27BF),
    (0x2800, 0x28FF), (0x2C00, 0x2DFF), (0x2E00, 0x2E7F), (0x2E80, 0x2FDF), (0x3000, 0x303F), (0x3041, 0x30FF),
    (0x3105, 0x31BF), (0x3200, 0x33FF), (0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xA000, 0xA4C6), (0xA4D0, 0xA6FF),
    (0xA700, 0xA7FF), (0xA800, 0xA9FF), (0xAA00, 0xABFF), (0xAC00, 0xD7A3), (0xD7B0, 0xD7FB), (0xE000, 0xE0FF),
    (0xF900, 0xFAFF), (0xFB00, 0xFDFF), (0xFE00, 0xFE6F), (0xFE70, 0xFEFF), (0xFF01, 0xFFEE), (0xFFF0, 0xFFFF),
    (0x10000, 0x101FF), (0x10280, 0x105FF), (0x10600, 0x10FFF), (0x11000, 0x11FFF), (0x12000, 0x1254F),
    (0x13000, 0x1345F), (0x16800, 0x16FFF), (0x17000, 0x18DFF), (0x1B000, 0x1BCFF), (0x1CF00, 0x1D24F),
    (0x1D400, 0x1D7FF), (0x1DF00, 0x1E9FF), (0x1EE00, 0x1F0FF), (0x1F100, 0x1F2FF), (0x1F300, 0x1FAFF),
    (0x1FB00, 0x1FBFF), (0x20000, 0x2A6DF), (0x2F800, 0x2FA1D), (0x30000, 0x323AF), (0xE0001, 0xE01EF),
    (0x10FF00, 0x10FFFF),
]
SPACES = " \t\n\r\x0b\x0c\u0085\u00a0\u1680\u2000\u2003\u2009\u2028\u2029\u202f\u205f\u3000"
SPECIALS = [
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>", "<s>", "</s>", "<unk>", "<pad>", "<mask>",
    "<|begin_of_text|>", "<|eot_id|>", "<|im_start", "im_end|>", "<|im_start|><|im_end|>", "<|<|im_end|>|>", "<0x41>", "word",
    "Lower", "caf\u00e9",
]


def char(lo, hi):
    while True:
        c = RNG.randint(lo, hi)
        if not 0xD800 <= c <= 0xDFFF:
            return chr(c)


def words(lo, hi):
    return " ".join("".join(char(lo, hi) for _ in range(RNG.randint(1, 7))) for _ in range(RNG.randint(1, 3)))


def strings():
    out = ["", " ", "  ", "a", " a", "a ", "\n", "\x00", "\ufeff", "\ufffd", "\u2581", "\u2581\u2581a", "a\u2581b", "##a", "a</w>"]
    out += SENTENCES
    for s in SENTENCES:
        out += s.split(" ")[:12]
        out += [unicodedata.normalize(f, s) for f in ("NFC", "NFD", "NFKC", "NFKD")]
        out += [s.upper(), s.lower(), s[::-1], s.replace(" ", "  "), s.replace(" ", "\n"), s.replace(" ", "")]
    for lo, hi in RANGES:
        for _ in range(14):
            out.append(words(lo, hi))
    for _ in range(900):  # any code points at all
        out.append("".join(char(0, 0x10FFFF) for _ in range(RNG.randint(1, 4))))
    for _ in range(350):  # scripts mixed
        out.append("".join(char(*RNG.choice(RANGES)) for _ in range(RNG.randint(2, 10))))
    for c in list(range(0x20)) + list(range(0x7F, 0xA1)) + [0xAD, 0x200B, 0x200C, 0x200D, 0x200E, 0x202E, 0x2060, 0x2066, 0xFEFF, 0xFFFC]:
        out += [chr(c), "a" + chr(c) + "b", " " + chr(c) + chr(c) + " x"]
    for _ in range(300):  # white space
        out.append("".join(RNG.choice(SPACES + "   \n\nab1.") for _ in range(RNG.randint(2, 14))))
    for _ in range(120):  # newlines
        out.append("".join(RNG.choice(["\n", "\r\n", "\r", "x", ".", " ", "\n\n"]) for _ in range(RNG.randint(2, 9))))
    for n in (63, 64, 65, 200, 1000):  # long words
        out += ["a" * n, "".join(RNG.choice("etaoin") for _ in range(n)), "é" * n, "日" * n, "7" * n, "." * n, " " * n, "\n" * n]
    out += ["".join(RNG.choice("etaoinshrdlu") for _ in range(3000)), "ab" * 3000]
    for _ in range(550):  # special tokens
        parts = [RNG.choice(SPECIALS + SPECIALS + ["a", " ", "  ", "\n", "é", "x1", "_", "the "]) for _ in range(RNG.randint(1, 6))]
        out.append("".join(parts))
    for _ in range(300):  # contractions
        c = RNG.choice(["s", "S", "t", "T", "re", "RE", "rE", "ve", "VE", "m", "M", "ll", "LL", "lL", "d", "D", "\u017f", "l", "r", "x", ""])
        out.append(RNG.choice(["I", "it", "1", "", " ", "é", ".", "\n"]) + RNG.choice("''''\u2019") + c + RNG.choice(["", " ", "s", "!", "1", "\u017f", "\n"]))
    marks = [c for c in range(0x300, 0x370)] + [0x5B0, 0x5C1, 0x64B, 0x651, 0x93C, 0x94D, 0x1DC0, 0x20D0, 0x3099, 0x309A, 0xFE20]
    newer = [0x897, 0x898, 0x8CA, 0x1AC1, 0x1DF6, 0x1DFA, 0x10EFD, 0x11F41, 0x1E08F, 0x1E4EC]
    for n in [1, 2, 2, 3, 3, 3, 4, 5, 6] * 35 + [29, 30, 31, 32, 40, 64]:  # marks out of order
        base = RNG.choice("aeouAEOUc\u00e7\u0627\u05e9\u0915\u304b\u1100\uac00\u1e9b\u212b \u0344\u0958\u2adc")
        out.append(base + "".join(chr(RNG.choice(marks if RNG.random() < 0.9 else newer)) for _ in range(n)))
    for _ in range(80):  # Hangul in pieces
        out.append("".join(chr(RNG.choice([RNG.randint(0x1100, 0x1112), RNG.randint(0x1161, 0x1175), RNG.randint(0x11A8, 0x11C2), RNG.randint(0xAC00, 0xD7A3)])) for _ in range(RNG.randint(2, 6))))
    for c in list(range(0xFB00, 0xFB07)) + [0x32FF, 0x3250, 0xA7F2, 0x10781, 0x1FBF5, 0x11938, 0x1E030, 0x1133, 0x130, 0x1E9E, 0x3A3, 0x1C89, 0xA7CB, 0x10D50]:
        out.append("x" + chr(c) + "\u0301y")
    for _ in range(150):  # numbers
        out.append(RNG.choice(["", " ", "-", "$", "v"]) + "".join(RNG.choice("0123456789.,_ \u0663\u0967\u2460\u00b2\u2167") for _ in range(RNG.randint(1, 12))))
    seen, unique = set(), []
    for s in out:
        if s not in seen:
            seen.add(s)
            unique.append(s)
    return unique


def train(pre, size, alphabet=(), **kwargs):
    prefix = {k: v for k, v in kwargs.items() if k in ("continuing_subword_prefix", "end_of_word_suffix")}
    tok = Tokenizer(models.BPE(**prefix))
    tok.pre_tokenizer = pre
    trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=list(alphabet), show_progress=False, special_tokens=[], **prefix)
    tok.train_from_iterator(SENTENCES * 3, trainer)
    model = json.loads(tok.to_str())["model"]
    merges = [tuple(m) if isinstance(m, list) else tuple(m.split(" ")) for m in model["merges"]]
    return model["vocab"], merges


def added(vocab_size, spec):
    out = []
    for i, (content, flags) in enumerate(spec):
        t = dict(id=vocab_size + i, content=content, single_word=False, lstrip=False, rstrip=False, normalized=False, special=True)
        t.update(flags)
        out.append(t)
    return out


def document(vocab, merges, *, normalizer=None, pre=None, post=None, decoder=None, tokens=(), string_merges=False, **model):
    base = dict(type="BPE", dropout=None, unk_token=None, continuing_subword_prefix=None, end_of_word_suffix=None, fuse_unk=False, byte_fallback=False, ignore_merges=False)
    base.update(model)
    base["vocab"] = vocab
    base["merges"] = [" ".join(m) if string_merges else list(m) for m in merges]
    for t in tokens:
        if t["content"] in vocab:
            t["id"] = vocab[t["content"]]
    return dict(version="1.0", truncation=None, padding=None, added_tokens=list(tokens), normalizer=normalizer, pre_tokenizer=pre, post_processor=post, decoder=decoder, model=base)


def split(regex, behavior="Isolated", invert=False):
    return dict(type="Split", pattern={"Regex": regex}, behavior=behavior, invert=invert)


def seq(key, *parts):
    return {"type": "Sequence", key: list(parts)}


def byte_level(prefix=False, regex=False):
    return dict(type="ByteLevel", add_prefix_space=prefix, trim_offsets=True, use_regex=regex)


def template(single, tokens):
    pieces = [{"Sequence": {"id": "A", "type_id": 0}} if p == "$A" else {"SpecialToken": {"id": p, "type_id": 0}} for p in single]
    special = {t: {"id": t, "ids": [i], "tokens": [t]} for t, i in tokens.items()}
    return dict(type="TemplateProcessing", single=pieces, pair=pieces + [{"Sequence": {"id": "B", "type_id": 1}}], special_tokens=special)


def normalizer(kind, **fields):
    return dict(type=kind, **fields)


PREPEND = normalizer("Prepend", prepend="\u2581")
SPACE = normalizer("Replace", pattern={"String": " "}, content="\u2581")
UNSPACE = dict(type="Replace", pattern={"String": "\u2581"}, content=" ")
LEGACY_DECODER = seq("decoders", UNSPACE, dict(type="ByteFallback"), dict(type="Fuse"), dict(type="Strip", content=" ", start=1, stop=0))


def metaspace(scheme, split=True):
    return dict(type="Metaspace", replacement="\u2581", prepend_scheme=scheme, split=split)


def sentencepiece(size, with_bytes, alphabet=""):
    vocab, merges = train(pre_tokenizers.Metaspace(prepend_scheme="always"), size, alphabet)
    order = sorted(vocab, key=vocab.get)
    if alphabet:  # leave rare characters to byte fallback or <unk>
        order = [t for t in order if len(t) > 1 or ord(t) < 0x250 or t == "\u2581"]
        keep = set(order)
        while True:
            merges = [m for m in merges if m[0] in keep and m[1] in keep]
            made = {m[0] + m[1] for m in merges} | {t for t in order if len(t) == 1}
            if made == keep:
                break
            order = [t for t in order if t in made]
            keep = set(order)
    names = ["<unk>", "<s>", "</s>"] + (["<0x%02X>" % b for b in range(256)] if with_bytes else [])
    return {t: i for i, t in enumerate(names + order)}, merges


def tokenizers():
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    base = pre_tokenizers.Sequence([pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)])
    vocab, merges = train(base, 1400, alphabet)
    chat = [("<|endoftext|>", {}), ("<|im_start|>", {}), ("<|im_end|>", {}), ("<think>", {"special": False}), ("</think>", {"special": False})]
    split_bytes = lambda regex: seq("pretokenizers", split(regex), byte_level())
    out = {}
    out["qwen3"] = document(vocab, merges, normalizer=normalizer("NFC"), pre=split_bytes(QWEN2), post=byte_level(), decoder=byte_level(), tokens=added(len(vocab), chat))
    bot = {"<|begin_of_text|>": len(vocab)}
    skip = len(merges) // 3  # tokens that no merge makes any more
    out["llama3"] = document(
        vocab, merges[:-skip], pre=split_bytes(LLAMA3), decoder=byte_level(), ignore_merges=True,
        post=seq("processors", byte_level(), template(["<|begin_of_text|>", "$A"], bot)),
        tokens=added(len(vocab), [("<|begin_of_text|>", {}), ("<|eot_id|>", {})]),
    )
    sp, spm = sentencepiece(1500, True, alphabet="abc")
    bos = {"<s>": 1}
    plain = [("<unk>", {}), ("<s>", {}), ("</s>", {})]
    out["llama2"] = document(
        sp, spm, string_merges=True, normalizer=seq("normalizers", PREPEND, SPACE), decoder=LEGACY_DECODER, post=template(["<s>", "$A"], bos),
        tokens=added(0, plain) + added(len(sp), [("<pad>", {"normalized": True}), ("word", {"special": False, "normalized": True})]),
        unk_token="<unk>", fuse_unk=True, byte_fallback=True,
    )
    out["metaspace-first"] = document(
        sp, spm, pre=metaspace("first", False), decoder=LEGACY_DECODER, post=template(["<s>", "$A", "</s>"], {"<s>": 1, "</s>": 2}), tokens=added(0, plain),
        unk_token="<unk>", fuse_unk=True, byte_fallback=True,
    )
    un, unm = sentencepiece(1100, False, alphabet="abc")
    out["metaspace-always"] = document(un, unm, pre=metaspace("always"), decoder=metaspace("always"), tokens=added(0, plain), unk_token="<unk>", fuse_unk=False)
    out["metaspace-fused"] = document(un, unm, normalizer=normalizer("Strip", strip_left=True, strip_right=False), pre=metaspace("first"), decoder=metaspace("first"), tokens=added(0, plain), unk_token="<unk>", fuse_unk=True)
    out["metaspace-never"] = document(un, unm, pre=metaspace("never"), decoder=metaspace("never"))
    out["gpt2"] = document(
        vocab, merges, pre=byte_level(True, True), decoder=byte_level(), post=byte_level(),
        tokens=added(len(vocab), [
            ("<|endoftext|>", {"normalized": True}), ("<mask>", {"lstrip": True}), ("<pad>", {"rstrip": True}), ("<s>", {"lstrip": True, "rstrip": True}),
            ("word", {"single_word": True, "special": False}), ("  ", {"special": False}), ("caf\u00e9", {"special": False, "normalized": True}),
        ]),
    )
    out["deepseek"] = document(
        vocab, merges, normalizer=seq("normalizers"), decoder=byte_level(), post=byte_level(),
        pre=seq("pretokenizers", split(r"\p{N}{1,3}"), split("[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"), split(DEEPSEEK), byte_level()),
    )
    out["o200k"] = document(vocab, merges, pre=split_bytes(O200K), decoder=byte_level(), post=byte_level())
    out["starcoder"] = document(vocab, merges, pre=seq("pretokenizers", dict(type="Digits", individual_digits=True), byte_level(False, True)), decoder=byte_level())
    out["falcon"] = document(
        vocab, merges, decoder=byte_level(), normalizer=normalizer("NFKC"),
        pre=seq("pretokenizers", dict(type="Punctuation", behavior="Contiguous"), dict(type="Digits", individual_digits=False), split("[0-9][0-9][0-9]"), byte_level(False, True)),
    )
    for form in ("NFD", "NFKD"):
        out[form.lower()] = document(vocab, merges, normalizer=normalizer(form), pre=byte_level(False, True), decoder=byte_level())
    affixed = dict(continuing_subword_prefix="##", end_of_word_suffix="</w>")
    av, am = train(pre_tokenizers.Sequence([pre_tokenizers.Punctuation(), pre_tokenizers.Metaspace()]), 900, **affixed)
    av["[UNK]"] = len(av)
    out["lower"] = document(
        av, am, unk_token="[UNK]", **affixed,
        normalizer=seq("normalizers", normalizer("Strip", strip_left=True, strip_right=True), normalizer("Lowercase"), normalizer("NFD"), normalizer("StripAccents"),
                       normalizer("Replace", pattern={"String": "--"}, content="\u2014")),
        pre=seq("pretokenizers", dict(type="Punctuation", behavior="Isolated"), metaspace("always")),
        tokens=added(len(av), [("Lower", {"special": False, "normalized": True}), ("caf\u00e9", {"normalized": True})]),
    )
    for behavior in ("Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous"):
        for invert in (False, True):
            name = "split-%s-%s" % (behavior, invert)
            out[name] = document(vocab, merges, pre=seq("pretokenizers", split("[a-m. ]", behavior, invert), byte_level()), decoder=byte_level())
    out["no-decoder"] = document(vocab, merges, pre=byte_level(False, True))
    odd = seq("decoders", byte_level(), dict(type="Replace", pattern={"String": "th"}, content="<TH>"), dict(type="Strip", content=" ", start=2, stop=0))
    out["odd-decoder"] = document(vocab, merges, pre=byte_level(False, True), decoder=odd)
    strip = seq("decoders", dict(type="Strip", content="e", start=0, stop=1), dict(type="ByteFallback"), UNSPACE)
    out["strip-decoder"] = document(sp, spm, normalizer=SPACE, decoder=strip, byte_fallback=True)
    return out


# The tokenizers that see every string; the others see a sample.
FULL = ["qwen3", "llama3", "llama2"]


def share_parts(doc, shared):
    """Replaces vocabularies and merges, which many files share, by "@" and their number."""
    model = dict(doc["model"])
    for part in ("vocab", "merges"):
        if model[part] not in shared:
            shared.append(model[part])
        model[part] = "@%d" % shared.index(model[part])
    return dict(doc, model=model)


def main():
    texts = strings()
    print(len(texts), "strings")
    result = dict(strings=texts, shared=[], tokenizers=[])
    for name, doc in tokenizers().items():
        tok = Tokenizer.from_str(json.dumps(doc, ensure_ascii=False))
        share = range(len(texts)) if name in FULL else sorted(RNG.sample(range(len(texts)), 600))
        if not name.startswith(("split", "no-", "odd", "strip")) and name not in FULL:
            share = sorted(RNG.sample(range(len(texts)), 1200))
        entry = dict(name=name, file=share_parts(doc, result["shared"]), texts=[], ids=[], plain={}, decoded={}, skipped={})
        for i in share:
            tok.encode_special_tokens = False
            ids = tok.encode(texts[i], add_special_tokens=True).ids
            entry["texts"].append(i)
            entry["ids"].append(ids)
            tok.encode_special_tokens = True
            plain = tok.encode(texts[i], add_special_tokens=False).ids
            if plain != ids and ("<" in texts[i] or i % 10 == 0):
                entry["plain"][i] = plain
            decoded, skipped = tok.decode(ids, skip_special_tokens=False), tok.decode(ids, skip_special_tokens=True)
            if decoded != texts[i]:
                entry["decoded"][i] = decoded
            if skipped != decoded:
                entry["skipped"][i] = skipped
        size = tok.get_vocab_size()
        entry["size"] = size
        entry["random"] = []
        for _ in range(150):
            top = RNG.choice([size + 3, 300])
            ids = [RNG.randrange(top) for _ in range(RNG.randint(1, 12))]
            entry["random"].append([ids, tok.decode(ids, skip_special_tokens=False), tok.decode(ids, skip_special_tokens=True)])
        result["tokenizers"].append(entry)
        print(name, size, len(entry["texts"]))
    data = json.dumps(result, ensure_ascii=False, separators=(",", ":")).encode()
    path = os.path.join(HERE, "oracle.json.gz")
    with open(path, "wb") as f:
        f.write(gzip.compress(data, 9, mtime=0))
    print(len(data), os.path.getsize(path))


main()
