"""What `convert` does to every family of models that the installed libraries have: `make families`.

A family is a model type of Hugging Face's transformers, or a backbone of KerasHub. Its model is built from a small
config that is found without knowing the family (`shrinking`), so that a new family needs no code here. Of each,
`counting` counts the modules by kind and which of them `convert` replaces; `equality` compares results before and
after; `breaks` lists the graph breaks of torch.compile; `speed` times a training step. `page` writes docs/families.md
from what was counted.
"""
