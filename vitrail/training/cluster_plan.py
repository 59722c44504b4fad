"""What a training would take on devices that are not here: memory, exchanges and time, by arithmetic on the cost of the network.

Compute time is 6 floating-point operations for each multiply-add of the forward pass, at a share ``mfu`` of the device's peak
(model FLOPs utilisation; Chowdhery et al. 2022, appendix B). Exchanges are those of rings: each device sends and receives
(W - 1) / W of what is exchanged. They overlap with computation, so only what takes longer than that costs time.

Not counted: latency, which matters above about a hundred devices, evaluation, checkpoints, and reading images.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from vitrail.config.schema import Parallel, Run
from vitrail.errors import ConfigError, nearest
from vitrail.models import Config, sketch
from vitrail.models.cost import count_cost, image_for, saved_bytes

SENT = 0.85  # of the rate of a network that is reached
STRATEGIES: tuple[Parallel, ...] = ("replicate", "hybrid", "shard")
MFU = 0.3  # reached by NeMo with ViT-g on H100


@dataclass(frozen=True)
class Device:
    """An accelerator by its data sheet."""

    operations: float  # per second, 16 bits, dense
    memory: float  # bytes
    link: float  # bytes per second to its neighbours in the same machine, in each direction


DEVICES = {
    "T4": Device(65e12, 16e9, 16e9),
    "V100": Device(125e12, 32e9, 150e9),
    "A100": Device(312e12, 80e9, 300e9),
    "L40S": Device(362e12, 48e9, 32e9),
    "H100": Device(989e12, 80e9, 450e9),
    "H200": Device(989e12, 141e9, 450e9),
    "B200": Device(2250e12, 180e9, 900e9),
}


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """``count`` devices, ``local`` of them in each machine."""

    device: Device
    count: int
    local: int
    network: float  # bytes per second that a machine sends to the others

    @classmethod
    def parse(cls, devices: str, network: str | None = None) -> Cluster:
        """``"64xH100"`` and ``"8x400Gb"``: the network cards of a machine, which has 8 devices, and bits per second of each.

        Raises `ConfigError`.
        """
        match = re.fullmatch(r"(\d+)x(\w+)", devices)
        if match is None or int(match[1]) < 1:
            raise ConfigError(f"--devices is {devices!r}", "give a number and a device, e.g. 64xH100")
        if match[2] not in DEVICES:
            raise ConfigError(f"the device {match[2]!r} is not known", nearest(match[2], DEVICES))
        count, local = int(match[1]), min(int(match[1]), 8)
        if count % local:
            raise ConfigError(f"{count} devices do not fill machines of {local}", f"give a multiple of {local}")
        cards = re.fullmatch(r"(?:(\d+)x)?(\d+)Gb", network or "1x100Gb")
        if cards is None:
            raise ConfigError(f"--network is {network!r}", "give the cards of a machine and their rate, e.g. 8x400Gb")
        sent = SENT * int(cards[1] or 1) * int(cards[2]) * 1e9 / 8
        return cls(device=DEVICES[match[2]], count=count, local=local, network=sent)


@dataclass(frozen=True, kw_only=True)
class Workload:
    """What a training asks of its devices, per parameter and per image."""

    parameters: int
    block: int  # parameters of the largest block, which is gathered at a time
    multiply_adds: int  # of the forward pass of one image
    activations: float  # bytes that one image keeps for the backward pass
    state: int  # bytes of optimiser state for each parameter
    average: bool  # whether there is an average of the weights
    gathered: int  # bytes of a parameter that is gathered: 4, or 2 with bf16 weights
    batch: int  # images of an update
    images: float | None = None  # of the whole run, if known

    @classmethod
    def of(cls, run: Run, config: Config, images: int | None = None) -> Workload:
        """Returns the workload of a run; ``images`` is the number in its training split."""
        drawn = sketch(config)
        precision = run.compute.precision or "bf16"
        steps, epochs = run.schedule.steps, run.schedule.epochs
        seen = steps * run.data.batch if steps is not None else epochs * images if epochs and images else None
        blocks = [sum(p.numel() for p in block.parameters()) for block in getattr(drawn, "blocks", [drawn])]
        # before the cost, which is counted without gradients
        activations = saved_bytes(drawn.train(), image_for(drawn))
        return cls(
            parameters=sum(p.numel() for p in drawn.parameters()),
            block=max(blocks),
            multiply_adds=count_cost(drawn).multiply_adds,
            activations=activations / (1 if precision == "fp32" else 2),
            state={"adamw": 8, "sgd": 4, "muon": 4}[run.optim.name],
            average=run.optim.ema is not None,
            gathered=2 if precision == "bf16-weights" else 4,
            batch=run.data.batch,
            images=seen,
        )


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """One way of distributing a training over a cluster."""

    parallel: Parallel
    micro: int
    memory: float  # bytes of a device
    fits: bool
    compute: float  # seconds of an update
    exchange: float
    sent: tuple[float, float]  # bytes that a device sends in an update, inside its machine and out of it
    images_per_second: float
    days: float | None


def static_bytes(work: Workload, shards: int) -> float:
    """Bytes of a device for parameters, gradients, optimiser, average, the copy that is evaluated, and gathered blocks."""
    sharded = (4 + 4 + work.state + 4 * work.average) * work.parameters / shards
    # two blocks are gathered at a time, and the gradient of one is whole until it is reduced
    return sharded + 4 * work.parameters + (0 if shards == 1 else (2 * work.gathered + 4) * work.block)


def sent_bytes(work: Workload, cluster: Cluster, parallel: Parallel, steps: int) -> tuple[float, float]:
    """Returns the bytes that a device sends in an update of so many micro-steps: to its own machine, and to others.

    Replicated gradients are reduced once an update, those of shards at each micro-step, for which blocks are gathered twice.
    """

    def ring(size: float, devices: int) -> float:
        return size * (devices - 1) / devices

    local, machines = cluster.local, cluster.count // cluster.local
    reduced, moved = 8 * work.parameters, (2 * work.gathered + 4) * work.parameters * steps
    if parallel == "hybrid":
        return ring(moved, local), ring(reduced / local * steps, machines)
    sent = ring(reduced if parallel == "replicate" else moved, cluster.count)
    return (sent, 0.0) if machines == 1 else (0.0, sent)


def estimate(work: Workload, cluster: Cluster, parallel: Parallel, micro: int, mfu: float = MFU) -> Estimate:
    """Estimates an update with micro-batches of ``micro`` images on each device."""
    share = work.batch / cluster.count
    steps = max(-(-work.batch // (cluster.count * micro)), 1)
    compute = 6 * work.multiply_adds * share / (mfu * cluster.device.operations)
    inside, outside = sent_bytes(work, cluster, parallel, steps)
    exchange = inside / cluster.device.link + outside / (cluster.network / cluster.local)
    shards = {"replicate": 1, "hybrid": cluster.local, "shard": cluster.count}[parallel]
    memory = static_bytes(work, shards) + micro * work.activations
    step = max(compute, exchange)
    return Estimate(
        parallel=parallel,
        micro=micro,
        memory=memory,
        fits=memory < cluster.device.memory * 0.9,
        compute=compute,
        exchange=exchange,
        sent=(inside, outside),
        images_per_second=work.batch / step,
        days=None if work.images is None else work.images / work.batch * step / 86400,
    )


def compare(work: Workload, cluster: Cluster) -> Iterator[Estimate]:
    """Yields each strategy with the largest micro-batch that fits, a power of two or the whole share; one image if none fits.

    Raises `ConfigError` if there are more devices than images in a batch.
    """
    if work.batch < cluster.count:
        what = f"a batch of {work.batch} is too small for {cluster.count} devices"
        raise ConfigError(what, "give at least one image for each: a larger --batch")
    share = -(-work.batch // cluster.count)
    sizes = [share, *(2**power for power in range(20, -1, -1) if 2**power < share)]
    strategies = STRATEGIES if cluster.count > cluster.local else ("replicate", "shard")
    for parallel in strategies:
        tried = [estimate(work, cluster, parallel, size) for size in sizes]
        yield next((found for found in tried if found.fits), tried[-1])


def describe(work: Workload, cluster: Cluster, devices: str) -> Iterator[str]:
    """Yields the plan line by line."""
    machines = cluster.count // cluster.local
    yield f"cluster  {devices}: {machines} x {cluster.local}, each machine sends {cluster.network / 1e9:.1f} GB/s"
    size = f"{work.parameters / 1e9:.3f} G parameters, {work.multiply_adds / 1e9:.1f} G multiply-adds"
    yield f"model    {size} and {work.activations / 1e6:.0f} MB of activations an image"
    yield f"update   {work.batch} images, {work.batch / cluster.count:g} on each device"
    peak = cluster.device.operations / 1e12
    yield f"assumes  {MFU:.0%} of {peak:.0f} TFLOP/s; exchanges overlap with computation; no latency"
    yield ""
    yield "parameters  micro-batch  GB a device  compute s  GB sent  exchange s   images/s     days"
    found = list(compare(work, cluster))
    for row in found:
        days = "" if row.days is None else f"{row.days:9.2f}"
        memory = f"{row.memory / 1e9:8.1f}{'    ' if row.fits else ' (!)'}"
        yield (
            f"{row.parallel:10s}  {row.micro:11d} {memory}  {row.compute:9.3f}  "
            f"{sum(row.sent) / 1e9:7.1f}  {row.exchange:10.3f}  {row.images_per_second:9.0f}{days}"
        )
    yield ""
    if fitting := [row for row in found if row.fits]:
        best = max(fitting, key=lambda row: (row.images_per_second, row.micro))
        yield f"choose   --set compute.parallel={best.parallel} --set data.micro_batch={best.micro}"
    else:
        yield f"(!) nothing fits in {cluster.device.memory / 1e9:.0f} GB: take more or larger devices, or a smaller model"
