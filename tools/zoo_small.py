"""The zoo's networks that no library is needed for, written down from their papers."""

import itertools

import torch
from torch import nn
from zoo_recipes import Recipe, image


class _Mlp(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 10))


class _Generator(nn.Sequential):
    """The generator of DCGAN (Radford et al., 2016): transposed convolutions from 100 numbers to a 64x64 image."""

    def __init__(self) -> None:
        layers: list[nn.Module] = []
        for given, made, stride, pad in ((100, 512, 1, 0), (512, 256, 2, 1), (256, 128, 2, 1), (128, 64, 2, 1)):
            layers += [nn.ConvTranspose2d(given, made, 4, stride, pad, bias=False), nn.BatchNorm2d(made), nn.ReLU()]
        super().__init__(*layers, nn.ConvTranspose2d(64, 3, 4, 2, 1), nn.Tanh())


def _double(given: int, made: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for channels in (given, made):
        layers += [nn.Conv2d(channels, made, 3, padding=1, bias=False), nn.BatchNorm2d(made), nn.ReLU()]
    return nn.Sequential(*layers)


class _UNet(nn.Module):
    """U-Net (Ronneberger et al., 2015) with padded convolutions and 32 channels at full size."""

    def __init__(self) -> None:
        super().__init__()
        widths = (32, 64, 128, 256)
        self.down = nn.ModuleList(_double(a, b) for a, b in zip((3, *widths), widths, strict=False))
        self.bottom = _double(256, 512)
        self.up = nn.ModuleList(nn.ConvTranspose2d(2 * w, w, 2, 2) for w in reversed(widths))
        self.join = nn.ModuleList(_double(2 * w, w) for w in reversed(widths))
        self.head = nn.Conv2d(32, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = []
        for block in self.down:
            kept.append(block(x))
            x = nn.functional.max_pool2d(kept[-1], 2)
        x = self.bottom(x)
        for up, join, skip in zip(self.up, self.join, reversed(kept), strict=True):
            x = join(torch.cat([skip, up(x)], 1))
        return self.head(x)


class _Espcn(nn.Sequential):
    """ESPCN (Shi et al., 2016): super-resolution by three, with a pixel shuffle at the end."""

    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(1, 64, 5, padding=2), nn.Tanh(), nn.Conv2d(64, 32, 3, padding=1), nn.Tanh(),
            nn.Conv2d(32, 9, 3, padding=1), nn.PixelShuffle(3),
        )  # fmt: skip


class _DnCnn(nn.Module):
    """DnCNN (Zhang et al., 2017): denoising by a residual of seventeen convolutions."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv2d(1, 64, 3, padding=1), nn.ReLU()]
        for _ in range(15):
            layers += [nn.Conv2d(64, 64, 3, padding=1, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
        self.body = nn.Sequential(*layers, nn.Conv2d(64, 1, 3, padding=1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x - self.body(x)


class _DsCnn(nn.Sequential):
    """DS-CNN (Zhang et al., 2017): keywords from 49 frames of 10 cepstral coefficients, as MLPerf Tiny has it."""

    def __init__(self) -> None:
        layers: list[nn.Module] = [nn.Conv2d(1, 64, (10, 4), 2, (5, 1)), nn.BatchNorm2d(64), nn.ReLU()]
        for _ in range(4):
            layers += [nn.Conv2d(64, 64, 3, padding=1, groups=64), nn.BatchNorm2d(64), nn.ReLU()]
            layers += [nn.Conv2d(64, 64, 1), nn.BatchNorm2d(64), nn.ReLU()]
        super().__init__(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 12))


class _M5(nn.Sequential):
    """M5 (Dai et al., 2017): a one-dimensional CNN on a second of raw sound at 8 kHz."""

    def __init__(self) -> None:
        layers: list[nn.Module] = []
        for given, made, width, stride in ((1, 128, 80, 4), (128, 128, 3, 1), (128, 256, 3, 1), (256, 512, 3, 1)):
            layers += [nn.Conv1d(given, made, width, stride), nn.BatchNorm1d(made), nn.ReLU(), nn.MaxPool1d(4)]
        super().__init__(*layers, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(512, 35))


class _AnomalyAutoencoder(nn.Sequential):
    """The dense autoencoder of MLPerf Tiny for machine sounds: 640 numbers through a bottleneck of eight."""

    def __init__(self) -> None:
        widths = (640, 128, 128, 128, 128, 8, 128, 128, 128, 128)
        layers: list[nn.Module] = []
        for given, made in itertools.pairwise(widths):
            layers += [nn.Linear(given, made), nn.BatchNorm1d(made), nn.ReLU()]
        super().__init__(*layers, nn.Linear(128, 640))


class _TemporalBlock(nn.Module):
    def __init__(self, given: int, made: int, dilation: int) -> None:
        super().__init__()
        self.pad = nn.ConstantPad1d((2 * dilation, 0), 0.0)
        self.first = nn.Conv1d(given, made, 3, dilation=dilation)
        self.second = nn.Conv1d(made, made, 3, dilation=dilation)
        self.skip = nn.Conv1d(given, made, 1) if given != made else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.first(self.pad(x)))
        y = torch.relu(self.second(self.pad(y)))
        return torch.relu(y + self.skip(x))


class _Tcn(nn.Sequential):
    """A temporal convolutional network (Bai et al., 2018): causal, dilated, over 256 steps of 64 features."""

    def __init__(self) -> None:
        widths = (64, 128, 128, 128, 128)
        blocks = [_TemporalBlock(a, b, 2**i) for i, (a, b) in enumerate(itertools.pairwise(widths))]
        super().__init__(*blocks, nn.Conv1d(128, 32, 1))


class _Dlrm(nn.Module):
    """DLRM (Naumov et al., 2019), small: 13 numbers and 8 categories, pairwise products of their embeddings."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(1000, 64) for _ in range(8))
        self.bottom = nn.Sequential(nn.Linear(13, 256), nn.ReLU(), nn.Linear(256, 64), nn.ReLU())
        self.top = nn.Sequential(nn.Linear(64 + 81, 256), nn.ReLU(), nn.Linear(256, 1), nn.Sigmoid())

    def forward(self, numbers: torch.Tensor, categories: torch.Tensor) -> torch.Tensor:
        dense = self.bottom(numbers)
        rows = torch.stack([dense, *(table(categories[:, i]) for i, table in enumerate(self.tables))], 1)
        return self.top(torch.cat([dense, torch.bmm(rows, rows.transpose(1, 2)).flatten(1)], 1))


RECIPES: dict[str, Recipe] = {
    "dcgan-generator": Recipe("image", _Generator, lambda: {"input": torch.randn(2, 100, 1, 1)}),
    "mlp-mnist": Recipe("image", _Mlp, lambda: {"input": torch.randn(2, 784)}),
    "unet": Recipe("segmentation", _UNet, image(256)),
    "espcn-x3": Recipe("image", _Espcn, image(128, 1)),
    "dncnn": Recipe("image", _DnCnn, image(128, 1)),
    "ds-cnn": Recipe("audio", _DsCnn, lambda: {"input": torch.randn(2, 1, 49, 10)}),
    "m5": Recipe("audio", _M5, lambda: {"input": torch.randn(2, 1, 8000)}),
    "anomaly-autoencoder": Recipe("audio", _AnomalyAutoencoder, lambda: {"input": torch.randn(2, 640)}),
    "tcn": Recipe("series", _Tcn, lambda: {"input": torch.randn(2, 64, 256)}),
    "dlrm-small": Recipe(
        "recommendation",
        _Dlrm,
        lambda: {"numbers": torch.randn(2, 13), "categories": torch.randint(0, 1000, (2, 8))},
    ),
}
