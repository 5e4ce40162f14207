"""Checks of run/speed, which needs torch: run by a stack's Python.

PYTHONPATH=run:run/recipes STACK/bin/python tests/speed_checks.py CHECK [ARGUMENT ...]
"""

import copy
import dataclasses
import math
import os
import socket
import subprocess
import sys
import time
import warnings

import numpy as np
import speed
import torch
import torch.distributed as dist
from arguments import ModelArguments
from features import FeatureSet, Windows, collate, tokenise
from fine_tune import SAMPLE_FILES
from speed.batches import work
from speed.dropout import CheapDropout, Masks, Rate, draw_mask, drop, keep
from speed.encoder import GRAIN, EncoderLayer, Shape, bounds
from speed.precision import BF16, FP32, ONEDNN
from squad import read_examples
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from trainer import WARM_UP_STEPS, Clock, load_model, load_tokenizer
from transformers import (
    AlbertConfig,
    AutoModelForQuestionAnswering,
    BertConfig,
    BertModel,
    DistilBertConfig,
    RobertaConfig,
    XLMRobertaConfig,
)

torch.set_num_threads(1)
warnings.filterwarnings("ignore")

SMALL = {"vocab_size": 100, "max_position_embeddings": 40}
BERT = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96, **SMALL}
STILL = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
DISTIL = {"dim": 64, "n_layers": 2, "n_heads": 4, "hidden_dim": 96, **SMALL}
DISTIL_STILL = {"dropout": 0.0, "attention_dropout": 0.0, "qa_dropout": 0.0}
KINDS = (
    BertConfig(**BERT, **STILL),
    BertConfig(**BERT, **STILL, hidden_act="gelu_new"),
    RobertaConfig(**BERT, **STILL, pad_token_id=1),
    XLMRobertaConfig(**BERT, **STILL, pad_token_id=1),
    DistilBertConfig(**DISTIL, **DISTIL_STILL),
)


def near(found: torch.Tensor, true: torch.Tensor, limit: float) -> bool:
    """Whether the difference is small beside the true values as a whole."""
    return float((found.double() - true.double()).norm()) <= limit * float(true.double().norm()) + 1e-12


# --- without padding ---------------------------------------------------------------------------


def small_batch(pad_id: int, left: bool = False) -> dict[str, torch.Tensor]:
    """Five sequences of 1 to 23 tokens."""
    torch.manual_seed(1)
    ids, mask = torch.randint(2, 100, (5, 23)), torch.zeros(5, 23, dtype=torch.long)
    for row, length in enumerate((23, 5, 17, 1, 9)):
        mask[row, -length if left else 0 : None if left else length] = 1
    ids[mask == 0] = pad_id
    return {"input_ids": ids, "attention_mask": mask}


def answers(model, batch) -> torch.Tensor:
    """Start and end logits (2, tokens), padding left out."""
    outputs = model(**batch)
    return torch.stack([outputs.start_logits, outputs.end_logits])[:, batch["attention_mask"] != 0]


def gradients(model, batch) -> dict[str, torch.Tensor]:
    logits = answers(model, batch)
    ((logits**2).mean() + logits.sin().sum()).backward()
    # A key's bias moves all scores of a row alike: its gradient is 0, and what is computed is noise.
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None and not is_key(name)}


def is_key(name: str) -> bool:
    return name.endswith(("key.bias", "k_lin.bias"))


def unpadded_is_exact() -> None:
    """Logits and gradients are the padded model's: to rounding in float64, to its noise in float32."""
    for config in KINDS:
        torch.manual_seed(0)
        truth = AutoModelForQuestionAnswering.from_config(config).double().train()
        exact = speed.unpadded(copy.deepcopy(truth), say=fail)
        single = speed.unpadded(copy.deepcopy(truth).float(), say=fail)
        for left in (False, True):
            batch = small_batch(config.pad_token_id or 0, left)
            expected = answers(truth, batch)
            assert torch.allclose(answers(exact, batch), expected, rtol=0, atol=1e-12), config.model_type
            assert torch.allclose(answers(single, batch).double(), expected, rtol=0, atol=2e-6)
            assert torch.equal(answers(single, batch), answers(single.eval(), batch))
            single.train()
        true_gradients = gradients(truth, batch)
        for model, limit in ((exact, 1e-11), (single, 1e-5)):
            found = gradients(model, batch)
            assert found.keys() == true_gradients.keys()
            wrong = [name for name, grad in found.items() if not near(grad, true_gradients[name], limit)]
            assert not wrong, (config.model_type, wrong)


