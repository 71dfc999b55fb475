"""Real PyTorch programs whose sizes vary from step to step. Each is a function (steps) -> generator of (step's result),
one item a step: the loss, or the tokens that were made. The same seeds give the same results in every process.
"""

import math
import random

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

DEVICE = "cuda"


# --- GPT-2 (124 M parameters), trained on random tokens --------------------------------------------------------------


class Gpt2Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.qkv(self.before(x)).view(b, t, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, c))
        return x + self.down(F.gelu(self.up(self.after(x)), approximate="tanh"))


class Gpt2(nn.Module):
    def __init__(self, checkpointing, vocabulary=50257, width=768, heads=12, layers=12, context=1024):
        super().__init__()
        self.checkpointing = checkpointing
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Gpt2Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids):
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpointing else block(x)
        return self.head(self.norm(x))


def gpt2(steps, checkpointing=False):
    torch.manual_seed(1)
    shapes = random.Random(2)
    model = Gpt2(checkpointing).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, foreach=True)
    for _ in range(steps):
        batch, length = shapes.choice((4, 8, 12, 16)), shapes.randrange(128, 1024)
        ids = torch.randint(50257, (batch, length + 1), device=DEVICE)
        with torch.autocast("cuda", torch.bfloat16):
            logits = model(ids[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1).float(), ids[:, 1:].flatten())
        del logits
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        yield loss.item()


def gpt2_checkpointed(steps):
    return gpt2(steps, checkpointing=True)


# --- ResNet-50, trained on pictures of varying size ------------------------------------------------------------------


