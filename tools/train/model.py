"""A Qwen3 or Llama decoder in plain PyTorch, and its Hugging Face directory.

The modules have the names of Hugging Face's, so that state_dict is the
checkpoint. Needs nothing but PyTorch.
"""
import json
import os
import struct

import torch
import torch.nn.functional as F
from torch import nn

# The geometries. atlas is the master's; birch and cedar are workers', smaller
# and different from it in every way that matters to lending. tiny is for tests.
SIZES = {
    "atlas": dict(arch="qwen3", layers=8, hidden=256, ffn=512, heads=8, kv_heads=4, head_dim=32, theta=1e6, tied=True, eps=1e-6, context=32768),
    "birch": dict(arch="llama", layers=6, hidden=128, ffn=256, heads=6, kv_heads=2, head_dim=32, theta=5e5, tied=False, eps=1e-5, context=16384),
    "cedar": dict(arch="qwen3", layers=5, hidden=128, ffn=384, heads=4, kv_heads=1, head_dim=64, theta=1e6, tied=True, eps=1e-6, context=16384),
    "tiny": dict(arch="qwen3", layers=2, hidden=64, ffn=128, heads=2, kv_heads=1, head_dim=32, theta=1e6, tied=True, eps=1e-6, context=4096),
}


class Norm(nn.Module):
    """RMSNorm, in float32 whatever the rest is in."""

    def __init__(self, n, eps):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(n)), eps

    def forward(self, x):
        y = x.float()
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + self.eps)
        return (y * self.weight).to(x.dtype)


def rotate(x, cos, sin):
    """Turns x [rows, heads, tokens, dim]; cos and sin are [rows or 1, 1, tokens, dim/2]."""
    a, b = x.float().chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1).to(x.dtype)


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        q, kv = c["heads"] * c["head_dim"], c["kv_heads"] * c["head_dim"]
        self.q_proj = nn.Linear(c["hidden"], q, bias=False)
        self.k_proj = nn.Linear(c["hidden"], kv, bias=False)
        self.v_proj = nn.Linear(c["hidden"], kv, bias=False)
        self.o_proj = nn.Linear(q, c["hidden"], bias=False)
        if c["arch"] == "qwen3":
            self.q_norm, self.k_norm = Norm(c["head_dim"], c["eps"]), Norm(c["head_dim"], c["eps"])

    def forward(self, x, cos, sin):
        c, (b, t, _) = self.c, x.shape
        q = self.q_proj(x).view(b, t, c["heads"], c["head_dim"])
        k = self.k_proj(x).view(b, t, c["kv_heads"], c["head_dim"])
        v = self.v_proj(x).view(b, t, c["kv_heads"], c["head_dim"]).transpose(1, 2)
        if c["arch"] == "qwen3":
            q, k = self.q_norm(q), self.k_norm(k)
        q, k = rotate(q.transpose(1, 2), cos, sin), rotate(k.transpose(1, 2), cos, sin)
        group = c["heads"] // c["kv_heads"]
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(y.transpose(1, 2).reshape(b, t, -1))


class MLP(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.gate_proj = nn.Linear(c["hidden"], c["ffn"], bias=False)
        self.up_proj = nn.Linear(c["hidden"], c["ffn"], bias=False)
        self.down_proj = nn.Linear(c["ffn"], c["hidden"], bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = Norm(c["hidden"], c["eps"]), Norm(c["hidden"], c["eps"])
        self.self_attn, self.mlp = Attention(c), MLP(c)

    def forward(self, x, cos, sin):
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))


