"""docs/families.md matches its recorded counts, and the counts of some families match `convert`."""

from __future__ import annotations

from importlib import metadata

import pytest

from audits.families import page
from audits.families.counting import KINDS
from tests.helpers.converting import converted

SAMPLE = ("bert", "gemma2", "gpt2", "gpt_oss", "llama", "mixtral", "phi3", "qwen3", "qwen3_vl", "t5", "vit", "whisper")


def test_the_page_matches_the_recorded_counts():
    assert page.PAGE.read_text() == page.text(page.load()), "Run: make families ARGS=--page"


@pytest.mark.parametrize("name", SAMPLE)
def test_a_family_is_counted_as_on_the_page(torch_cpu, transformers, name):
    from audits.families import hugging_face

    rows = page.load().get(f"transformers-{metadata.version('transformers')}")
    if rows is None:
        pytest.skip("the page is of other versions of transformers")
    assert hugging_face.row_of(name) == rows[name], "Run: make families"


def test_only_attentions_that_call_the_operator_are_counted(torch_cpu, fo, transformers):
    from audits.families import attending, hugging_face

    torch = torch_cpu.torch
    model = hugging_face.families()["llama"].plain()
    ours, theirs = (layer.self_attn for layer in model.model.layers)
    assert set(attending.attending(model, [ours, theirs])) == {ours, theirs}
    assert None not in attending.attending(model, [ours, theirs]).values()  # nothing is converted
    converted(fo, model)
    theirs.config = type(model.config)(**{**model.config.to_dict(), "attn_implementation": "sdpa"})
    why = attending.attending(model, [ours, theirs, torch.nn.Linear(1, 1)])
    assert why == {ours: None, theirs: attending.NOT_TAKEN}


def test_the_totals_are_sums_of_the_entries():
    for rows in page.load().values():
        totals = page.sums(rows)
        for kind in KINDS:
            there = [row["counts"].get(kind, [0, 0]) for row in rows.values() if "counts" in row]
            assert totals[kind] == [sum(counts) for counts in zip(*there, strict=True)]
            assert all(replaced <= count for count, replaced in there)


@pytest.mark.parametrize("name", ["BertBackbone", "LlamaBackbone", "T5Backbone"])
def test_a_backbone_is_counted_as_on_the_page(tf_cpu, keras, name):
    pytest.importorskip("keras_hub")
    from audits.families import keras_hub

    rows = page.load().get(f"keras-hub-{metadata.version('keras-hub')}")
    if rows is None:
        pytest.skip("the page is of other versions of KerasHub")
    assert keras_hub.row_of(name) == rows[name], "Run: make families"
