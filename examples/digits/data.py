"""scikit-learn's handwritten digits: 1797 images of 8 × 8 pixels, included in the package."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split


@dataclass(frozen=True)
class Digits:
    train_images: np.ndarray  # [images, 65]: pixels from 0 to 1, and a 1
    train_labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray


def load(seed: int = 0) -> Digits:
    """A fixed split: three quarters for training, one quarter for testing."""
    digits = load_digits()
    pixels = digits.data / 16
    # With a column of ones, the last row of the weights is a bias, so matmul suffices.
    images = np.hstack([pixels, np.ones((len(pixels), 1))]).astype(np.float32)
    labels = digits.target.astype(np.int64)
    split = train_test_split(images, labels, test_size=0.25, random_state=seed, stratify=labels)
    train_images, test_images, train_labels, test_labels = map(np.ascontiguousarray, split)
    return Digits(train_images, train_labels, test_images, test_labels)


def accuracy(logits: np.ndarray, labels: np.ndarray) -> float:
    """The fraction of images whose highest score is their label's."""
    return float(np.mean(logits.argmax(axis=1) == labels))
