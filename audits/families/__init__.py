"""Audits of `convert` on every family of models in the installed libraries: `make families`.

A family is a model type of Hugging Face's transformers, or a backbone of KerasHub. `shrinking` derives a small config
without knowledge of the family, so a new family needs no code here.

counting    counts the modules of a model by kind, and those that `convert` replaces
equality    compares results before and after conversion
breaks      lists graph breaks of torch.compile
speed       times a training step
page        writes docs/families.md from the counts
"""
