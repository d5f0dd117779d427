# SPDX-License-Identifier: Apache-2.0
"""The two tiny models, their data, and data-parallel training with virtual ranks.

Virtual ranks: one process computes the gradient of n_ranks mini-batches, each drawn by its own
seeded generator, and steps Adam on their average - what data-parallel training computes, without
the processes. The models are chosen for what their gradients look like, not for accuracy: the CNN
has biases before batch norms, whose gradients are almost zero beside ordinary weights; the
language model has embedding rows that are zero whenever the word is not in the batch.

Needs torch and, for the CNN, the Fashion-MNIST idx files.
"""

import collections
import gzip
import os
import re

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

LEARNING_RATE = 1e-3
INIT_SEED = 7
RANK_SEED = 1000

IMAGE_FOLDER = "/usr/share/datasets/fashion-mnist"
IMAGE_BATCH = 32

LICENCE_FOLDER = "/usr/share/common-licenses"
LICENCE_NAMES = ("GPL-3", "LGPL-2.1", "GFDL-1.3", "MPL-2.0", "Apache-2.0")
UNKNOWN_WORD = "<unk>"
VOCAB_WORDS = 1792
CONTEXT_WORDS = 32
TEXT_BATCH = 16
WIDTH = 64
N_HEADS = 4
N_BLOCKS = 2


class Cnn(nn.Sequential):
    """Two convolutions with batch norm, two dense layers: 207 018 parameters."""

    def __init__(self):
        super().__init__(
            nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(32 * 7 * 7, 128), nn.ReLU(), nn.Linear(128, 10),
        )


class Block(nn.Module):
    """One pre-norm transformer block; parameters in the order they are used."""

    def __init__(self):
        super().__init__()
        self.norm_attention = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.project = nn.Linear(WIDTH, WIDTH)
        self.norm_mlp = nn.LayerNorm(WIDTH)
        self.expand = nn.Linear(WIDTH, 4 * WIDTH)
        self.contract = nn.Linear(4 * WIDTH, WIDTH)

    def attend(self, x):
        """Causal multi-head self-attention."""
        batch, n_words, _ = x.shape
        heads = self.qkv(x).view(batch, n_words, 3, N_HEADS, WIDTH // N_HEADS)
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        scores = query @ key.transpose(-1, -2) / (WIDTH // N_HEADS) ** 0.5
        future = torch.ones(n_words, n_words, dtype=torch.bool).triu(1)
        weights = scores.masked_fill(future, float("-inf")).softmax(-1)
        return self.project((weights @ value).transpose(1, 2).reshape(batch, n_words, WIDTH))

    def forward(self, x):
        x = x + self.attend(self.norm_attention(x))
        return x + self.contract(F.relu(self.expand(self.norm_mlp(x))))


class LanguageModel(nn.Module):
    """Word-level causal transformer, output not tied to the embedding: 331 520 parameters."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(VOCAB_WORDS, WIDTH)
        self.positions = nn.Embedding(CONTEXT_WORDS, WIDTH)
        self.blocks = nn.Sequential(*[Block() for _ in range(N_BLOCKS)])
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCAB_WORDS, bias=False)

    def forward(self, words):
        x = self.words(words) + self.positions(torch.arange(words.shape[1]))
        return self.head(self.norm(self.blocks(x)))


def read_idx(name):
    """Read a gzipped idx file of bytes into an array of its own shape."""
    with gzip.open(os.path.join(IMAGE_FOLDER, name), "rb") as f:
        raw = f.read()
    n_dims = raw[3]
    shape = np.frombuffer(raw, ">u4", n_dims, 4)
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * n_dims).reshape(shape)


def image_loss():
    """Return loss(model, generator) over random Fashion-MNIST mini-batches."""
    images = torch.from_numpy(read_idx("train-images-idx3-ubyte.gz").copy())
    labels = torch.from_numpy(read_idx("train-labels-idx1-ubyte.gz").astype(np.int64))

    def loss(model, generator):
        pick = torch.randint(len(images), (IMAGE_BATCH,), generator=generator)
        return F.cross_entropy(model(images[pick].unsqueeze(1).float() / 255), labels[pick])

    return loss


def read_words():
    """Read the licence texts as word numbers; vocabulary in alphabetical order.

    The vocabulary size is a constant so that the parameter layout, and with it the meaning of a
    slice offset, does not move when a licence text is reworded. It must not exceed the distinct
    words: rows no word can ever reach would be zero by construction.
    """
    text = ""
    for name in LICENCE_NAMES:
        with open(os.path.join(LICENCE_FOLDER, name), encoding="utf-8") as f:
            text += f.read().lower() + "\n"
    tokens = re.findall(r"[a-z]+|[0-9]+|[^\sa-z0-9]", text)
    counts = collections.Counter(tokens)
    if len(counts) < VOCAB_WORDS:
        raise ValueError(f"{LICENCE_FOLDER}: {len(counts)} distinct words, need {VOCAB_WORDS}")
    common = sorted(counts, key=lambda word: (-counts[word], word))[: VOCAB_WORDS - 1]
    numbers = {word: i for i, word in enumerate(sorted(common + [UNKNOWN_WORD]))}
    unknown = numbers[UNKNOWN_WORD]
    return torch.tensor([numbers.get(word, unknown) for word in tokens])


def text_loss():
    """Return loss(model, generator) over random windows of the licence texts."""
    corpus = read_words()

    def loss(model, generator):
        last = len(corpus) - CONTEXT_WORDS
        starts = torch.randint(last, (TEXT_BATCH, 1), generator=generator)
        window = corpus[starts + torch.arange(CONTEXT_WORDS + 1)]
        logits = model(window[:, :-1])
        return F.cross_entropy(logits.reshape(-1, VOCAB_WORDS), window[:, 1:].reshape(-1))

    return loss


# name -> (model class, factory of its loss function)
MODELS = {"cnn": (Cnn, image_loss), "lm": (LanguageModel, text_loss)}


def rank_gradient(model, loss, generator):
    """Return (loss value, flattened gradient in parameter order) of one virtual rank."""
    model.zero_grad()
    value = loss(model, generator)
    value.backward()
    return value.item(), torch.cat([p.grad.reshape(-1) for p in model.parameters()])


def apply_average(model, optimizer, grads):
    """Step the optimizer on the mean over ranks."""
    mean = grads.mean(dim=0)
    start = 0
    for p in model.parameters():
        p.grad = mean[start:start + p.numel()].view_as(p).clone()
        start += p.numel()
    optimizer.step()


def layout(name):
    """Return [(parameter name, first index, one past the last)] of the flattened gradient."""
    spans, start = [], 0
    for parameter_name, p in MODELS[name][0]().named_parameters():
        spans.append((parameter_name, start, start + p.numel()))
        start += p.numel()
    return spans


def gradients_at(name, step, n_ranks, log=print):
    """Train model `name` for `step` optimizer steps; return the next (n_ranks, n) gradients."""
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(INIT_SEED)
    model_class, make_loss = MODELS[name]
    model, loss = model_class(), make_loss()
    optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)
    generators = [torch.Generator().manual_seed(RANK_SEED + r) for r in range(n_ranks)]
    for done in range(step + 1):
        values, grads = zip(*(rank_gradient(model, loss, g) for g in generators))
        if done % 10 == 0:
            log(f"{name}: step {done}, mean loss {sum(values) / n_ranks:.3f}")
        if done < step:
            apply_average(model, optimizer, torch.stack(grads))
    return torch.stack(grads).numpy()
