"""How long a batch takes: learned from the batches that were computed."""

from __future__ import annotations

FORGETS = 0.9  # weight of an observation after the next one
RISES = 1.02  # of the fastest time, with each batch: a machine may become slower


class BatchTiming:
    """Predicts the seconds of a batch of n items as a + b n, by least squares in which recent batches weigh more.

    ``guess`` are the seconds per item before the first batch.
    """

    def __init__(self, guess: float) -> None:
        self._guess = guess
        self._weight = self._size = self._seconds = 0.0  # sums over batches: of 1, n, the seconds,
        self._square = self._product = 0.0  # of n^2, and of n times the seconds
        self._error = 0.0  # mean absolute error of predictions
        self._fastest = 0.0  # seconds per item; until the first batch nothing is known

    def add(self, size: int, seconds: float) -> None:
        """Records a batch of ``size`` items."""
        if self._weight:
            self._error += (1 - FORGETS) * (abs(seconds - self.predict(size)) - self._error)
        new = (1.0, size, seconds, size * size, size * seconds)
        old = (self._weight, self._size, self._seconds, self._square, self._product)
        self._weight, self._size, self._seconds, self._square, self._product = (
            FORGETS * before + added for before, added in zip(old, new)
        )
        self._fastest = min(RISES * self._fastest, seconds / size) if self._fastest else seconds / size

    def predict(self, size: int) -> float:
        """Returns the seconds of a batch of ``size`` items."""
        if not self._weight:
            return self._guess * size
        mean_size, mean_seconds = self._size / self._weight, self._seconds / self._weight
        variance = self._square / self._weight - mean_size**2
        covariance = self._product / self._weight - mean_size * mean_seconds
        most = mean_seconds / mean_size  # if nothing is fixed; batches of one size say no more
        slope = min(max(covariance / variance, 0.0), most) if variance > 1e-6 else most
        return mean_seconds + slope * (size - mean_size)

    @property
    def margin(self) -> float:
        """The error that a prediction may have, in seconds."""
        return 2 * self._error

    def bound(self, size: int) -> float:
        """Returns the least seconds that ``size`` items can take, by the fastest batch so far."""
        return self._fastest * size
