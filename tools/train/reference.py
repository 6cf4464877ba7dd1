#!/usr/bin/env python3
"""Says what PyTorch makes of prompts, for a comparison with kvlend's engine.

Reads JSON from standard input, {"prompts": [[id, ...], ...], "tokens": n}, and
writes for each prompt the logits of its last token and the n tokens of a greedy
continuation, with the lead of each over the next best.

The arithmetic is float32, but what goes into a matrix product is rounded to
bfloat16, as the engine does.
"""
import json
import sys

import torch

from model import read


def main():
    torch.set_num_threads(1)
    net = read(sys.argv[1]).eval()
    for m in net.modules():
        if isinstance(m, torch.nn.Linear):
            m.register_forward_pre_hook(lambda _, args: (args[0].bfloat16().float(),))
    task = json.load(sys.stdin)
    out = []
    with torch.no_grad():
        for ids in task["prompts"]:
            ids, made = list(ids), {"logits": [], "tokens": [], "leads": []}
            for _ in range(task["tokens"]):
                logits = net(torch.tensor([ids]))[0, -1]
                made["logits"] = made["logits"] or logits.tolist()
                best = logits.topk(2)
                made["tokens"].append(int(best.indices[0]))
                made["leads"].append(float(best.values[0] - best.values[1]))
                ids.append(made["tokens"][-1])
            out.append(made)
    json.dump(out, sys.stdout)


if __name__ == "__main__":
    main()