class Trunk(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.embed_tokens = nn.Embedding(c["vocab"], c["hidden"])
        self.layers = nn.ModuleList(Layer(c) for _ in range(c["layers"]))
        self.norm = Norm(c["hidden"], c["eps"])


class Decoder(nn.Module):
    """c is an entry of SIZES with "vocab" and "eos", the ids that end an answer."""

    def __init__(self, c):
        super().__init__()
        self.c, self.model = c, Trunk(c)
        self.used = range(c["layers"])
        self.lm_head = nn.Linear(c["hidden"], c["vocab"], bias=False)
        for name, p in self.named_parameters():
            if p.dim() == 2:
                # What feeds the residual stream starts at zero, so that a layer
                # that joins later changes nothing at first.
                out = name.endswith(("o_proj.weight", "down_proj.weight"))
                nn.init.normal_(p, std=0.0 if out else 0.02 if "embed" in name or "lm_head" in name else p.shape[1] ** -0.5)
        if c["tied"]:
            self.lm_head.weight = self.model.embed_tokens.weight
        half = c["head_dim"] // 2
        # Float64: a float32 angle is off by 0.004 radians at position 65536.
        inv = c["theta"] ** (-torch.arange(half, dtype=torch.float64) / half)
        angle = torch.outer(torch.arange(c["context"], dtype=torch.float64), inv)
        self.register_buffer("cos", angle.cos().float(), persistent=False)
        self.register_buffer("sin", angle.sin().float(), persistent=False)

    def use(self, n):
        """Only n layers, evenly spread, work from now on."""
        layers = self.c["layers"]
        self.used = [(2 * i + 1) * layers // (2 * n) for i in range(n)]

    def forward(self, ids, positions=None):
        """Logits of ids [rows, tokens]; positions, if given, has their shape."""
        if positions is None:
            cos, sin = self.cos[None, None, : ids.shape[1]], self.sin[None, None, : ids.shape[1]]
        else:
            cos, sin = self.cos[positions].unsqueeze(1), self.sin[positions].unsqueeze(1)
        x = self.model.embed_tokens(ids)
        for i in self.used:
            x = self.model.layers[i](x, cos, sin)
        return self.lm_head(self.model.norm(x))


def write(model, folder):
    """Writes config.json, generation_config.json and model.safetensors (bf16)."""
    c = model.c
    config = {
        "architectures": ["Qwen3ForCausalLM" if c["arch"] == "qwen3" else "LlamaForCausalLM"],
        "model_type": c["arch"], "num_hidden_layers": c["layers"], "hidden_size": c["hidden"],
        "num_attention_heads": c["heads"], "num_key_value_heads": c["kv_heads"], "head_dim": c["head_dim"],
        "intermediate_size": c["ffn"], "vocab_size": c["vocab"], "max_position_embeddings": c["context"],
        "rms_norm_eps": c["eps"], "rope_theta": c["theta"], "rope_scaling": None, "tie_word_embeddings": c["tied"],
        "attention_bias": False, "hidden_act": "silu", "torch_dtype": "bfloat16",
        "bos_token_id": None, "eos_token_id": c["eos"],
    }
    os.makedirs(folder, exist_ok=True)
    for name, value in (("config.json", config), ("generation_config.json", {"do_sample": False, "eos_token_id": c["eos"]})):
        with open(os.path.join(folder, name), "w") as f:
            json.dump(value, f, indent=2)
            f.write("\n")
    state = {k: v for k, v in model.state_dict().items() if not (c["tied"] and k == "lm_head.weight")}
    header, blobs, at = {"__metadata__": {"format": "pt"}}, [], 0
    for name in sorted(state):
        blob = state[name].detach().cpu().to(torch.bfloat16).contiguous().view(torch.int16).numpy().tobytes()
        header[name] = {"dtype": "BF16", "shape": list(state[name].shape), "data_offsets": [at, at + len(blob)]}
        blobs.append(blob)
        at += len(blob)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(os.path.join(folder, "model.safetensors.part"), "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + b"".join(blobs))
    os.replace(f.name, os.path.join(folder, "model.safetensors"))


def read(folder):
    """Reads what write writes, and kvlend model new: bf16 without rope scaling."""
    with open(os.path.join(folder, "config.json")) as f:
        h = json.load(f)
    eos = h["eos_token_id"]
    model = Decoder(dict(
        arch=h["model_type"], layers=h["num_hidden_layers"], hidden=h["hidden_size"], ffn=h["intermediate_size"],
        heads=h["num_attention_heads"], kv_heads=h["num_key_value_heads"], head_dim=h["head_dim"], theta=h["rope_theta"],
        tied=h["tie_word_embeddings"], eps=h["rms_norm_eps"], context=h["max_position_embeddings"], vocab=h["vocab_size"],
        eos=eos if isinstance(eos, list) else [eos]))
    with open(os.path.join(folder, "model.safetensors"), "rb") as f:
        data = bytearray(f.read())
    start = 8 + struct.unpack("<Q", data[:8])[0]
    state = {}
    for name, t in json.loads(data[8:start]).items():
        if name == "__metadata__":
            continue
        if t["dtype"] != "BF16":
            raise ValueError(f"{name} is {t['dtype']}, want BF16")
        lo, hi = t["data_offsets"]
        state[name] = torch.frombuffer(data, dtype=torch.bfloat16, count=(hi - lo) // 2, offset=start + lo).view(t["shape"])
    if model.c["tied"]:
        state["lm_head.weight"] = state["model.embed_tokens.weight"]
    model.load_state_dict(state)
    return model
