"""cross_entropy."""

from __future__ import annotations

from benchmarks.operators.record import Input, Layout, Operator, scalar

OPERATORS = (
    Operator(
        "cross_entropy",
        inputs=(
            Input("logits"),
            Input(
                "labels", lambda case: Layout(case.shape[:-1], 0), gradient=False, classes=lambda case: case.shape[-1]
            ),
        ),
        outputs={"out": scalar},
        mean=True,
        moves=(1, 2),
        operations=(4, 3),
        formula=lambda n: lambda logits, labels: n.cross_entropy(n.upcast(logits), labels),
        torch=lambda torch: torch.nn.functional.cross_entropy,
        liger=lambda ops: (
            lambda logits, labels: ops.LigerCrossEntropyFunction.apply(
                logits, labels, None, -100, 0.0, 0.0, "mean", None, False
            )[0]
        ),
        quack=lambda quack: quack.cross_entropy,
        largest=(8192, 128256),  # columns: a vocabulary
        floors=(1.10, 1.08),
        tf_speeds={"XLA": 2.0},
    ),
)
