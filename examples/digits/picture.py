"""The results, as one picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from common import picture
from common.picture import BASELINE, FUSED, INK
from common.stopwatch import Times
from comparing import Comparison, of_logits
from data import Digits
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap

DIFFERENCES = LinearSegmentedColormap.from_list("differences", ["white", BASELINE, "#7a2e0e"])


def save(
    path: Path,
    losses: Sequence[float],
    accuracies: Sequence[float],
    logits: np.ndarray,
    digits: Digits,
    comparisons: Sequence[Comparison],
    measured: Sequence[Times],
) -> None:
    with picture.saved(path, (15, 9.5)) as figure:
        top, bottom = figure.subfigures(2, 1, height_ratios=(0.92, 1), hspace=0.03)
        left, middle, right = top.subplots(1, 3)
        _losses(left, losses, accuracies)
        _confusion(middle, logits, digits.test_labels)
        _hardest(right, logits, digits)

        compared = of_logits(comparisons)
        if compared:
            maps, bars = bottom.subfigures(1, 2, width_ratios=(1, 2.1), wspace=0.03)
            for axes, comparison in zip(maps.subplots(1, len(compared), sharey=True), compared, strict=True):
                _bits(axes, comparison)
            maps.supylabel("test image", size=10)
            maps.suptitle("Bits of test logits that differ", x=0.02, ha="left", size=12, weight="bold")
        else:
            bars = bottom
        picture.times(bars, measured)


def _losses(axes: Axes, losses: Sequence[float], accuracies: Sequence[float]) -> None:
    epochs = range(1, len(losses) + 1)
    axes.semilogy(epochs, losses, color=FUSED, linewidth=2)
    axes.set(title="Training in PyTorch", xlabel="epoch")
    axes.set_ylabel("loss", color=FUSED)
    right = axes.twinx()
    right.plot(epochs, [100 * accuracy for accuracy in accuracies], color=BASELINE, linewidth=2)
    right.set_ylabel("test accuracy, %", color=BASELINE)
    right.annotate(
        f"{100 * accuracies[-1]:.1f} %",
        (len(losses), 100 * accuracies[-1]),
        xytext=(0, -16),
        textcoords="offset points",
        ha="right",
        color=BASELINE,
        weight="bold",
    )


def _confusion(axes: Axes, logits: np.ndarray, labels: np.ndarray) -> None:
    counts = np.zeros((10, 10), int)
    np.add.at(counts, (labels, logits.argmax(axis=1)), 1)
    axes.imshow(np.sqrt(counts), cmap="GnBu")  # the root keeps single errors visible beside forty correct answers
    for row, column in zip(*np.nonzero(counts), strict=True):
        color = "white" if row == column else INK
        axes.text(column, row, counts[row, column], ha="center", va="center", color=color, size=9)
    axes.set(title="Test digits: confusion", xlabel="answer", ylabel="digit", xticks=range(10), yticks=range(10))
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)


def _hardest(axes: Axes, logits: np.ndarray, digits: Digits, rows: int = 3, columns: int = 5) -> None:
    """The test digits with the lowest probability of their label."""
    exponentials = np.exp(logits - logits.max(axis=1, keepdims=True))
    probabilities = exponentials / exponentials.sum(axis=1, keepdims=True)
    order = probabilities[np.arange(len(logits)), digits.test_labels].argsort()[: rows * columns]
    axes.set(title="The hardest test digits", xlim=(0, columns), ylim=(rows * 1.3, 0))
    axes.set_axis_off()
    for place, index in enumerate(order):
        x, y = place % columns, place // columns * 1.3
        image = digits.test_images[index, :64].reshape(8, 8)
        axes.imshow(image, cmap="gray_r", extent=(x + 0.06, x + 0.94, y + 0.94, y + 0.06), interpolation="nearest")
        label, answer = digits.test_labels[index], logits[index].argmax()
        right = label == answer
        text = f"{label}" if right else f"{label}, read {answer}"
        axes.text(x + 0.5, y + 1.08, text, ha="center", va="center", color=FUSED if right else "#b3261e", size=9)
    axes.set(xlim=(0, columns), ylim=(rows * 1.3, 0), aspect="equal")


def _bits(axes: Axes, comparison: Comparison) -> None:
    """One cell per test logit, darker the more bits differ."""
    bits = comparison.differing_bits
    axes.imshow(bits, cmap=DIFFERENCES, vmin=0, vmax=12, aspect="auto", interpolation="nearest")
    axes.set_title(f"{comparison.other},\n{comparison.operators}:\n{bits.sum():,} bits", size=10, weight="normal")
    axes.set(xlabel="logit of digit", xticks=range(0, 10, 3))
    axes.spines[:].set_visible(True)
