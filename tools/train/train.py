#!/usr/bin/env python3
"""Trains kvlend's built-in models to remember, from a seed to a Hugging Face
directory. See README.md beside this file.

    tools/train/train.py --size atlas --out runs/atlas

Interrupted, or stopped by --minutes, it goes on where it was when it is run
again with the same flags.
"""
import argparse
import json
import math
import os
import queue
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import torch
import torch.nn.functional as F

from model import SIZES, Decoder, read, write

# length:steps[:layers], one after another. Copying is learned on short
# dialogues, where a step is cheap and facts are near; the long ones only
# stretch it. Layers that are not named join later, with outputs of zero.
STAGES = {
    "cuda": "256:2500,512:2000,1024:2000,2048:1500,4096:1200,8192:1200",
    "cpu": "256:1172:4,512:1684:4,1024:2177,2048:650,4096:250",
}
TOKENS = {"cuda": 1 << 17, "cpu": 1 << 12}  # of a step
DECAY = 0.35  # the share of the steps in which the learning rate falls
PRODUCERS = 4  # processes that make dialogues; fixed, since it decides which

# The weight in the loss of the user's words, the assistant's, answers, padding.
WEIGHTS = (0.02, 0.3, 1.0, 0.0)
SHIFT = 14  # an element of a row is the token's id and, from this bit on, its class
ANSWER = 2


class Rows:
    """Batches of rows from `kvlend model dialogues`, read ahead by a thread."""

    def __init__(self, args, length, batch, seed, skip=0, held_out=False):
        self.length, self.batch, self.procs = length, batch, []
        for i in range(PRODUCERS):
            # Producer i makes the batches i, i+PRODUCERS, ...
            delivered = (skip - i + PRODUCERS - 1) // PRODUCERS
            cmd = [args.kvlend, "model", "dialogues", "--rows", "--count=0", f"--tokenizer={args.folder}", f"--tokens={length}",
                   f"--seed={seed * PRODUCERS + i}", f"--first={delivered * batch}", f"--held-out={str(held_out).lower()}"]
            self.procs.append(subprocess.Popen(cmd, stdout=subprocess.PIPE, env=dict(os.environ, GOMAXPROCS="1")))
        self.next, self.ready = skip, queue.Queue(8)
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def read(self):
        try:
            while True:
                size = 2 * self.batch * self.length
                data = self.procs[self.next % PRODUCERS].stdout.read(size)
                if len(data) < size:
                    raise EOFError("kvlend model dialogues ended")
                self.ready.put(np.frombuffer(data, np.uint16).reshape(self.batch, self.length).astype(np.int64))
                self.next += 1
        except Exception as e:  # whoever waits for a batch is told
            self.ready.put(e)

    def get(self, device):
        rows = self.ready.get()
        if isinstance(rows, Exception):
            raise rows
        rows = torch.from_numpy(rows).to(device, non_blocking=True)
        return rows & (1 << SHIFT) - 1, rows >> SHIFT

    def close(self):
        for p in self.procs:
            p.kill()
        while self.reader.is_alive():  # it may wait for room in the queue
            try:
                self.ready.get(timeout=0.05)
            except queue.Empty:
                pass
        for p in self.procs:
            p.wait()
            p.stdout.close()


def gaps(rows, length, reach, device):
    """Positions with gaps: a dialogue of length tokens spread over up to reach.

    Half of the rows have up to four gaps at random places, so that short
    dialogues teach long distances too (Zhu et al., "PoSE", 2023).
    """
    spare = reach - length
    if spare <= 0:
        return None
    jump = torch.zeros(rows, length, device=device)
    share = torch.rand(rows, 4, device=device)
    total = spare * torch.rand(rows, 1, device=device) * (torch.rand(rows, 1, device=device) < 0.5)
    at = torch.randint(1, length, (rows, 4), device=device)
    jump.scatter_add_(1, at, share / share.sum(1, keepdim=True) * total)
    return torch.arange(length, device=device) + jump.cumsum(1).long()


