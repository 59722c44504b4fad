"""The claims of the ViT paper (Dosovitskiy et al. 2021) that trainings of classifiers can test, and those that nothing here can.

Quotes are the paper's words. A claim is asked where the cells of its experiment are there; `vitrail.evaluation.claim` says
what the contrasts mean.
"""

from __future__ import annotations

from vitrail.evaluation.claim import (
    LOGIT,
    POINT,
    Beside,
    Change,
    Claim,
    Compute,
    Difference,
    Finding,
    LastDoubling,
    Pairs,
    Published,
    Ranks,
    Slope,
)
from vitrail.evaluation.verdicts import Equal, Greater, Ratio

SIZES, LOWEST = "data.limit", {"data.limit": "lowest"}
VITS, BITS = ("vit-s", "vit-m", "vit-l"), ("bit-s", "bit-m", "bit-l")
HYBRIDS = ("hybrid-s", "hybrid-m", "hybrid-l")
DEEPEST = ("deep-narrow", "depth-12")
REGULARISED = ("decay", "dropout", "drop-path", "smoothing")

_ALL = (
    Claim(
        name="data-hungry",
        quote="Vision Transformers overfit more than ResNets with comparable computational cost on smaller datasets",
        source="section 4.3, figure 4",
        question="BiT - ViT of equal compute, on the smallest third of the training sets",
        experiment="families",
        contrast=Difference(plus="bit", minus="vit", at={SIZES: "lowest third"}),
        rule=Greater(by=LOGIT),
        scale="logit",
        regime="data-limited",
        beside=(
            Beside(name="on all images", contrast=Difference(plus="bit", minus="vit")),
            Beside(
                name="BiT with a stem for small images, on the fewest",
                contrast=Difference(plus="bit", minus="vit", at=LOWEST),
                experiment="families-small-stem",
            ),
        ),
    ),
    Claim(
        name="gap-closes",
        quote="the convolutional inductive bias is useful for smaller datasets, but for larger ones, learning the relevant "
        "patterns directly from data is sufficient, even beneficial",
        source="section 4.3",
        question="How ViT - BiT grows with each factor of ten of training images",
        experiment="families",
        contrast=Slope(plus="vit", minus="bit", along=SIZES),
        rule=Greater(by=LOGIT),
    ),
    Claim(
        name="crossover",
        quote="The BiT CNNs outperform ViT on ImageNet, but with the larger datasets, ViT overtakes",
        source="section 4.3, figure 3",
        question="ViT - BiT on all training images",
        experiment="families",
        contrast=Difference(plus="vit", minus="bit"),
        beyond="the paper speaks of 10^8 images: so few as here cannot contradict it",
    ),
    Claim(
        name="hybrid-small",
        quote="hybrids slightly outperform ViT at small computational budgets",
        source="section 4.4, figure 5",
        question="Hybrid - ViT at the smallest size",
        experiment="hybrids",
        contrast=Difference(plus="hybrid", minus="vit"),
    ),
    Claim(
        name="smaller-patches",
        quote="Decreasing the patch size and thus increasing the effective sequence length shows surprisingly robust "
        "improvements without introducing parameters",
        source="appendix D.2, figure 8",
        question="What each halving of the patch gains for equal images: all of them must",
        experiment="patches",
        contrast=Pairs(
            pairs=(("patch-16", "patch-32"), ("patch-8", "patch-16"), ("patch-4", "patch-8"), ("patch-2", "patch-4"))
        ),
        beside=(
            Beside(
                name="the smallest patch for equal FLOPs",
                contrast=Difference(plus="patch-4-equal-compute", minus="patch-8"),
            ),
        ),
        caveat="A smaller patch costs more for each image, as in the paper; at equal FLOPs it says nothing.",
    ),
    Claim(
        name="cls-equals-gap",
        quote="the difference in performance is fully explained by the requirement for a different learning-rate",
        source="appendix D.3, figure 9",
        question="Average pooling - class token, each at its own best rate",
        experiment="pooling",
        contrast=Difference(plus="gap", minus="cls"),
        rule=Equal(within=POINT),
    ),
    Claim(
        name="depth-over-width",
        quote="scaling the depth results in the biggest improvements",
        source="appendix D.2, figure 8",
        question="Deep and narrow - shallow and wide, at equal FLOPs",
        experiment="shape",
        contrast=Difference(plus="deep-narrow", minus="shallow-wide"),
        beside=(Beside(name="deep - base", contrast=Difference(plus="deep-narrow", minus="base")),),
    ),
    Claim(
        name="compute-not-parameters",
        quote="compute might be a better predictor of performance than the number of parameters",
        source="appendix D.2",
        question="Rank correlation of accuracy with FLOPs less that with parameters, over all shapes",
        experiment="shape",
        contrast=Ranks(),
        rule=Greater(by=0.0),
    ),
    Claim(
        name="low-layers-mix",
        quote="some heads attend to most of the image already in the lowest layers",
        source="section 4.5, figure 7",
        question="Share of models whose lowest third of layers has both local and global heads",
        experiment="shape",
        contrast=Finding(arm=DEEPEST, figure="heads.share_mixed", present=True),
        rule=Greater(by=0.5),
    ),
    Claim(
        name="distance-grows",
        quote="the attention distance increases with network depth",
        source="section 4.5, figure 7",
        question="Rank correlation of a layer's mean attention distance with its depth",
        experiment="shape",
        contrast=Finding(arm=DEEPEST, figure="heads.distance_by_depth", unit="correlation"),
        rule=Greater(by=0.0),
    ),
    Claim(
        name="hybrid-less-local",
        quote="This highly localized attention is less pronounced in hybrid models that apply a ResNet before the Transformer",
        source="section 4.5, figure 7",
        question="Share of local heads in the lowest third of layers: ViT - hybrid",
        experiment="hybrids",
        contrast=Finding(arm="vit", against="hybrid", figure="heads.share_local"),
        rule=Greater(by=0.0),
    ),
    Claim(
        name="less-bias",
        quote="Vision Transformer has much less image-specific inductive bias than CNNs",
        source="section 3.1",
        question="How far features move when the image is shifted by 1 to 4 pixels, of the distance between images: ViT - BiT",
        experiment="families",
        contrast=Finding(arm="vit", against="bit", figure="shifts.moved"),
        rule=Greater(by=0.0),
        beside=(
            Beside(
                name="answers that change",
                contrast=Finding(arm="vit", against="bit", figure="shifts.changed"),
            ),
        ),
        caveat="Shifts only. All networks were trained on shifted crops, which teaches a ViT a part of what a CNN has.",
    ),
    Claim(
        name="positions-encode-distance",
        quote="closer patches tend to have more similar position embeddings",
        source="section 4.5, figure 7",
        question="Share of positions whose most similar one is a neighbour, less that of an untrained model",
        experiment="shape",
        contrast=Finding(arm="base", figure="positions.neighbour_rate", less="positions.untrained_neighbour_rate"),
        rule=Greater(by=0.1),
        beside=(
            Beside(
                name="similarity in the row or column above that elsewhere",
                contrast=Finding(arm="base", figure="positions.row_column_excess", unit="correlation"),
            ),
        ),
    ),
    Claim(
        name="large-needs-data",
        quote="ViT-Large models underperform compared to ViT-Base models ... Only with JFT-300M, do we see the full benefit "
        "of larger models",
        source="section 4.3, figure 3",
        question="Large - small ViT on all images, less the same on the fewest",
        experiment="sizes",
        contrast=Change(plus="large", minus="small", along=SIZES),
        rule=Greater(by=LOGIT),
        scale="logit",
    ),
    Claim(
        name="compute",
        quote="ViT uses approximately 2-4x less compute to attain the same performance",
        source="section 4.4, figure 5",
        question="How many times less compute ViT needs than BiT for the same accuracy",
        experiment="compute",
        contrast=Compute(plus=VITS, minus=BITS),
        rule=Ratio(low=2, high=4),
        regime="compute-limited",
        caveat="Tuned ResNets without normalisation matched ViTs at large scale (Smith et al. 2023).",
    ),
    Claim(
        name="no-saturation",
        quote="Vision Transformers appear not to saturate within the range tried",
        source="section 4.4",
        question="What the last doubling of compute gained, along the best ViTs",
        experiment="compute",
        contrast=LastDoubling(arms=VITS),
        rule=Greater(by=0.0),
    ),
    Claim(
        name="hybrid-vanishes",
        quote="but the difference vanishes for larger models",
        source="section 4.4, figure 5",
        question="How ViT - hybrid grows with each factor of ten of compute",
        experiment="compute",
        contrast=Slope(plus=VITS, minus=HYBRIDS, along="flops"),
        rule=Greater(by=0.0),
    ),
    Claim(
        name="positions-matter",
        quote="there is a large gap between the performances of the model with no positional embedding and models with "
        "positional embedding",
        source="appendix D.4, table 8",
        question="1-D positions - none",
        experiment="positions",
        contrast=Difference(plus="1d", minus="none"),
        rule=Greater(by=2 * POINT),
    ),
    Claim(
        name="positions-alike",
        quote="there is little to no difference between different ways of encoding positional information",
        source="appendix D.4, table 8",
        question="1-D, 2-D and relative positions: all pairs",
        experiment="positions",
        contrast=Pairs(pairs=(("1d", "2d"), ("1d", "relative"), ("2d", "relative"))),
        rule=Equal(within=POINT),
    ),
    Claim(
        name="regularise-small",
        quote="To boost the performance on the smaller datasets, we optimize three basic regularization parameters",
        source="section 4.3",
        question="The regularisation that is best on validation - none, on the fewest images",
        experiment="regularisation",
        contrast=Difference(plus=REGULARISED, minus="plain", at=LOWEST),
        beside=(Beside(name="on all images", contrast=Difference(plus=REGULARISED, minus="plain")),),
    ),
    Claim(
        name="adam-resnet",
        quote="Adam pre-training outperforms SGD pre-training on most datasets and on average",
        source="appendix D.1, table 7",
        question="BiT with AdamW - BiT with SGD, each at its own best rate",
        experiment="optimiser",
        contrast=Difference(plus="bit-adamw", minus="bit-sgd"),
        rule=Greater(by=0.0),
        caveat="On the training data itself; the paper compares after transfer.",
    ),
    Claim(
        name="axial",
        quote="both Axial-ViT-B/32 and Axial-ViT-B/16 do better than their ViT-B counterpart in terms of performance",
        source="appendix D.6",
        question="Axial ViT - ViT of as many blocks, for equal images",
        experiment="axial",
        contrast=Difference(plus="axial", minus="vit"),
        caveat="An axial block has two layers, on rows and on columns, and so costs more compute, as in the paper.",
    ),
    Claim(
        name="higher-resolution",
        quote="It is often beneficial to fine-tune at higher resolution than pre-training",
        source="section 3.2",
        question="Fine-tuned at twice the resolution - at that of pre-training",
        experiment="resolution",
        contrast=Difference(plus="fine-tune-64", minus="fine-tune-32"),
    ),
    *(
        Claim(
            name=f"published-{name}",
            quote="ViT uses approximately 2-4x less compute to attain the same performance",
            source="section 4.4 and table 6",
            question=f"The paper's own table 6, fitted again: compute of ResNets over that of ViTs, {words}",
            contrast=Published(metric=metric),
            rule=Ratio(low=2, high=4),
        )
        for name, metric, words in (
            ("imagenet", "imagenet", "accuracy on ImageNet"),
            ("five-sets", "mean of five", "mean accuracy on five sets"),
            ("real", "real", "accuracy on ImageNet ReaL"),
        )
    ),
)

CLAIMS: dict[str, Claim] = {claim.name: claim for claim in _ALL}

NOT_TESTABLE = {
    "State of the art on ImageNet, CIFAR and VTAB (tables 1 and 2)": "needs JFT-300M, which is not public, and a ViT-H/14",
    "ViT overtakes BiT between 9 and 300 million images (figure 3)": "needs as many images; the crossover here is of far fewer",
    "Fewer TPU core-days (table 2)": "needs the hardware of the paper; FLOPs and seconds are shown instead",
    "ObjectNet (appendix D.9)": "needs a model that was trained on the classes of ImageNet",
    "The first filters resemble plausible basis functions (figure 7)": "is a judgement on a picture; `vitrail inspect` draws it",
    "Attention reaches regions that are semantically relevant (figure 6)": "needs masks of the objects; see `vitrail explain`",
    "Self-supervision gains 2 % and stays 4 % behind (section 4.6)": "needs pre-training and fine-tuning; see `vitrail pretrain`",
    "Few-shot accuracy stands for fine-tuned accuracy (section 4.1)": "needs fine-tuned models beside; see `vitrail probe`",
    "ViT is more memory-efficient (appendix D.5)": "is measured without training; see `vitrail inspect`",
}
