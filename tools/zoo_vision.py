"""The zoo's networks for images: classification, segmentation, detection, video, and image to image."""

import torch
from zoo_recipes import (
    Recipe,
    detector,
    image,
    segmenter,
    timm_model,
    torchvision_model,
    transformers_model,
)

_TORCHVISION = """
    resnet18 resnet34 resnet50 resnet101 resnet152 resnext50_32x4d wide_resnet50_2
    mobilenet_v2 mobilenet_v3_small mobilenet_v3_large mnasnet1_0
    efficientnet_b0 efficientnet_b1 efficientnet_b2 efficientnet_b3 efficientnet_v2_s
    squeezenet1_0 squeezenet1_1 vgg11 vgg16 vgg19_bn alexnet densenet121 densenet169 googlenet
    shufflenet_v2_x0_5 shufflenet_v2_x1_0 regnet_y_400mf regnet_x_800mf regnet_y_8gf
    convnext_tiny convnext_small vit_b_32 vit_b_16 swin_t swin_v2_t maxvit_t
""".split()
_TIMM = """
    deit_tiny_patch16_224 deit_small_patch16_224 mobilenetv4_conv_small mobilenetv1_100 ghostnet_100 ghostnetv2_100
    mixer_b16_224 resmlp_12_224 gmlp_s16_224 poolformer_s12 poolformerv2_s12 repvgg_a0 mobileone_s0 repghostnet_100
    repvit_m1 fastvit_t8 darknet53 cspdarknet53 seresnet50 skresnet18 resnet18d resnet50d resnetv2_50 resnest14d
    tf_efficientnet_lite0 efficientnet_es mobilevit_s mobilevitv2_100 res2net50_26w_4s dla34 dpn68 pvt_v2_b0 levit_128
    hrnet_w18_small xception41 convmixer_768_32 cait_xxs24_224
    vovnet39a ese_vovnet19b_dw focalnet_tiny_srf davit_tiny coatnet_0_rw_224 efficientformer_l1 inception_next_tiny
    rexnet_100 eca_nfnet_l0 hardcorenas_a gernet_s convnextv2_nano tiny_vit_5m_224 edgenext_small visformer_tiny
    pit_ti_224 xcit_tiny_12_p16_224 efficientvit_b0 selecsls42b tresnet_m convit_tiny semnasnet_100
    spnasnet_100 fbnetc_100 mixnet_s tinynet_a hgnet_tiny hgnetv2_b0 starnet_s1 mambaout_femto regnetz_b16
    mvitv2_tiny gcresnet33ts lambda_resnet26t
""".split()
_UNFUSED = ("nest_tiny", "twins_svt_small")
_SEGMENTERS = ("fcn_resnet50", "lraspp_mobilenet_v3_large", "deeplabv3_resnet50", "deeplabv3_mobilenet_v3_large")
_DETECTORS = {
    "ssd300_vgg16": 300,
    "ssdlite320_mobilenet_v3_large": 320,
    "retinanet_resnet50_fpn": 320,
    "fcos_resnet50_fpn": 320,
    "fasterrcnn_resnet50_fpn": 320,
    "fasterrcnn_mobilenet_v3_large_320_fpn": 320,
}


def _clip(frames: int, size: int) -> dict[str, torch.Tensor]:
    return {"input": torch.randn(2, 3, frames, size, size)}


def _from_pixels(config: str, model: str, size: int = 224, **settings: object) -> Recipe:
    build = transformers_model(config, model, ("pixel_values",), **settings)
    return Recipe("image", build, lambda: {"pixel_values": torch.randn(2, 3, size, size)})


RECIPES: dict[str, Recipe] = {
    **{name: Recipe("image", torchvision_model(name), image()) for name in _TORCHVISION},
    "inception_v3": Recipe("image", torchvision_model("inception_v3"), image(299)),
    **{name: Recipe("image", timm_model(name), image()) for name in _TIMM},
    "inception_v4": Recipe("image", timm_model("inception_v4"), image(299)),
    **{name: Recipe("image", timm_model(name, fused=False), image()) for name in _UNFUSED},
    "crossvit_tiny_240": Recipe("image", timm_model("crossvit_tiny_240"), image(240)),
    "lcnet_100": Recipe("image", timm_model("lcnet_100"), image(), gain=12.0),
    **{name: Recipe("segmentation", segmenter(name), image()) for name in _SEGMENTERS},
    **{name: Recipe("detection", detector(name), image(size)) for name, size in _DETECTORS.items()},
    "r3d_18": Recipe("video", torchvision_model("r3d_18"), lambda: _clip(8, 112)),
    "r2plus1d_18": Recipe("video", torchvision_model("r2plus1d_18"), lambda: _clip(8, 112)),
    "clip-vit-b32-vision": _from_pixels("CLIPVisionConfig", "CLIPVisionModel"),
    "siglip-base-vision-4L": _from_pixels("SiglipVisionConfig", "SiglipVisionModel", num_hidden_layers=4),
    "dinov2-small-4L": _from_pixels(
        "Dinov2Config", "Dinov2Model", hidden_size=384, num_attention_heads=6, num_hidden_layers=4, image_size=224
    ),
    "segformer-b0": _from_pixels("SegformerConfig", "SegformerForSemanticSegmentation"),
    "yolos-tiny-4L": _from_pixels(
        "YolosConfig",
        "YolosForObjectDetection",
        hidden_size=192,
        num_attention_heads=3,
        intermediate_size=768,
        num_hidden_layers=4,
        image_size=[224, 224],
    ),
}
