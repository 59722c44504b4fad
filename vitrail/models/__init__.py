"""Model architectures. A name refers to a frozen config, and a backbone is built from a config."""

from vitrail.models.attention import AttentionGrid as AttentionGrid
from vitrail.models.attention import AttentionRecord as AttentionRecord
from vitrail.models.backbone import Backbone as Backbone
from vitrail.models.backbone import device_of as device_of
from vitrail.models.config import Config as Config
from vitrail.models.cost import Cost as Cost
from vitrail.models.family import ARCHITECTURES as ARCHITECTURES
from vitrail.models.family import MODELS as MODELS
from vitrail.models.family import activation_bytes as activation_bytes
from vitrail.models.family import configure as configure
from vitrail.models.family import cost_of as cost_of
from vitrail.models.family import create_backbone as create_backbone
from vitrail.models.family import sketch as sketch
from vitrail.models.layers import Patches as Patches
from vitrail.models.layers import Tokens as Tokens
from vitrail.models.vit import ViT as ViT
from vitrail.models.vit_config import ViTConfig as ViTConfig
