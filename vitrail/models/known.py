"""The paper, the published accuracy and the cost of every model, known without torch: `cost_of` counts a cost in a second."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class Cost(NamedTuple):
    """The number of parameters, and for one image: ``multiply_adds`` of all matrix products and convolutions, the part of
    ``attention`` matrices in them, and ``tokens`` after the last block.

    Norms, GELU, softmax and biases are not counted. `ViT.forward` needs fewer operations if only one token of the last block
    is used.
    """

    parameters: int
    multiply_adds: int
    attention: int
    tokens: int


@dataclass(frozen=True)
class Published:
    """The paper of a model, and ``top1`` in percent with its ``setting``, if published for exactly this model.

    The setting names the paper of the figure where that is another.
    """

    paper: str
    top1: float | None = None
    setting: str | None = None


class Known(NamedTuple):
    """The cost of a model for squares of ``side`` pixels and 1,000 classes, its paper and published top-1 accuracy on the
    ImageNet-1k validation set, and the complexity of its ``attention`` in the number of patches N.
    """

    cost: Cost
    published: Published
    attention: str = "N^2"
    side: int = 224

    @property
    def image_size(self) -> tuple[int, int]:
        return self.side, self.side


VIT = "Dosovitskiy et al. 2021, An Image is Worth 16x16 Words"
VIT_OTHER_PATCH = f"{VIT}, at a patch size that is not in it"
AUGREG = "Steiner et al. 2022, How to train your ViT?"
SCALING = "Zhai et al. 2022, Scaling Vision Transformers"
SHAPE = "Alabdulmohsin et al. 2023, Getting ViT in Shape"
PALI = "Chen et al. 2023, PaLI"
DINO = "Caron et al. 2021, Emerging Properties in Self-Supervised Vision Transformers"
DINO2 = "Oquab et al. 2023, DINOv2"
DEIT = "Touvron et al. 2021, Training data-efficient image transformers"
DEIT3 = "Touvron et al. 2022, DeiT III"
DINO3 = "Siméoni et al. 2025, DINOv3"
EUPE = f"{DINO3}, whose architecture EUPE has"
CLIP = "Radford et al. 2021, CLIP"
OPENCLIP = "Cherti et al. 2023, Reproducible scaling laws for contrastive language-image learning"
SIGLIP = "Zhai et al. 2023, Sigmoid Loss for Language Image Pre-Training"
SIGLIP2 = "Tschannen et al. 2025, SigLIP 2"
EVA02 = "Fang et al. 2023, EVA-02"
PE = "Bolya et al. 2025, Perception Encoder"
AIMV2 = "Fini et al. 2024, AIMv2"
SWIN = "Liu et al. 2021, Swin Transformer"
PVT = "Wang et al. 2021, Pyramid Vision Transformer"
PVT2 = "Wang et al. 2022, PVT v2"
CAIT = "Touvron et al. 2021, Going deeper with Image Transformers"
BEIT = "Bao et al. 2022, BEiT"
BIT = "Kolesnikov et al. 2020, Big Transfer"
BIT_OTHER_SIZE = f"{BIT}, at a size that is not in it"
AXIAL = "Wang et al. 2020, Axial-DeepLab, at widths that are not in it"

I1K = "ImageNet-1k alone, 224 px"
I1K_384 = "ImageNet-1k alone, 384 px"
TAUGHT = "ImageNet-1k alone, with a teacher, 224 px"
TAUGHT_384 = "ImageNet-1k alone, with a teacher, 384 px"
TAUGHT_448 = "ImageNet-1k alone, with a teacher, 448 px"
I22K = "pre-trained on ImageNet-22k, fine-tuned at 224 px"
I22K_384 = "pre-trained on ImageNet-22k, fine-tuned at 384 px"
I21K_384 = "pre-trained on ImageNet-21k, fine-tuned at 384 px"
JFT = "pre-trained on JFT-300M, fine-tuned at 384 px"
JFT_480 = "pre-trained on JFT-300M, fine-tuned at 480 px"
JFT_518 = "pre-trained on JFT-300M, fine-tuned at 518 px"
JFT_VIT = f"{JFT} (Dosovitskiy et al. 2021, table 6)"
BEIT_I1K = "pre-trained without labels and fine-tuned on ImageNet-1k, 224 px"

KNOWN: dict[str, Known] = {
    "vit-ti16": Known(Cost(5_717_416, 1_253_683_200, 178_831_872, 197), Published(AUGREG, 78.22, I21K_384)),
    "vit-s32": Known(Cost(22_878_952, 1_142_909_952, 23_040_000, 50), Published(AUGREG, 79.58, I21K_384)),
    "vit-s16": Known(Cost(22_050_664, 4_598_882_304, 357_663_744, 197), Published(AUGREG, 83.73, I21K_384)),
    "vit-s14": Known(Cost(22_004_584, 6_123_945_984, 608_707_584, 257), Published(DINO2)),
    "vit-s8": Known(Cost(22_055_272, 22_405_742_592, 5_679_129_600, 785), Published(DINO)),
    "vit-m16": Known(Cost(38_837_736, 7_990_968_320, 476_884_992, 197), Published(DEIT3)),
    "vit-b32": Known(Cost(88_224_232, 4_409_186_304, 46_080_000, 50), Published(VIT, 81.28, I21K_384)),
    "vit-b16": Known(Cost(86_567_656, 17_563_828_224, 715_327_488, 197), Published(VIT, 83.97, I21K_384)),
    "vit-b14": Known(Cost(86_475_496, 23_161_995_264, 1_217_415_168, 257), Published(DINO2)),
    "vit-b8": Known(Cost(86_576_872, 78_148_337_664, 11_358_259_200, 785), Published(AUGREG)),
    "vit-l32": Known(Cost(306_535_400, 15_377_539_072, 122_880_000, 50), Published(VIT, 80.99, I21K_384)),
    "vit-l16": Known(Cost(304_326_632, 61_554_712_576, 1_907_539_968, 197), Published(VIT, 85.15, I21K_384)),
    "vit-l14": Known(Cost(304_203_752, 81_013_006_336, 3_246_440_448, 257), Published(DINO2)),
    "vit-h32": Known(Cost(634_960_360, 31_856_035_840, 204_800_000, 50), Published(VIT_OTHER_PATCH)),
    "vit-h16": Known(Cost(632_199_400, 127_314_872_320, 3_179_233_280, 197), Published(VIT_OTHER_PATCH)),
    "vit-h14": Known(Cost(632_045_800, 167_295_109_120, 5_410_734_080, 257), Published(VIT, 88.55, JFT_518)),
    "vit-so400m14": Known(Cost(413_597_656, 109_928_445_696, 4_108_776_192, 257), Published(SHAPE)),
    "vit-giant14": Known(Cost(1_012_611_432, 267_031_491_584, 7_439_759_360, 257), Published(SCALING)),
    "vit-gigantic14": Known(Cost(1_844_440_680, 483_747_550_208, 10_550_931_456, 257), Published(SCALING)),
    "vit-e14": Known(Cost(3_807_214_312, 990_676_936_704, 13_256_298_496, 257), Published(PALI)),
    "deit-ti16": Known(Cost(5_717_416, 1_253_683_200, 178_831_872, 197), Published(DEIT, 72.2, I1K)),
    "deit-s16": Known(Cost(22_050_664, 4_598_882_304, 357_663_744, 197), Published(DEIT, 79.8, I1K)),
    "deit-b16": Known(Cost(86_567_656, 17_563_828_224, 715_327_488, 197), Published(DEIT, 81.8, I1K)),
    "deit-ti16-distilled": Known(Cost(5_910_800, 1_261_003_776, 180_652_032, 198), Published(DEIT, 74.5, TAUGHT)),
    "deit-s16-distilled": Known(Cost(22_436_432, 4_624_140_288, 361_304_064, 198), Published(DEIT, 81.2, TAUGHT)),
    "deit-b16-distilled": Known(Cost(87_338_192, 17_656_811_520, 722_608_128, 198), Published(DEIT, 83.4, TAUGHT)),
    "deit3-s16": Known(Cost(22_059_496, 4_598_882_304, 357_663_744, 197), Published(DEIT3, 81.4, I1K)),
    "deit3-m16": Known(Cost(38_849_512, 7_990_968_320, 476_884_992, 197), Published(DEIT3, 83.0, I1K)),
    "deit3-b16": Known(Cost(86_585_320, 17_563_828_224, 715_327_488, 197), Published(DEIT3, 83.8, I1K)),
    "deit3-l16": Known(Cost(304_374_760, 61_554_712_576, 1_907_539_968, 197), Published(DEIT3, 84.9, I1K)),
    "deit3-h14": Known(Cost(632_126_440, 167_295_109_120, 5_410_734_080, 257), Published(DEIT3, 85.2, I1K)),
    "r-vit-ti16": Known(Cost(6_337_704, 433_681_920, 11_520_000, 50), Published(AUGREG, 75.40, I21K_384)),
    "r26-vit-s32": Known(Cost(36_431_912, 3_463_851_008, 23_040_000, 50), Published(AUGREG, 83.85, I21K_384)),
    "r26-vit-b32": Known(Cost(101_383_976, 6_710_859_776, 46_080_000, 50), Published(AUGREG)),
    "r50-vit-b16": Known(Cost(98_659_112, 21_535_358_976, 715_327_488, 197), Published(VIT, 85.58, JFT)),
    "r50-vit-b32": Known(Cost(110_945_832, 8_457_787_392, 46_080_000, 50), Published(VIT, 84.90, JFT)),
    "r50-vit-l16": Known(Cost(316_483_624, 65_539_088_384, 1_907_539_968, 197), Published(VIT, 86.60, JFT)),
    "r50-vit-l32": Known(Cost(328_994_856, 19_413_295_104, 122_880_000, 50), Published(AUGREG, 85.99, I21K_384)),
    "dinov3-s16": Known(Cost(21_981_160, 6_245_670_912, 627_803_136, 261), Published(DINO3), side=256),
    "dinov3-s16plus": Known(Cost(29_077_480, 8_092_999_680, 627_803_136, 261), Published(DINO3), side=256),
    "dinov3-b16": Known(Cost(86_428_648, 23_575_314_432, 1_255_606_272, 261), Published(DINO3), side=256),
    "dinov3-l16": Known(Cost(304_153_576, 82_369_994_752, 3_348_283_392, 261), Published(DINO3), side=256),
    "dinov3-h16plus": Known(Cost(841_872_360, 224_776_079_360, 5_580_472_320, 261), Published(DINO3), side=256),
    "dinov3-7b16": Known(Cost(6_720_127_976, 1_774_672_642_048, 22_321_889_280, 261), Published(DINO3), side=256),
    "eupe-ti16": Known(Cost(5_682_664, 1_737_338_880, 313_901_568, 261), Published(EUPE), side=256),
    "eupe-s16": Known(Cost(21_981_160, 6_245_670_912, 627_803_136, 261), Published(EUPE), side=256),
    "eupe-b16": Known(Cost(86_428_648, 23_575_314_432, 1_255_606_272, 261), Published(EUPE), side=256),
    "dinov2-giant14": Known(Cost(1_136_306_664, 299_391_602_688, 8_116_101_120, 257), Published(DINO2)),
    "clip-b32": Known(Cost(88_225_000, 4_409_186_304, 46_080_000, 50), Published(CLIP)),
    "clip-b16": Known(Cost(86_568_424, 17_563_828_224, 715_327_488, 197), Published(CLIP)),
    "clip-l14": Known(Cost(304_204_776, 81_013_006_336, 3_246_440_448, 257), Published(CLIP)),
    "clip-h14": Known(Cost(632_047_080, 167_295_109_120, 5_410_734_080, 257), Published(OPENCLIP)),
    "clip-giant14": Known(Cost(1_012_612_840, 267_031_491_584, 7_439_759_360, 257), Published(OPENCLIP)),
    "clip-gigantic14": Known(Cost(1_844_442_344, 483_747_550_208, 10_550_931_456, 257), Published(OPENCLIP)),
    "siglip-b16": Known(Cost(93_653_224, 17_709_060_096, 708_083_712, 196), Published(SIGLIP)),
    "siglip-l16": Known(Cost(316_981_224, 81_280_868_352, 3_221_225_472, 256), Published(SIGLIP), side=256),
    "siglip-so400m14": Known(Cost(428_833_704, 110_178_100_224, 4_076_863_488, 256), Published(SIGLIP)),
    "siglip2-b16": Known(Cost(93_653_224, 17_709_060_096, 708_083_712, 196), Published(SIGLIP2)),
    "siglip2-l16": Known(Cost(316_981_224, 81_280_868_352, 3_221_225_472, 256), Published(SIGLIP2), side=256),
    "siglip2-so400m14": Known(Cost(428_833_704, 110_178_100_224, 4_076_863_488, 256), Published(SIGLIP2)),
    "siglip2-so400m16": Known(Cost(429_041_064, 110_231_184_384, 4_076_863_488, 256), Published(SIGLIP2), side=256),
    "siglip2-giantopt16": Known(Cost(1_164_705_256, 299_499_220_992, 8_053_063_680, 256), Published(SIGLIP2), side=256),
    "eva02-ti14": Known(Cost(5_695_144, 1_697_710_080, 304_353_792, 257), Published(EVA02)),
    "eva02-s14": Known(Cost(22_006_120, 6_123_945_984, 608_707_584, 257), Published(EVA02)),
    "eva02-b14": Known(Cost(86_527_720, 23_161_995_264, 1_217_415_168, 257), Published(EVA02)),
    "eva02-l14": Known(Cost(304_293_800, 81_000_374_272, 3_246_440_448, 257), Published(EVA02)),
    "pe-core-ti16": Known(Cost(6_235_240, 4_725_350_784, 1_534_136_832, 577), Published(PE), side=384),
    "pe-core-s16": Known(Cost(23_971_048, 15_662_433_024, 3_068_273_664, 577), Published(PE), side=384),
    "pe-core-b16": Known(Cost(93_655_528, 17_802_419_712, 715_327_488, 197), Published(PE)),
    "pe-core-l14": Known(Cost(317_127_656, 192_181_856_256, 16_364_126_208, 577), Published(PE), side=336),
    "pe-core-gigantic14": Known(Cost(1_881_603_560, 2_059_316_195_328, 161_061_273_600, 1024), Published(PE), side=448),
    "aimv2-l14": Known(Cost(310_222_824, 82_296_414_208, 3_221_225_472, 256), Published(AIMV2)),
    "aimv2-h14": Known(Cost(682_388_968, 179_010_760_704, 4_831_838_208, 256), Published(AIMV2)),
    "aimv2-1b14": Known(Cost(1_237_007_336, 322_432_876_544, 6_442_450_944, 256), Published(AIMV2)),
    "aimv2-3b14": Known(Cost(2_723_731_432, 705_913_872_384, 9_663_676_416, 256), Published(AIMV2)),
    "axial-b32": Known(Cost(173_277_160, 8_452_614_144, 12_644_352, 49), Published(VIT), "N (h + w)"),
    "axial-b16": Known(Cost(171_620_584, 33_511_913_472, 101_154_816, 196), Published(VIT), "N (h + w)"),
    "cait-xxs24": Known(Cost(11_956_264, 2_523_475_200, 383_696_640, 197), Published(CAIT, 78.4, TAUGHT)),
    "cait-xxs36": Known(Cost(17_299_720, 3_755_697_408, 575_469_312, 197), Published(CAIT, 79.7, TAUGHT)),
    "cait-xs24": Known(
        Cost(26_670_088, 19_240_642_944, 5_160_445_056, 577), Published(CAIT, 84.1, TAUGHT_384), side=384
    ),
    "cait-s24": Known(Cost(46_916_200, 9_327_327_744, 826_400_256, 197), Published(CAIT, 83.5, TAUGHT)),
    "cait-s36": Known(
        Cost(68_366_632, 47_907_955_200, 10_702_652_928, 577), Published(CAIT, 85.4, TAUGHT_384), side=384
    ),
    "cait-m36": Known(
        Cost(271_221_352, 172_943_655_936, 24_462_953_472, 577), Published(CAIT, 86.1, TAUGHT_384), side=384
    ),
    "cait-m48": Known(
        Cost(356_460_520, 329_107_670_016, 60_425_554_944, 785), Published(CAIT, 86.5, TAUGHT_448), side=448
    ),
    "beit-b16": Known(Cost(86_530_984, 17_563_828_224, 715_327_488, 197), Published(BEIT, 83.2, BEIT_I1K)),
    "beit-l16": Known(Cost(304_430_568, 61_554_712_576, 1_907_539_968, 197), Published(BEIT, 85.2, BEIT_I1K)),
    "swin-t": Known(Cost(28_288_354, 4_490_566_656, 140_141_568, 49), Published(SWIN, 81.2, I1K), "N"),
    "swin-s": Known(Cost(49_606_258, 8_740_875_264, 228_652_032, 49), Published(SWIN, 83.2, I1K), "N"),
    "swin-b": Known(Cost(87_768_224, 15_430_946_816, 304_869_376, 49), Published(SWIN, 83.5, I1K), "N"),
    "swin-l": Known(Cost(196_532_476, 34_475_759_616, 457_304_064, 49), Published(SWIN, 86.3, I22K), "N"),
    "swin-b-384": Known(
        Cost(87_903_584, 47_083_134_976, 2_632_974_336, 144), Published(SWIN, 84.5, I1K_384), "N", side=384
    ),
    "swin-l-384": Known(
        Cost(196_735_516, 103_919_087_616, 3_949_461_504, 144), Published(SWIN, 87.3, I22K_384), "N", side=384
    ),
    "pvt-tiny": Known(Cost(13_229_288, 1_932_911_616, 76_420_096, 50), Published(PVT, 75.1, I1K), "N^2/R^2"),
    "pvt-small": Known(Cost(24_485_864, 3_815_701_504, 142_904_320, 50), Published(PVT, 79.8, I1K), "N^2/R^2"),
    "pvt-medium": Known(Cost(44_208_104, 6_659_175_424, 216_663_040, 50), Published(PVT, 81.2, I1K), "N^2/R^2"),
    "pvt-large": Known(Cost(61_369_320, 9_813_765_632, 311_320_064, 50), Published(PVT, 81.7, I1K), "N^2/R^2"),
    "pvt-v2-b0": Known(Cost(3_666_760, 566_065_664, 38_108_672, 49), Published(PVT2, 70.5, I1K), "N^2/R^2"),
    "pvt-v2-b1": Known(Cost(14_009_000, 2_108_355_584, 76_217_344, 49), Published(PVT2, 78.7, I1K), "N^2/R^2"),
    "pvt-v2-b2": Known(Cost(25_362_856, 4_026_734_592, 142_600_192, 49), Published(PVT2, 82.0, I1K), "N^2/R^2"),
    "pvt-v2-b2-li": Known(Cost(22_553_512, 3_888_850_944, 142_600_192, 49), Published(PVT2, 82.1, I1K), "N^2/R^2"),
    "pvt-v2-b3": Known(Cost(45_238_696, 6_897_303_552, 216_358_912, 49), Published(PVT2, 83.1, I1K), "N^2/R^2"),
    "pvt-v2-b4": Known(Cost(62_556_072, 10_101_116_416, 311_015_936, 49), Published(PVT2, 83.6, I1K), "N^2/R^2"),
    "pvt-v2-b5": Known(Cost(81_956_008, 11_717_260_288, 371_252_224, 49), Published(PVT2, 83.8, I1K), "N^2/R^2"),
    "bit-r50x1": Known(Cost(25_549_352, 4_089_184_256, 0, 49), Published(BIT, 77.54, JFT_VIT), "none"),
    "bit-r50x2": Known(Cost(97_988_712, 16_116_613_120, 0, 49), Published(BIT_OTHER_SIZE, 82.12, JFT_VIT), "none"),
    "bit-r50x3": Known(Cost(217_319_080, 36_082_286_592, 0, 49), Published(BIT), "none"),
    "bit-r101x1": Known(Cost(44_541_480, 7_801_405_440, 0, 49), Published(BIT, 80.67, JFT_VIT), "none"),
    "bit-r101x3": Known(Cost(387_934_888, 69_492_277_248, 0, 49), Published(BIT), "none"),
    "bit-r152x1": Known(Cost(60_185_128, 11_513_626_624, 0, 49), Published(BIT_OTHER_SIZE, 81.88, JFT_VIT), "none"),
    "bit-r152x2": Known(Cost(236_335_208, 45_814_382_592, 0, 49), Published(BIT, 84.97, JFT_VIT), "none"),
    "bit-r152x4": Known(Cost(936_533_224, 182_777_282_560, 0, 49), Published(BIT, 87.54, JFT_480), "none"),
    "bit-r200x3": Known(Cost(568_633_000, 134_346_964_992, 0, 49), Published(BIT_OTHER_SIZE, 87.22, JFT_VIT), "none"),
    "axial-resnet26": Known(Cost(10_936_456, 2_610_497_536, 319_621_120, 49), Published(AXIAL), "N (h + w)"),
    "axial-resnet50": Known(Cost(19_358_408, 4_052_605_952, 528_604_160, 49), Published(AXIAL), "N (h + w)"),
}
