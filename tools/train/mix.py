#!/usr/bin/env python3
"""Mixes two trained models into one, weight by weight.

    tools/train/mix.py runs/before runs/after 0.6 runs/mixed

takes 0.6 of the weights of runs/after/checkpoint.pt and 0.4 of those before it.
Training that goes on from a model gains one thing and loses a little of another;
of models of one line the mean keeps most of both (Wortsman et al., "Model soups",
2022). The folder gets config.json, model.safetensors and the tokenizer.
"""
import os
import shutil
import sys

import torch

from model import read, write


def main():
    if len(sys.argv) != 5:
        raise SystemExit(__doc__)
    before, after, out = sys.argv[1], sys.argv[2], sys.argv[4]
    try:
        share = float(sys.argv[3])
    except ValueError:
        share = -1
    if not 0 <= share <= 1:
        raise SystemExit(f"mix.py: the share is {sys.argv[3]}, want 0 to 1")
    nets = [torch.load(os.path.join(d, "checkpoint.pt"), map_location="cpu", weights_only=True)["net"] for d in (before, after)]
    folder = os.path.join(after, "model")
    model = read(folder)
    model.load_state_dict({k: torch.lerp(nets[0][k], nets[1][k], share) for k in nets[0]})
    write(model, out)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(os.path.join(folder, name), out)


if __name__ == "__main__":
    main()
