"""What a user might bring, for data workers to unpickle: a module of its own, since a worker imports no test."""

from __future__ import annotations

import os
import random
import signal

import numpy as np

from vitrail.data.prepare import Picture


class Shades:
    """Pictures (6, 8, channels) of one grey each; the items in ``bad`` raise, ``fatal`` ends its process."""

    def __init__(self, count, *, channels=3, bad=(), fatal=None, floats=False):
        self.channels, self.bad, self.fatal, self.floats = channels, bad, fatal, floats
        self.targets = [number % 2 for number in range(count)]

    def __len__(self):
        return len(self.targets)

    def __getitem__(self, number):
        if number == self.fatal:
            os.kill(os.getpid(), signal.SIGKILL)
        if number in self.bad:
            raise OSError(f"no picture {number}")
        picture = np.full((6, 8, self.channels), number, np.uint8)
        return (picture / np.float32(255) if self.floats else picture), self.targets[number]


class Noise(Shades):
    """Pictures that Python's and numpy's global generators draw; it prints as it goes."""

    def __getitem__(self, number):
        print("drawing", number)
        picture = np.random.randint(0, 256, (6, 8, 3)).astype(np.uint8)
        picture[0, 0] = random.randrange(256)
        return picture, self.targets[number]


class Fickle(Noise):
    """Pictures of which a third of the times one cannot be made."""

    def __getitem__(self, number):
        if random.random() < 1 / 3:
            raise OSError(f"no picture {number} today")
        return super().__getitem__(number)


def noisy(picture):
    """A transform that draws from both global generators."""
    values = np.asarray(picture).transpose(2, 0, 1).astype(np.float32) / 255
    return (values * random.random() + np.random.rand(*values.shape)) / 2


def narrow(picture):
    """A transform that gives another size than asked for."""
    return np.zeros((3, 4, 4), np.uint8)


def normalised(picture):
    """A transform that normalises too, as torchvision's users write it."""
    return np.linspace(-1, 1, 3 * 24 * 16, dtype=np.float32).reshape(3, 24, 16)


def failing(picture):
    raise KeyError("a mistake in the transform")


def broken(epoch, sample, view):
    """Makes no picture, by a mistake of the program's."""
    raise LookupError("a mistake")


def sized(epoch, sample, view):
    """A picture whose size, type and classes of pixels depend on the sample; sample 19 has a megabyte."""
    side = 300 if sample == 19 else 5 * sample
    draw = np.random.default_rng(sample)
    pixels = draw.integers(0, 256, (side, side + 1, 3)).astype(np.uint8).transpose(2, 0, 1)  # not contiguous
    levels = draw.integers(0, 9, (side, 7)).astype(np.uint8)
    if sample % 2:
        return Picture(pixels / np.float32(255))
    return Picture(pixels, (0.0, 0.5, float(side), 1 / 3), (side, side + 1), levels)