def fail(text: str) -> None:
    raise AssertionError(text)


def real_batch(count: int) -> dict[str, torch.Tensor]:
    rows = read_examples(SAMPLE_FILES["validation"]).rows[:count]
    features = FeatureSet(tokenise(rows, 0, load_tokenizer(ModelArguments()), Windows(384, 128)))
    batch = collate([features[index, 1.0] for index in range(count)], 0, True, least=384)
    return {name: batch[name] for name in ("input_ids", "attention_mask", "token_type_ids")}


def real_model_is_exact() -> None:
    """MiniLM on sample questions padded to 384: the same logits, in bf16 to bf16's noise."""
    stock = load_model(ModelArguments(dropout=0.0), seed=0).train()
    model = speed.unpadded(copy.deepcopy(stock), say=fail)
    batch = real_batch(6)
    truth = gradients(copy.deepcopy(stock).double(), batch)
    assert torch.allclose(answers(model, batch), answers(stock, batch), rtol=0, atol=1e-5)
    assert all(near(grad, truth[name], 1e-4) for name, grad in gradients(model, batch).items())
    with torch.autocast("cpu", torch.bfloat16):
        theirs, ours = answers(stock, batch).float(), answers(model, batch).float()
    true = answers(stock, batch)
    assert (ours - true).norm() < 1.5 * (theirs - true).norm(), "no worse than autocast on the stock model"


def stock_forward_where_asked_for() -> None:
    """What is not computed without padding comes from the stock model."""
    config = BertConfig(**BERT, **STILL)
    model = AutoModelForQuestionAnswering.from_config(config).eval()
    batch = small_batch(0)
    before = model(**batch, output_hidden_states=True)
    speed.unpadded(model)
    after = model(**batch, output_hidden_states=True)
    assert len(after.hidden_states) == 3
    assert torch.equal(before.start_logits, after.start_logits)
    assert model(batch["input_ids"]).start_logits.shape == (5, 23), "no mask: all are tokens"
    base = BertModel(config).eval()
    true = base(**batch).pooler_output
    assert torch.allclose(speed.unpadded(base)(**batch).pooler_output, true, atol=1e-6)
    said: list[str] = []
    sizes = {name: value for name, value in BERT.items() if name != "max_position_embeddings"}
    albert = AutoModelForQuestionAnswering.from_config(AlbertConfig(**sizes, embedding_size=16)).eval()
    before = albert(**batch).start_logits
    assert torch.equal(speed.unpadded(albert, said.append)(**batch).start_logits, before)
    assert len(said) == 1, said
    assert "albert is none of bert" in said[0]
    relu = AutoModelForQuestionAnswering.from_config(BertConfig(**BERT, hidden_act="relu"))
    speed.unpadded(relu, said.append)
    assert "activation relu" in said[1]


class Repeated(Masks):
    """Masks that a second model can be given once more, in the same order."""

    def draw(self, count: int, rate: float) -> tuple[torch.Tensor | None, float]:
        mask, scale = super().draw(count, rate)
        DRAWN.append((mask, scale))
        return mask, scale


DRAWN: list[tuple[torch.Tensor, float]] = []


def layer_with_dropout() -> None:
    """Output and gradients of a layer with dropout are autograd's of the plain formulas, same masks."""
    lengths, heads, width, middle = (7, 1, 12, GRAIN, 0, 37), 4, 32, 48
    torch.manual_seed(0)
    sizes = [(width, width), (width,)] * 4 + [(width,)] * 2
    sizes += [(middle, width), (middle,), (width, middle), (width,), (width,), (width,)]
    weights = [torch.randn(size, dtype=torch.float64).mul_(0.3).requires_grad_() for size in sizes]
    x = torch.randn(sum(lengths) + 3, width, dtype=torch.float64, requires_grad=True)  # 3 of no sequence
    for cheap in (True, False):
        DRAWN.clear()
        masks = Repeated(cheap)
        shape = Shape(bounds(lengths), heads, "none", (1e-12, 1e-12), (0.2, 0.3, 0.4), masks, True)
        wanted = [x, *weights]
        out = EncoderLayer.apply(x, shape, *weights)
        pull = torch.randn_like(out)
        found = torch.autograd.grad(out, wanted, pull)
        true_out = plain_layer(x, lengths, heads, weights)
        true = torch.autograd.grad(true_out, wanted, pull)
        assert near(out, true_out, 1e-12)
        for number, (ours, theirs) in enumerate(zip(found, true, strict=True)):
            assert number == 4 or near(ours, theirs, 1e-10), number  # 4: the key's bias


