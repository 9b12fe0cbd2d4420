"""The backbone of a run: clients train on features of their images, and the exported model takes the images."""

from __future__ import annotations

import dataclasses
import functools
import os

import numpy as np

import tfp_bfl as bfl  # its packages are imported when they are first used
from tfp_bfl.app.options.config import RunConfig
from tfp_bfl.data.sizes import parse_size
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.faces import keras


def model_of(config: RunConfig, image_shape: tuple[int, ...]) -> keras.Model | None:
    """Return the frozen network of a run, from images of a shape to features; None without one.

    A network by name takes images of the run's image_size, if it is given; one of a file has a size of its own.
    """
    if config.backbone is None:
        return None
    is_file = os.path.exists(config.backbone)
    size = None if is_file else parse_size(config.image_size)
    return bfl.models.backbones.taking(
        _layer(config.backbone, size, os.stat(config.backbone).st_mtime_ns if is_file else 0), image_shape
    )


@functools.lru_cache(maxsize=1)
def _layer(name: str, size: tuple[int, int] | None, stamp: int) -> bfl.models.backbones.Backbone:
    """Return the layer of a backbone, read once for each state of its file."""
    del stamp
    return bfl.models.backbones.backbone_of(bfl.models.features(name, size))


def stated(config: RunConfig, image_shape: tuple[int, ...]) -> dict[str, str]:
    """Return the name of a run's backbone and the start of its SHA-256 sum; {} without one."""
    model = model_of(config, image_shape)
    if model is None:
        return {}
    name = os.path.basename(str(config.backbone).rstrip("/"))
    return {"backbone": f"{name} ({bfl.models.backbones.backbone_of(model).digest[:8]})"}


def of_data(config: RunConfig, data: bfl.data.OwnData) -> bfl.data.OwnData:
    """Return data with features in the place of images, computed or from the cache; as they are without a backbone."""
    if config.backbone is None:
        return data
    train, test = (of_source(config, source) for source in (data.train, data.test))
    clients = None if data.clients is None else dataclasses.replace(data.clients, source=train)
    return data._replace(train=train, test=test, clients=clients)


def of_source(config: RunConfig, source: bfl.data.Source, shape_alone: bool = False) -> bfl.data.Source:
    """Return a source with features in the place of images; zeros if their shape alone is asked for."""
    if config.backbone is None:
        return source
    if len(source.element_shape) != 3:
        shape = list(source.element_shape)
        raise InvalidArgument(
            f"backbone is of images, and {source.name} has examples of shape {shape}: leave it out, or give images."
        )
    model = model_of(config, source.element_shape)
    assert model is not None
    if shape_alone:
        features = np.zeros((source.num_examples, model.output_shape[-1]), np.float32)
    else:
        from tfp_bfl.models.feature_cache import cached_features

        features = cached_features(model, source.features)
    return dataclasses.replace(source, features=features, image_shape=source.element_shape)
