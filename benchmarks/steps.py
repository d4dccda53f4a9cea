"""Whole training steps, time and memory: what a user gains from converting a model and its optimizer.

python -m benchmarks.steps                    on the GPU, if there is one: Llamas in PyTorch, an encoder in Keras
python -m benchmarks.steps --framework tf     in this process
python -m benchmarks.steps --quick            small models, few turns

Contenders have the same weights, and take turns step by step. Peak memory is that of a step with all that its own model
and optimizer hold.
"""

from __future__ import annotations

import argparse
import copy
import gc
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

FRAMEWORKS = ("torch", "tf")
TURNS, WARMUP = 12, 3

# Name -> the config of a Llama, and how many tokens a step has.
LLAMAS = {
    "Llama, 8 layers of 2048": (
        {
            "num_hidden_layers": 8,
            "hidden_size": 2048,
            "intermediate_size": 8192,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "vocab_size": 128_256,
        },
        4096,
    ),
    "Llama, 12 layers of 512": (
        {
            "num_hidden_layers": 12,
            "hidden_size": 512,
            "intermediate_size": 1408,
            "num_attention_heads": 8,
            "num_key_value_heads": 8,
            "vocab_size": 32_000,
        },
        128,
    ),
}
QUICK_LLAMA = {"num_hidden_layers": 1, "hidden_size": 64, "intermediate_size": 128, "vocab_size": 256}


@dataclass
class Contender:
    name: str
    step: Callable[[], Any]
    peak: Callable[[], float]  # GiB, of the steps since it was last asked


def report(title: str, contenders: list[Contender], wait: Callable[[], Any], turns: int) -> None:
    seconds: dict[str, list[float]] = {contender.name: [] for contender in contenders}
    peaks = dict.fromkeys(seconds, 0.0)
    for _ in range(turns):
        for contender in contenders:
            wait()
            start = time.perf_counter()
            contender.step()
            wait()
            seconds[contender.name].append(time.perf_counter() - start)
            peaks[contender.name] = max(peaks[contender.name], contender.peak())
    print(f"\n{title}", flush=True)
    for name, times in seconds.items():
        print(f"  {name:34} {median(times) * 1e3:9.2f} ms  {peaks[name]:7.2f} GiB", flush=True)


def in_torch(quick: bool) -> None:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    cuda = torch.cuda.is_available()
    device, dtype = ("cuda", torch.bfloat16) if cuda else ("cpu", torch.float32)
    wait = torch.cuda.synchronize if cuda else (lambda: None)
    for name, (config, tokens) in LLAMAS.items():
        torch.manual_seed(0)
        with torch.device(device):
            model = LlamaForCausalLM(LlamaConfig(use_cache=False, **(QUICK_LLAMA if quick else config))).to(dtype)
            ids = torch.randint(model.config.vocab_size, (1, 32 if quick else tokens))
        contenders = []
        for label, make in torch_makers(cuda and not quick):
            held = torch.cuda.memory_allocated() if cuda else 0
            try:
                step = make(copy.deepcopy(model), ids)
                for _ in range(WARMUP):
                    step()
            except Exception as error:
                print(f"  {label}: {type(error).__name__}: {error}", flush=True)
                continue
            gc.collect()
            own = (torch.cuda.memory_allocated() if cuda else 0) - held
            contenders.append(Contender(label, *_with_peak(step, own) if cuda else (step, lambda: 0.0)))
        title = "A small Llama" if quick else name
        report(f"{title}, {ids.numel()} tokens, {dtype}, AdamW", contenders, wait, 3 if quick else TURNS)
        del contenders, model, step
        torch._dynamo.reset()
        gc.collect()