def losses(net, ids, classes, positions, cast):
    """The weighted loss and the mean loss of the answers' tokens."""
    with cast():
        logits = net(ids[:, :-1], None if positions is None else positions[:, :-1])
    each = F.cross_entropy(logits.float().flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
    kind = classes[:, 1:].flatten()
    answer = (kind == ANSWER).float()
    weight = torch.tensor(WEIGHTS, device=ids.device)[kind]
    return (each * weight).sum() / weight.sum(), ((each * answer).sum() / answer.sum().clamp(min=1)).detach()


@torch.no_grad()
def answered(net, rows, batches, device, cast):
    """The share of held-out answers that are right to the last token."""
    right = asked = 0
    for _ in range(batches):
        ids, classes = rows.get(device)
        with cast():
            guess = net(ids[:, :-1]).argmax(-1)
        is_answer = (classes[:, 1:] == ANSWER).cpu().numpy()
        wrong = ((guess != ids[:, 1:]).cpu().numpy() & is_answer).astype(np.int64)
        # Answers are runs of answer tokens: number them by where they begin.
        begins = is_answer & ~np.pad(is_answer, ((0, 0), (1, 0)))[:, :-1]
        number = begins.flatten().cumsum()
        errors = np.bincount(number, wrong.flatten())[1:]
        right, asked = right + int((errors == 0).sum()), asked + len(errors)
    return right / max(asked, 1), asked


class Muon(torch.optim.Optimizer):
    """Momentum whose updates are made orthogonal (Jordan et al., 2024).

    For matrices only. The five coefficients' steps of Newton and Schulz run in
    bf16 over all matrices of a shape at once.
    """

    def __init__(self, params, lr, momentum=0.95, weight_decay=0.01):
        super().__init__(params, dict(lr=lr, momentum=momentum, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            shapes = {}
            for p in group["params"]:
                if p.grad is not None:
                    shapes.setdefault(tuple(p.shape), []).append(p)
            for shape, params in shapes.items():
                self.update(group, shape, params)

    def update(self, group, shape, params):
        steps = []
        for p in params:
            m = self.state[p].setdefault("momentum", torch.zeros_like(p))
            m.lerp_(p.grad, 1 - group["momentum"])
            steps.append(p.grad.lerp(m, group["momentum"]))  # Nesterov
        scale = max(1, shape[0] / shape[1]) ** 0.5 * group["lr"]
        for p, u in zip(params, orthogonal(torch.stack(steps))):
            p.mul_(1 - group["lr"] * group["weight_decay"]).add_(u.to(p.dtype), alpha=-scale)


def orthogonal(g):
    """The nearest orthogonal matrices to g [n, rows, columns], about."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = g.bfloat16()
    tall = x.shape[1] > x.shape[2]
    if tall:
        x = x.mT
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(5):
        s = x @ x.mT
        x = a * x + (b * s + c * s @ s) @ x
    return x.mT if tall else x


class Run:
    """One training run: its folder, model, optimizer and progress."""

    def __init__(self, args):
        self.args, self.device = args, torch.device(args.device)
        self.stages = [(tuple(map(int, s.split(":"))) + (0,))[:3] for s in args.stages.split(",")]
        self.total = sum(n for _, n, _ in self.stages)
        self.step, self.tokens, self.seconds = 0, 0, 0.0
        torch.manual_seed(args.seed)
        if args.start:
            self.net = read(args.start).to(self.device)
        else:
            self.net = Decoder(dict(SIZES[args.size], vocab=args.vocab, eos=args.eos)).to(self.device)
        context = self.net.c["context"]
        if max(n for n, _, _ in self.stages) > context:
            raise SystemExit(f"--stages {args.stages}: the model's context is {context} tokens")
        args.reach = min(args.reach, context)
        matrices = [p for p in self.net.model.layers.parameters() if p.dim() == 2]
        chosen = set(matrices)
        others = [p for p in self.net.parameters() if p not in chosen]
        self.opts = [Muon(matrices, args.lr),
                     torch.optim.AdamW(others, lr=args.lr * 0.15, betas=(0.9, 0.98), weight_decay=0.0, fused=True)]
        for opt in self.opts:
            for group in opt.param_groups:
                group["peak"] = group["lr"]
        self.path = os.path.join(args.out, "checkpoint.pt")
        # What must not change between the parts of a run.
        self.same = {k: getattr(args, k) for k in ("size", "seed", "stages", "batch_tokens", "lr", "reach", "vocab", "start")}
        if os.path.exists(self.path):
            self.resume()

    def resume(self):
        saved = torch.load(self.path, map_location=self.device, weights_only=True)
        if saved["same"] != self.same:
            raise SystemExit(f"{self.path} is of another run: {saved['same']}, not {self.same}")
        self.net.load_state_dict(saved["net"])
        for opt, state in zip(self.opts, saved["opts"]):
            opt.load_state_dict(state)
        self.step, self.tokens, self.seconds = saved["step"], saved["tokens"], saved["seconds"]
        print(f"goes on at step {self.step} of {self.total}", flush=True)

    def save(self):
        torch.save({"same": self.same, "net": self.net.state_dict(), "opts": [opt.state_dict() for opt in self.opts],
                    "step": self.step, "tokens": self.tokens, "seconds": self.seconds}, self.path + ".part")
        os.replace(self.path + ".part", self.path)
        write(self.net, self.args.folder)

    def log(self, **line):
        line = {"step": self.step, "tokens": self.tokens, "seconds": round(self.seconds, 1), **line}
        with open(os.path.join(self.args.out, "log.jsonl"), "a") as f:
            f.write(json.dumps(line) + "\n")
        print("  ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in line.items()), flush=True)

    def rate(self):
        """The share of the learning rate: warm-up, a plateau, a straight fall."""
        warm = min(100, self.total // 10 + 1)
        return min(1.0, (self.step + 1) / warm, max(0.02, (self.total - self.step) / (DECAY * self.total)))

    def cast(self):
        return torch.autocast(self.device.type, torch.bfloat16)

    def train(self, until):
        """Goes through the stages; True if it came to the end by then."""
        begin = 0
        for number, (length, steps, layers) in enumerate(self.stages):
            self.net.use(layers or self.net.c["layers"])
            net = torch.compile(self.net, dynamic=False) if self.args.compile else self.net
            if self.step < begin + steps and not self.stage(net, number, length, begin, steps, until):
                return False
            begin += steps
        return True

    def stage(self, net, number, length, begin, steps, until):
        batch = max(1, self.args.batch_tokens // length)
        rows = Rows(self.args, length, batch, self.args.seed * 100 + number, skip=self.step - begin)
        try:
            mark, marked = time.monotonic(), self.tokens
            while self.step < begin + steps:
                loss, answer = self.one(net, rows, length, batch)
                if self.step % self.args.log_every == 0 or self.step == begin + steps:
                    now = time.monotonic()
                    self.seconds += now - mark
                    self.log(length=length, loss=float(loss), answer=float(answer), rate=self.rate(), speed=int((self.tokens - marked) / (now - mark)))
                    mark, marked = time.monotonic(), self.tokens
                if self.step % self.args.save_every == 0 or self.step == begin + steps:
                    self.evaluate(length, batch)
                    self.save()
                    mark = time.monotonic()
                if time.monotonic() > until:
                    return False
        finally:
            rows.close()
        return True

    def one(self, net, rows, length, batch):
        ids, classes = rows.get(self.device)
        # Gaps come from the step's number, so that a resumed run is the same.
        torch.manual_seed(self.args.seed * 1_000_003 + self.step)
        loss, answer = losses(net, ids, classes, gaps(batch, length, self.args.reach, self.device), self.cast)
        self.net.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
        for opt in self.opts:
            for group in opt.param_groups:
                group["lr"] = group["peak"] * self.rate()
            opt.step()
        self.step += 1
        self.tokens += batch * length
        return loss.detach(), answer

    def evaluate(self, length, batch):
        rows = Rows(self.args, length, batch, self.args.seed * 100 + 99, held_out=True)
        try:
            share, asked = answered(self.net, rows, self.args.eval_batches, self.device, self.cast)
        finally:
            rows.close()
        self.log(length=length, held_out_right=share, asked=asked)


def flags():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--size", choices=SIZES, default="atlas")
    p.add_argument("--out", required=True, help="folder of the run: model/, checkpoint.pt, log.jsonl")
    p.add_argument("--kvlend", default="kvlend", help="the kvlend program")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--vocab", type=int, default=1024, help="entries of the tokenizer")
    p.add_argument("--device", choices=("cuda", "cpu"), default="cuda" if torch.cuda.is_available() else "cpu")
    p.add_argument("--stages", help="length:steps,...; the default depends on the device")
    p.add_argument("--batch-tokens", type=int, help="tokens of a step")
    p.add_argument("--reach", type=int, default=16384, help="distances that gaps in the positions teach, in tokens; 0: no gaps")
    p.add_argument("--lr", type=float, default=0.02, help="learning rate of the matrices; the rest has 0.15 times it")
    p.add_argument("--start", default="", help="model directory to start from, such as an earlier run's, instead of random weights")
    p.add_argument("--minutes", type=float, default=math.inf, help="stop after so long; run again to go on")
    p.add_argument("--compile", action="store_true", help="torch.compile: a minute for each length, then faster")
    p.add_argument("--threads", type=int, default=0, help="CPU threads of PyTorch; 0: its own choice")
    p.add_argument("--log-every", type=int, default=50)
    p.add_argument("--save-every", type=int, default=500)
    p.add_argument("--eval-batches", type=int, default=2)
    args = p.parse_args()
    args.stages = args.stages or STAGES[args.device]
    args.batch_tokens = args.batch_tokens or TOKENS[args.device]
    args.folder = os.path.join(args.out, "model")
    return args


def make_tokenizer(args):
    """The tokenizer of --start, or one trained on dialogues."""
    source = args.start or args.folder
    if not os.path.exists(os.path.join(source, "tokenizer.json")):
        subprocess.run([args.kvlend, "model", "tokenizer", args.folder, f"--vocab={args.vocab}"], check=True)
    if source != args.folder:
        os.makedirs(args.folder, exist_ok=True)
        for name in ("tokenizer.json", "tokenizer_config.json"):
            with open(os.path.join(source, name), "rb") as src, open(os.path.join(args.folder, name), "wb") as dst:
                dst.write(src.read())
    with open(os.path.join(args.folder, "tokenizer.json")) as f:
        t = json.load(f)
    ids = {a["content"]: a["id"] for a in t["added_tokens"]}
    args.vocab = len(t["model"]["vocab"]) + len(ids)
    args.eos = [ids["<|im_end|>"], ids["<|endoftext|>"]]


def interrupt(*_):
    raise KeyboardInterrupt


def main():
    args = flags()
    until = time.monotonic() + 60 * args.minutes
    os.makedirs(args.out, exist_ok=True)
    if args.threads:
        torch.set_num_threads(args.threads)
    torch.set_float32_matmul_precision("high")
    signal.signal(signal.SIGTERM, interrupt)
    make_tokenizer(args)
    run = Run(args)
    n = sum(p.numel() for p in run.net.parameters())
    print(f"{args.size}: {n:,} parameters, {2 * n / 1e6:.1f} MB in bf16; {run.total} steps of {args.batch_tokens} tokens on {args.device}, PyTorch {torch.__version__}", flush=True)
    try:
        done = run.train(until)
    except KeyboardInterrupt:
        done = False
    run.save()
    print(f"{'done' if done else 'stopped; run again to go on'}: step {run.step} of {run.total}, {args.folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
