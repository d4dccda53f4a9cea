"""transformers' Trainer with fusedops's optimizer, and TRL's trainers, over original and converted models."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from tests.helpers.converting import converted
from tests.helpers.hugging_face import FAMILIES, VOCABULARY

STEPS, LENGTH, BATCH = 6, 12, 2
RATE, DECAY, MAX_NORM = 1e-2, 0.1, 0.5  # a norm that the gradients of the first steps exceed
SHORT = {  # arguments of every trainer
    **{"max_steps": STEPS, "per_device_train_batch_size": BATCH, "learning_rate": RATE},
    **{"report_to": "none", "disable_tqdm": True},
}


@pytest.fixture
def trainer(torch_backend, transformers, tmp_path):
    """A trainer of a small Llama on random tokens: the same model and data in every call."""
    if find_spec("accelerate") is None:
        pytest.skip("accelerate is not installed")
    torch = torch_backend.torch

    class Tokens(torch.utils.data.Dataset):
        def __init__(self):
            random = torch.Generator().manual_seed(1)
            self.rows = torch.randint(0, VOCABULARY, (STEPS * BATCH, LENGTH), generator=random, device="cpu")

        def __len__(self):
            return len(self.rows)

        def __getitem__(self, i):
            return {"input_ids": self.rows[i], "labels": self.rows[i]}

    class Recorded(transformers.Trainer):
        """Records the loss of each step."""

        def training_step(self, *args, **kwargs):
            loss = super().training_step(*args, **kwargs)
            self.losses.append(loss.item())
            return loss

    def made(optimizer, *, convert=None, is_made=False, **options):
        model = FAMILIES["llama"].build("float32", torch_backend.device)
        if convert is not None:
            converted(torch_backend.functions, model, **convert)
        arguments = transformers.TrainingArguments(
            str(tmp_path),
            **SHORT,
            weight_decay=DECAY,
            max_grad_norm=MAX_NORM,
            use_cpu=torch_backend.device == "cpu",
            logging_strategy="no",
            **{"save_strategy": "no", **options},
        )
        arguments._n_gpu = min(arguments.n_gpu, 1)  # by default it takes all GPUs
        by_class = {"optimizer_cls_and_kwargs": (optimizer, KWARGS)}
        hook = {"optimizers": (optimizer(model), None)} if is_made else by_class
        found = Recorded(model=model, args=arguments, train_dataset=Tokens(), **hook)
        found.losses = []
        return found

    return made


KWARGS = {"lr": RATE, "betas": (0.9, 0.95)}


def parameters(trainer):
    return [p.detach().clone() for p in trainer.model.parameters()]


@pytest.mark.parametrize("convert", [None, {}, {"fuse_loss": True}], ids=["as it is", "converted", "fused loss"])
def test_losses_equal_those_of_torchs_optimizer(torch, trainer, convert):
    from fusedops.torch.optim import AdamW

    theirs, ours = trainer(torch.optim.AdamW), trainer(AdamW, convert=convert)
    for each in (theirs, ours):
        each.train()
    assert type(ours.optimizer.optimizer) is AdamW
    inputs = ours._prepare_inputs({name: x[None] for name, x in ours.train_dataset[0].items()})
    assert (ours.model.train()(**inputs).logits is None) == bool(convert)  # {}: without a fused loss
    # A step divides by the root of the second moments, so the roundings of the gradients' sums count in full.
    roundings = STEPS * LENGTH * BATCH * torch.finfo(torch.float32).eps
    torch.testing.assert_close(ours.losses, theirs.losses, rtol=roundings, atol=0)
    assert len(ours.losses) == STEPS


def test_groups_and_clipping_of_trainer(torch, trainer):
    from fusedops.torch.optim import AdamW

    ours = trainer(AdamW)
    norms = []
    original = ours.accelerator.clip_grad_norm_

    def clip(parameters, limit, *args):
        norms.append(original(parameters, limit, *args).item())
        assert limit == MAX_NORM
        return torch.tensor(norms[-1])

    ours.accelerator.clip_grad_norm_ = clip
    ours.train()
    groups = ours.optimizer.param_groups
    decays = [group["weight_decay"] for group in groups]
    assert decays == [DECAY, 0.0] and all(group["betas"] == (0.9, 0.95) for group in groups)
    names = {p: name for name, p in ours.model.named_parameters()}
    assert all("norm" in names[p] for p in groups[1]["params"]) and len(groups[1]["params"]) == 5
    assert len(norms) == STEPS and norms[0] > MAX_NORM


def test_the_optimizer_clips_itself(torch, trainer):
    """With fusedops's `max_grad_norm` instead of Trainer's, passed as an object."""
    from fusedops.torch.optim import AdamW

    def optimizer(model):
        norms = [p for name, p in model.named_parameters() if "norm" in name]
        rest = [p for name, p in model.named_parameters() if "norm" not in name]
        groups = [{"params": rest, "weight_decay": DECAY}, {"params": norms, "weight_decay": 0.0}]
        return AdamW(groups, **KWARGS, max_grad_norm=MAX_NORM)

    theirs = trainer(torch.optim.AdamW)
    ours = trainer(optimizer, is_made=True)
    ours.args.max_grad_norm = 0.0
    for each in (theirs, ours):
        each.train()
    roundings = STEPS * LENGTH * BATCH * torch.finfo(torch.float32).eps
    torch.testing.assert_close(ours.losses, theirs.losses, rtol=roundings, atol=0)


@pytest.mark.parametrize("convert", [None, {"fuse_loss": True}], ids=["as it is", "converted"])
def test_a_resumed_run(torch, trainer, convert):
    """Gives the parameters of an uninterrupted run, bit for bit."""
    from fusedops.torch.optim import AdamW

    whole = trainer(AdamW, convert=convert)
    whole.train()
    first = trainer(AdamW, convert=convert, save_strategy="steps", save_steps=STEPS // 2)
    first.train()
    again = trainer(AdamW, convert=convert)
    again.train(resume_from_checkpoint=f"{first.args.output_dir}/checkpoint-{STEPS // 2}")
    assert again.losses == whole.losses[STEPS // 2 :] == first.losses[STEPS // 2 :]
    for x, y in zip(parameters(again), parameters(whole), strict=True):
        assert torch.equal(x, y)


def test_a_checkpoint_of_torchs_optimizer(torch, trainer):
    """A run that started with torch's optimizer continues with fusedops's."""
    from fusedops.torch.optim import AdamW

    first = trainer(torch.optim.AdamW, save_strategy="steps", save_steps=STEPS // 2)
    first.train()
    again = trainer(AdamW)
    again.train(resume_from_checkpoint=f"{first.args.output_dir}/checkpoint-{STEPS // 2}")
    roundings = STEPS * LENGTH * BATCH * torch.finfo(torch.float32).eps
    torch.testing.assert_close(again.losses, first.losses[STEPS // 2 :], rtol=roundings, atol=0)


@pytest.fixture
def trl_run(torch_backend, transformers, tmp_path):
    """Trains a small Llama by one of TRL's trainers: its loss and its norm of the gradients at each step."""
    trl = pytest.importorskip("trl", exc_type=ImportError)
    from datasets import Dataset
    from tokenizers import Tokenizer, models, pre_tokenizers

    torch = torch_backend.torch
    special = ["<pad>", "<eos>", "<unk>"]
    words = {word: i for i, word in enumerate([*special, *map(str, range(VOCABULARY - len(special)))])}
    by_word = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    by_word.pre_tokenizer = pre_tokenizers.Whitespace()
    names = dict(zip(("pad_token", "eos_token", "unk_token"), special, strict=True))
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=by_word, **names)
    FAMILIES["llama"].build().save_pretrained(tmp_path / "model")  # TRL loads the reference from there
    tokenizer.save_pretrained(tmp_path / "model")

    def texts(*columns):
        random = torch.Generator().manual_seed(1)

        def text():
            numbers = torch.randint(VOCABULARY - len(special), (LENGTH // 2,), generator=random, device="cpu")
            return " ".join(map(str, numbers.tolist()))

        return Dataset.from_list([{column: text() for column in columns} for _ in range(STEPS * BATCH)])

    def reward(completion_ids, **_):
        return [sum(ids) % 7.0 for ids in completion_ids]

    kinds = {
        "SFT": (texts("text"), {}, {}),
        "DPO": (texts("prompt", "chosen", "rejected"), {}, {}),
        "GRPO": (texts("prompt"), {"num_generations": 2, "max_completion_length": 4}, {"reward_funcs": reward}),
    }

    def run(kind, *, convert=None):
        data, options, more = kinds[kind]
        model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "model").to(torch_backend.device)
        if convert is not None:
            converted(torch_backend.functions, model, **convert)
        arguments = getattr(trl, f"{kind}Config")(
            str(tmp_path / "run"),
            **SHORT,
            bf16=False,
            use_cpu=torch_backend.device == "cpu",
            logging_steps=1,
            save_strategy="no",
            **options,
        )
        trainer = getattr(trl, f"{kind}Trainer")(
            model, args=arguments, train_dataset=data, processing_class=tokenizer, **more
        )
        trainer.train()
        return [(each["loss"], each["grad_norm"]) for each in trainer.state.log_history if "loss" in each]

    return run


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["SFT", "DPO", "GRPO"])
def test_trainers_of_trl(torch, trl_run, kind):
    """They compute log-probabilities from the last hidden states, by a loop of their own."""
    theirs, ours = trl_run(kind), trl_run(kind, convert={"fuse_loss": True})
    assert len(theirs) == STEPS and max(norm for _, norm in theirs) > 0
    roundings = STEPS * LENGTH * BATCH * torch.finfo(torch.float32).eps
    for got, expected in zip(torch.tensor(ours).T, torch.tensor(theirs).T, strict=True):
        torch.testing.assert_close(got, expected, rtol=0, atol=roundings * max(1.0, float(expected.abs().max())))