def torch_makers(peers: bool) -> Iterator[tuple[str, Callable[[Any, Any], Callable[[], Any]]]]:
    import torch

    import fusedops.torch as fo
    from fusedops.torch.optim import AdamW

    def step_of(model: Any, ids: Any, optimizer: Any, called: Any = None) -> Callable[[], Any]:
        called = model if called is None else called

        def step() -> None:
            called(input_ids=ids, labels=ids).loss.backward()
            optimizer.step()
            optimizer.zero_grad()

        return step

    def fused(model: Any) -> Any:
        return torch.optim.AdamW(model.parameters(), fused=True)

    def compiled(model: Any, ids: Any, optimizer: Any, **inputs: Any) -> Callable[[], Any]:
        return step_of(model, ids, optimizer, partial(torch.compile(model, dynamic=False), **inputs))

    def converted(model: Any, **options: Any) -> Any:
        return fo.convert(model, verbose=False, **options)

    def of_liger(model: Any, ids: Any) -> Callable[[], Any]:
        from benchmarks.contenders.torch.llama import inside, ligers_rotation, with_liger

        step = step_of(with_liger(model), ids, fused(model))
        return lambda: inside(ligers_rotation, step)

    yield "eager", lambda m, ids: step_of(m, ids, fused(m))
    yield "fusedops, PyTorch's AdamW", lambda m, ids: step_of(converted(m), ids, fused(m))
    yield "fusedops", lambda m, ids: step_of(converted(m), ids, AdamW(m.parameters()))
    yield "fusedops, fuse_loss", lambda m, ids: step_of(converted(m, fuse_loss=True), ids, AdamW(m.parameters()))
    if peers:
        yield "Liger", of_liger
        yield "compiled", lambda m, ids: compiled(m, ids, fused(m))
        yield "fusedops, compiled", lambda m, ids: compiled(converted(m), ids, AdamW(m.parameters()))
        # Without a mask transformers compiles one of all pairs, for sequences that may be packed.
        yield "compiled, mask of ones", lambda m, ids: compiled(m, ids, fused(m), attention_mask=torch.ones_like(ids))
        yield (
            "fusedops, compiled, mask of ones",
            lambda m, ids: compiled(converted(m), ids, AdamW(m.parameters()), attention_mask=torch.ones_like(ids)),
        )


def _with_peak(step: Callable[[], Any], own: int) -> tuple[Callable[[], Any], Callable[[], float]]:
    import torch

    before = [0]

    def counted() -> None:
        torch.cuda.reset_peak_memory_stats()
        before[0] = torch.cuda.memory_allocated()
        step()

    return counted, lambda: (torch.cuda.max_memory_allocated() - before[0] + own) / 2**30


def in_tf(quick: bool) -> None:
    import keras
    import tensorflow as tf

    import fusedops.tf.keras as fk

    gpus = tf.config.list_physical_devices("GPU")
    for gpu in gpus:
        tf.config.experimental.set_memory_growth(gpu, True)
    layers, width, heads, batch, length = (1, 64, 4, 2, 32) if quick else (6, 1024, 16, 16, 1024)
    vocabulary = 256 if quick else 32_000
    keras.config.set_dtype_policy("mixed_bfloat16" if gpus else "float32")
    tokens = keras.Input((length,), dtype="int32")
    x = keras.layers.Embedding(vocabulary, width)(tokens)
    for _ in range(layers):
        h = keras.layers.MultiHeadAttention(heads, width // heads)(x, x)
        x = keras.layers.LayerNormalization()(x + h)
        h = keras.layers.Dense(width)(keras.layers.Dense(4 * width, activation="gelu")(x))
        x = keras.layers.LayerNormalization()(x + h)
    model = keras.Model(tokens, keras.layers.Dense(2)(x[:, 0]))
    batches = iter(
        tf.data.Dataset.from_tensors(
            (tf.random.uniform((batch, length), maxval=vocabulary, dtype=tf.int32), tf.zeros(batch, tf.int32))
        ).repeat()
    )

    def peak() -> float:
        most = tf.config.experimental.get_memory_info("GPU:0")["peak"] / 2**30 if gpus else 0.0
        if gpus:
            tf.config.experimental.reset_memory_stats("GPU:0")
        return float(most)

    contenders = []
    for jit in (False, True):
        for title, switch in (("Keras", fk.revert), ("fusedops", fk.convert)):
            switch(model, **({"verbose": False} if switch is fk.convert else {}))
            loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
            # An optimizer of its own for each: the step that Keras traces keeps it.
            module = fk if switch is fk.convert else keras
            model.compile(module.optimizers.AdamW(1e-4), loss, jit_compile=jit)
            if switch is fk.convert:
                fk.convert(model, verbose=False)  # with its loss
            model.make_train_function()
            step = partial(model.train_function, batches)
            for _ in range(WARMUP):
                step()
            contenders.append(Contender(f"{title}, {'XLA' if jit else 'graph'}", step, peak))
    wait = tf.test.experimental.sync_devices
    title = f"Keras encoder, {layers} layers of {width}, {heads} heads, {batch} x {length} tokens, AdamW"
    report(title, contenders, wait, 3 if quick else TURNS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--framework", choices=FRAMEWORKS)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    if options.framework is None:  # each in a process of its own, which frees the GPU's memory
        for framework in FRAMEWORKS:
            command = [sys.executable, "-m", "benchmarks.steps", f"--framework={framework}"]
            subprocess.run([*command, *(["--quick"] if options.quick else [])], check=False)
        return
    (in_torch if options.framework == "torch" else in_tf)(options.quick)


if __name__ == "__main__":
    main()
