"""Which of transformers' classes a configuration stands for, and calling them quietly."""

import functools
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import transformers
from torch import nn
from transformers import modeling_gguf_pytorch_utils
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING

from ropewalk.errors import RopewalkError
from ropewalk.models.tap import dispatches


def model_class(config: Any) -> type:
    """The class that implements a configuration, or a sentence on why it cannot be used."""
    if type(config) in MODEL_FOR_CAUSAL_LM_MAPPING:
        found: Any = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    elif type(config) in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING:
        found = MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING[type(config)]
    elif getattr(config, "auto_map", None):
        return nn.Module
    else:
        raise RopewalkError(
            f"model type {config.model_type!r} has no causal language model in transformers {transformers.__version__}"
        )
    cls: type = found[0] if isinstance(found, tuple) else found
    if not dispatches(cls):
        raise RopewalkError(
            f"model type {config.model_type!r} is not supported: its attention does not go through transformers' "
            "registry, so its queries and keys cannot be seen; `docs/models.md` lists the types that do"
        )
    return cls


def auto_class(config: Any) -> Any:
    """transformers' loader for a configuration: of language models, or of multimodal ones with one inside."""
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING and type(config) in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING:
        return transformers.AutoModelForImageTextToText
    return transformers.AutoModelForCausalLM


@contextmanager
def quiet() -> Iterator[None]:
    """No bars and no load report from transformers: what matters of it is checked and said in a sentence."""
    level = transformers.logging.get_verbosity()
    bars = transformers.logging.is_progress_bar_enabled()
    # The reader of GGUF files has a bar of its own, which does not ask whether bars are wanted.
    reader: Any = modeling_gguf_pytorch_utils
    own_bar = reader.tqdm
    # Reports of loading come as errors where a tensor is in the way: they are read, not shown.
    transformers.logging.set_verbosity(logging.CRITICAL)
    transformers.logging.disable_progress_bar()
    reader.tqdm = functools.partial(own_bar, disable=True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        reader.tqdm = own_bar
        transformers.logging.set_verbosity(level)
        if bars:
            transformers.logging.enable_progress_bar()