def plain_layer(x, lengths, heads, weights):
    """A layer in plain torch, with the masks that were drawn."""
    wq, bq, wk, bk, wv, bv, wo, bo, n1, c1, wu, bu, wd, bd, n2, c2 = weights
    drawn = iter(DRAWN)

    def dropped(values, padded=None):
        mask, scale = next(drawn)
        kept = (mask != 0).view(padded or values.shape)[tuple(slice(size) for size in values.shape)]
        return values * kept * scale

    attended = []
    for rows in x[: sum(lengths)].split(list(lengths)):
        q, k, v = (
            functional.linear(rows, weight, bias).view(len(rows), heads, len(weight) // heads).transpose(0, 1)
            for weight, bias in ((wq, bq), (wk, bk), (wv, bv))
        )
        scores = (q @ k.transpose(1, 2) / math.sqrt(q.shape[-1])).softmax(-1)
        padded = -(-len(rows) // GRAIN) * GRAIN
        attended.append(
            (dropped(scores, (heads, padded, padded)) @ v).transpose(0, 1).reshape(len(rows), len(wv))
        )
    attended.append(x.new_zeros(len(x) - sum(lengths), len(wv)))
    output = dropped(functional.linear(torch.cat(attended), wo, bo))
    half = functional.layer_norm(output + x, x.shape[1:], n1, c1, 1e-12)
    down = dropped(functional.linear(functional.gelu(functional.linear(half, wu, bu)), wd, bd))
    return functional.layer_norm(down + half, x.shape[1:], n2, c2, 1e-12)


# --- dropout -----------------------------------------------------------------------------------


def dropout_is_fair() -> None:
    """Rate, scale, and independence of neighbours, of places in a word, and of calls."""
    count = 1 << 20
    for wanted in (0.1, 0.5, 0.01, 0.3):
        rate = Rate.near(wanted)
        assert abs(rate.value - wanted) <= 0.05 * wanted
        torch.manual_seed(7)
        first, second = (draw_mask(count, rate) == 0 for _ in range(2))
        deviation = math.sqrt(rate.value * (1 - rate.value) / count)
        assert abs(float(first.float().mean()) - rate.value) < 4.5 * deviation
        a_word = 64 // rate.bits
        by_place = first.view(-1, a_word).float().mean(0)
        assert float((by_place - rate.value).abs().max()) < 4.5 * deviation * math.sqrt(a_word), by_place
        for shift in (1, 2, 3, 4, 8, 64, 1024):
            assert abs(correlation(first[shift:], first[:-shift])) < 5 / math.sqrt(count), shift
        assert abs(correlation(first, second)) < 5 / math.sqrt(count)
        values = torch.ones(count)
        assert abs(float(drop(values, wanted).mean()) - 1) < 5 * deviation * rate.scale


def correlation(left: torch.Tensor, right: torch.Tensor) -> float:
    return float(torch.corrcoef(torch.stack([left.float(), right.float()]))[0, 1])


def dropout_is_repeatable() -> None:
    """The same seed, or state of torch's generator, gives the same masks; backward uses forward's."""
    for kind in (torch.float32, torch.bfloat16, torch.float64):
        values = torch.randn(3, 5, 7).to(kind).requires_grad_()
        module = CheapDropout(0.4)
        torch.manual_seed(3)
        first, state = module(values), torch.get_rng_state()
        later = module(values)
        assert not torch.equal(first, later)
        torch.set_rng_state(state)
        assert torch.equal(module(values), later)
        torch.manual_seed(3)
        assert torch.equal(module(values), first)
        (grad,) = torch.autograd.grad(first.sum(), values)
        scale = Rate.near(0.4).scale
        assert torch.equal(first != 0, grad != 0)
        assert near(first.detach(), values.detach() * grad, 0.01 if kind == torch.bfloat16 else 1e-6)
        assert set(grad.unique().tolist()) == {0, torch.tensor(scale, dtype=kind).item()}
        assert torch.equal(module.eval()(values), values)
    odd = torch.randn(3, 4, 5).transpose(0, 2)
    assert torch.equal(keep(odd.contiguous(), torch.full((60,), -1, dtype=torch.int8)), odd)


def models_dropout() -> None:
    """All of a model's dropout is replaced, attention's too, padded or not; evaluation is unchanged."""
    config = BertConfig(**BERT)
    torch.manual_seed(0)
    stock = AutoModelForQuestionAnswering.from_config(config)
    batch = small_batch(0)
    expected = answers(stock.eval(), batch)
    for unpadded in (False, True):
        model = speed.cheap_dropout(copy.deepcopy(stock))
        assert {type(m) for m in model.modules() if isinstance(m, torch.nn.Dropout)} == {CheapDropout}
        if unpadded:
            speed.unpadded(model, say=fail)
        assert torch.allclose(answers(model.eval(), batch), expected, atol=2e-6)
        model.train()
        mean = torch.stack([answers(model, batch) for _ in range(400)]).mean(0)
        assert near(mean, expected, 0.1), "what is kept makes up for what is dropped"
    for name, rate in (("hidden", 0.0), ("attention", 0.9)):
        model = speed.cheap_dropout(copy.deepcopy(stock)).train()
        for module in model.modules():
            if isinstance(module, CheapDropout):
                module.p = 0.0
        for layer in model.bert.encoder.layer:
            layer.attention.self.dropout.p = rate
        assert torch.equal(answers(model, batch), answers(model, batch)) == (name == "hidden"), name


# --- gradients, batches, precision -------------------------------------------------------------


def compressed_gradients() -> None:
    """Two ranks: DDP's means within bf16's noise, equal on both, and rows that no rank used stay zero."""
    table, layer = torch.nn.Embedding(5000, 256), torch.nn.Linear(256, 5000)
    assert speed.large_tables(torch.nn.Sequential(table, layer)) == {id(table.weight)}
    layer.weight = table.weight
    assert not speed.large_tables(torch.nn.Sequential(table, layer)), "every row has a gradient"
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    place = {**os.environ, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    place |= {"GLOO_SOCKET_IFNAME": "lo"}
    command = [sys.executable, __file__, "compressing_rank"]
    ranks = [subprocess.Popen(command, env={**place, "RANK": str(rank)}) for rank in range(2)]
    assert [rank.wait(60) for rank in ranks] == [0, 0]


def compressing_rank() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    parts = (torch.nn.Embedding(5000, 256), torch.nn.Linear(256, 256), torch.nn.Linear(256, 3))
    model = torch.nn.Sequential(*parts)
    stock = DistributedDataParallel(copy.deepcopy(model))
    ours = DistributedDataParallel(copy.deepcopy(model), gradient_as_bucket_view=True)
    sent: list[int] = []
    all_reduce = dist.all_reduce

    def counting(tensor, *arguments, **named):
        sent.append(tensor.numel() * tensor.element_size())
        return all_reduce(tensor, *arguments, **named)

    dist.all_reduce = counting
    speed.compress_gradients(ours)
    for turn in range(3):
        torch.manual_seed(10 * turn + dist.get_rank())
        first, second = torch.randint(0, 5000, (2, 4, 20))
        sent.clear()
        for wrapped in (stock, ours):
            wrapped.zero_grad()
            with wrapped.no_sync():
                wrapped(first).square().sum().backward()
            assert not sent
            wrapped(second).square().sum().backward()
        assert sum(sent) < 1_000_000, "the table has 5 MB"
        true, found = ([p.grad for p in wrapped.parameters()] for wrapped in (stock, ours))
        assert all(near(mine, theirs, 0.006) for mine, theirs in zip(found, true, strict=True))
        assert torch.equal(found[0] != 0, true[0] != 0)
        flat = torch.cat([grad.flatten() for grad in found])
        theirs = flat.clone()
        dist.broadcast(theirs, 0)
        assert torch.equal(flat, theirs), "ranks that differ grow apart"
    sys.stdout.flush()
    os._exit(0)


def equal_work() -> None:
    """Each sequence once, as many to each rank, and the busiest rank has little more than the mean."""
    random = np.random.default_rng(0)
    for ranks, each in ((1, 7), (2, 12), (4, 6), (3, 1), (16, 8)):
        lengths = random.integers(20, 385, ranks * each).tolist()
        shares = speed.deal(lengths, ranks)
        assert sorted(index for share in shares for index in share) == list(range(len(lengths)))
        assert {len(share) for share in shares} == {each}
        loads = [sum(work(lengths[index]) for index in share) for share in shares]
        assert each == 1 or max(loads) < 1.1 * sum(loads) / ranks, (ranks, loads)
    assert speed.deal([5, 5, 5, 5], 2) == [[0, 2], [1, 3]], "the same on every rank"


def precision() -> None:
    """Measured in under a second, and what was set before is set again; the slowest rank decides."""
    before = torch.get_float32_matmul_precision()
    begun = time.perf_counter()
    rates = speed.precision.measure()
    assert time.perf_counter() - begun < 5  # 0.5 s on a core of its own
    assert rates[FP32] > 0 < rates[BF16]
    assert torch.get_float32_matmul_precision() == before
    fast, slow = {FP32: 100, ONEDNN: 240, BF16: 490}, {FP32: 100, ONEDNN: 240, BF16: 40}
    amx, old = {FP32: 100, ONEDNN: 0, BF16: 900}, {FP32: 100, ONEDNN: 105, BF16: 20}
    choose = speed.precision.choose
    assert choose([fast]) == choose([fast, amx]) == BF16
    assert choose([fast, slow]) == ONEDNN
    assert choose([old]) == choose([amx, old]) == FP32
    assert choose([amx], bf16=False) == FP32
    assert choose([fast], bf16=False) == ONEDNN
    assert choose([old], bf16=True) == BF16


# --- where the time goes -----------------------------------------------------------------------


def time_is_split() -> None:
    """Two ranks: the last to come only sends, the other waits for it too; the first steps do not count."""
    first = [(9.0, 0.0, 9.0, 0.0)] * 3
    fast, slow = [(1.0, 0.1, 0.5, 2e9), (1.0, 0.1, 0.3, 2e9)], [(1.0, 0.0, 0.2, 2e9), (1.0, 0.0, 0.3, 2e9)]
    found = speed.split([np.array(first + fast), np.array(first + slow)], (8.0, 2.0))
    assert found is not None
    shares = [found.compute, found.all_reduce, found.waiting, found.data]
    assert np.allclose(shares, [0.625, 0.25, 0.075, 0.05])
    assert (round(found.gflop_per_s, 6), round(found.peak_share, 6), found.slowest) == (4.0, 0.4, 1)
    assert speed.split([np.zeros((0, 4))]) is None
    times = speed.StepTimes()
    times.fetched(0.5)
    times.worked(7.0)
    times.bucket()
    times.blocked(0.25)
    time.sleep(0.01)
    times.arrived()
    times.step()
    times.step()
    (_, data_s, sending_s, operations), second = times.array()
    assert (data_s, operations) == (0.5, 7.0)
    assert 0.26 <= sending_s < 0.5
    assert list(second[1:]) == [0, 0, 0]


def operations_are_counted() -> None:
    """As torch counts them, but for the products of attention's backward pass it does not have to do."""
    from torch.utils.flop_counter import FlopCounterMode

    for kind in KINDS[:1] + KINDS[-1:]:
        model = AutoModelForQuestionAnswering.from_config(kind, attn_implementation="eager").train()
        ids = torch.randint(2, 100, (3, 20))
        with FlopCounterMode(display=False) as counter:
            outputs = model(ids, attention_mask=torch.ones_like(ids))
            (outputs.start_logits.sum() + outputs.end_logits.sum()).backward()
        ours = speed.work_of(model).training([20] * 3)
        assert abs(ours / counter.get_total_flops() - 1) < 0.02, (kind.model_type, ours)


def advice() -> None:
    """One line, on what stands out most; none where nothing does."""
    from parts import advise

    well = speed.Split(0.9, 0.05, 0.03, 0.02, 0.4, 100.0, 1)
    assert advise(well, "tcmalloc") is None
    assert "tcmalloc" in advise(well, "glibc")
    assert "rank 1" in advise(dataclasses.replace(well, waiting=0.3, all_reduce=0.2), "glibc")
    assert "accumulation" in advise(dataclasses.replace(well, all_reduce=0.2), "tcmalloc")
    assert "workers" in advise(dataclasses.replace(well, data=0.2), "tcmalloc")


def rates_of_runs_short_and_long() -> None:
    """The warm-up is left out where there are more steps, and counts where there are none."""
    clock = Clock()
    for _ in range(WARM_UP_STEPS):
        count_a_step(clock)
    assert clock.samples_per_s == 6 * WARM_UP_STEPS / clock.train_s
    assert clock.samples_per_cpu_s < 6 * WARM_UP_STEPS / 0.01, "CPU seconds of these steps, not of none"
    warm = clock.last
    count_a_step(clock)
    assert clock.samples_per_s == 6 / (clock.last.wall_s - warm.wall_s)
    assert clock.samples_per_cpu_s == 6 / (clock.last.cpu_s - warm.cpu_s)


def count_a_step(clock: Clock) -> None:
    begun = time.process_time()
    while time.process_time() < begun + 0.01:
        pass
    clock.add(6, 0.0)
    clock.step()


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