def resnet50(steps):
    import torchvision

    torch.manual_seed(3)
    shapes = random.Random(4)
    model = torchvision.models.resnet50(weights=None).to(DEVICE, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for _ in range(steps):
        batch, side = shapes.choice((32, 48, 64)), shapes.randrange(160, 289, 16)
        pictures = torch.randn(batch, 3, side, side, device=DEVICE).to(memory_format=torch.channels_last)
        labels = torch.randint(1000, (batch,), device=DEVICE)
        with torch.autocast("cuda", torch.bfloat16):
            loss = F.cross_entropy(model(pictures).float(), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        yield loss.item()


# --- Decoders with a growing cache: Qwen3-like (grouped queries, normed queries and keys, gated MLP), and with experts --


def rope(x, start):
    half = x.shape[-1] // 2
    places = torch.arange(start, start + x.shape[-2], device=x.device, dtype=torch.float32)
    angles = places[:, None] * 1e6 ** (-torch.arange(half, device=x.device, dtype=torch.float32) / half)
    a, b = x[..., :half].float(), x[..., half:].float()
    cos, sin = angles.cos(), angles.sin()
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1).to(x.dtype)


class Decoder(nn.Module):
    def __init__(self, experts, width=1024, layers=16, heads=16, shared=8, dim=128, inner=3072, vocabulary=32000):
        super().__init__()
        self.heads, self.shared, self.dim, self.experts, self.layers = heads, shared, dim, experts, layers

        def weight(*shape):
            return nn.Parameter(torch.randn(*shape, device=DEVICE, dtype=torch.bfloat16) / math.sqrt(shape[-1]))

        self.embedding, self.head = weight(vocabulary, width), weight(vocabulary, width)
        self.q = nn.ParameterList(weight(heads * dim, width) for _ in range(layers))
        self.kv = nn.ParameterList(weight(2 * shared * dim, width) for _ in range(layers))
        self.o = nn.ParameterList(weight(width, heads * dim) for _ in range(layers))
        count = max(experts, 1)
        inner = inner // 4 if experts else inner
        self.gate_up = nn.ParameterList(weight(count, 2 * inner, width) for _ in range(layers))
        self.down = nn.ParameterList(weight(count, width, inner) for _ in range(layers))
        self.router = nn.ParameterList(weight(count, width) for _ in range(layers))

    @staticmethod
    def mlp(x, gate_up, down):
        gate, up = (x @ gate_up.t()).chunk(2, -1)
        return (F.silu(gate) * up) @ down.t()

    def mixture(self, layer, x):
        flat = x.reshape(-1, x.shape[-1])
        weights, chosen = (flat @ self.router[layer].t()).float().softmax(-1).topk(2, -1)
        out = torch.zeros_like(flat)
        for expert in range(self.experts):
            rows, which = (chosen == expert).nonzero(as_tuple=True)
            if rows.numel() == 0:
                continue
            part = self.mlp(flat[rows], self.gate_up[layer][expert], self.down[layer][expert])
            out.index_add_(0, rows, part * weights[rows, which, None].to(part.dtype))
        return out.view_as(x)

    def forward(self, ids, cache):
        x = F.embedding(ids, self.embedding)
        b, t, _ = x.shape
        for layer in range(self.layers):
            y = F.rms_norm(x, x.shape[-1:])
            past = cache[layer][0].shape[2] if cache[layer] is not None else 0
            q = (y @ self.q[layer].t()).view(b, t, self.heads, self.dim).transpose(1, 2)
            k, v = (y @ self.kv[layer].t()).view(b, t, 2, self.shared, self.dim).permute(2, 0, 3, 1, 4)
            q, k = rope(F.rms_norm(q, (self.dim,)), past), rope(F.rms_norm(k, (self.dim,)), past)
            if past:
                k, v = torch.cat((cache[layer][0], k), 2), torch.cat((cache[layer][1], v), 2)
            cache[layer] = (k, v)
            y = F.scaled_dot_product_attention(q, k, v, is_causal=past == 0, enable_gqa=True)
            x = x + y.transpose(1, 2).reshape(b, t, -1) @ self.o[layer].t()
            y = F.rms_norm(x, x.shape[-1:])
            mlp = self.mixture(layer, y) if self.experts else self.mlp(y, self.gate_up[layer][0], self.down[layer][0])
            x = x + mlp
        return F.rms_norm(x[:, -1], x.shape[-1:]) @ self.head.t()


@torch.inference_mode()
def generate(steps, experts, new_tokens):
    torch.manual_seed(5)
    shapes = random.Random(6)
    model = Decoder(experts)
    for _ in range(steps):
        batch, length = shapes.choice((1, 4, 8, 16)), shapes.randrange(32, 1500)
        ids = torch.randint(32000, (batch, length), device=DEVICE)
        cache, made = [None] * model.layers, []
        for _ in range(new_tokens):
            ids = model(ids, cache).argmax(-1, keepdim=True)
            made.append(ids)
        yield torch.cat(made, 1).tolist()


def qwen3(steps):
    return generate(steps, 0, 24)


def mixture_of_experts(steps):
    return generate(steps, 8, 12)


# --- GraphSAGE-like training: neighbours sampled on the device, every step another size ------------------------------


def graphsage(steps, nodes=400_000, width=256, classes=40):
    torch.manual_seed(7)
    shapes = random.Random(8)
    degree = torch.randint(1, 60, (nodes,), device=DEVICE)
    starts = torch.cat((degree.new_zeros(1), degree.cumsum(0)))
    targets = torch.randint(nodes, (int(starts[-1]),), device=DEVICE)
    features = torch.randn(nodes, width, device=DEVICE)
    labels = torch.randint(classes, (nodes,), device=DEVICE)
    layers = [nn.Linear(2 * width, width if i < 2 else classes).to(DEVICE) for i in range(3)]
    optimizer = torch.optim.Adam([p for layer in layers for p in layer.parameters()], lr=1e-3)

    def sample(seeds, count):
        picks = starts[seeds, None] + torch.randint(1 << 30, (len(seeds), count), device=DEVICE) % degree[seeds, None]
        neighbours = targets[picks]
        unique, where = torch.cat((seeds, neighbours.flatten())).unique(return_inverse=True)
        return unique, where[:len(seeds)], where[len(seeds):].view(len(seeds), count)

    for _ in range(steps):
        seeds = torch.randint(nodes, (shapes.randrange(512, 2048),), device=DEVICE).unique()
        frontier, hops = seeds, []
        for count in (15, 10, 5):
            frontier, own, near = sample(frontier, count)
            hops.append((own, near))
        x = features[frontier]
        for i, (own, near) in enumerate(reversed(hops)):
            x = layers[i](torch.cat((x[own], x[near].mean(1)), 1))
            x = F.relu(x) if i < 2 else x
        loss = F.cross_entropy(x, labels[seeds])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        yield loss.item()


WORKLOADS = {
    "gpt2": (gpt2, 16),
    "gpt2_checkpointed": (gpt2_checkpointed, 14),
    "resnet50": (resnet50, 24),
    "qwen3": (qwen3, 6),
    "mixture_of_experts": (mixture_of_experts, 6),
    "graphsage": (graphsage, 80),
}
