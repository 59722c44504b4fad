"""Architectures: a name gives a frozen config, a config gives a backbone."""

from vitrail.models.backbone import AttentionGrid as AttentionGrid
from vitrail.models.backbone import Backbone as Backbone
from vitrail.models.config import Config as Config
from vitrail.models.cost import Cost as Cost
from vitrail.models.cost import activation_bytes as activation_bytes
from vitrail.models.cost import cost_of as cost_of
from vitrail.models.family import ARCHITECTURES as ARCHITECTURES
from vitrail.models.family import MODELS as MODELS
from vitrail.models.family import configure as configure
from vitrail.models.family import create_backbone as create_backbone
from vitrail.models.family import sketch as sketch
from vitrail.models.layers import Patches as Patches
from vitrail.models.layers import Tokens as Tokens
from vitrail.models.pvt import PVT as PVT
from vitrail.models.pvt import PVTConfig as PVTConfig
from vitrail.models.pvt_v2 import PVTv2 as PVTv2
from vitrail.models.pvt_v2 import PVTv2Config as PVTv2Config
from vitrail.models.resnet import ResNet as ResNet
from vitrail.models.resnet import ResNetConfig as ResNetConfig
from vitrail.models.swin import Swin as Swin
from vitrail.models.swin import SwinConfig as SwinConfig
from vitrail.models.vit import ViT as ViT
from vitrail.models.vit_config import ViTConfig as ViTConfig
