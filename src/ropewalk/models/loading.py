"""Loading models and tokenizers, from the hub or a folder, so that nothing is guessed and nothing is left at random."""

import functools
import json
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import transformers
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from torch import nn
from transformers import modeling_gguf_pytorch_utils
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING

from ropewalk.errors import RopewalkError
from ropewalk.models.device import choose_device, compute_dtype, name_of
from ropewalk.models.hub import model_folder, repo_file
from ropewalk.models.overrides import apply_overrides
from ropewalk.models.source import ModelSource
from ropewalk.models.tap import dispatches
from ropewalk.models.weights import CONFIG, check_complete, is_whole, weight_files
from ropewalk.progress import logger
from ropewalk.text import install_extra, one_line

SPREADS = ("auto", "balanced", "balanced_low_0", "sequential")
"""Device maps that accelerate works out by itself."""


def load_config(source: ModelSource, context: int | None = None) -> Any:
    """The configuration of a model with its overrides, checked for what can be known before weights are read.

    Refuses a model type whose attention does not go through the registry and a context beyond the model's positions.
    """
    repo = str(source.repo)
    folder = model_folder(repo, source.revision)
    if source.gguf_file:
        _gguf(source, folder)
    else:
        _check_type(source, folder)
    options = {"trust_remote_code": source.trust_remote_code, **_gguf_option(source)}
    try:
        with _quiet():
            config = transformers.AutoConfig.from_pretrained(folder, **options)
    except (OSError, StrictDataclassError, ValueError, KeyError, TypeError) as error:
        raise RopewalkError(f"the configuration of {repo} cannot be used: {one_line(error)}") from error
    text = config.get_text_config(decoder=True)
    apply_overrides(text, source.overrides)
    model_class(config)
    limit = getattr(text, "max_position_embeddings", None)
    if limit and context is not None and context > limit:
        raise RopewalkError(
            f"context {context} of {source.label!r} is beyond the {limit} positions of the model: "
            "lower `context`, or set max_position_embeddings (and rope_theta or rope_scaling) in `overrides`"
        )
    return config


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


def load_model(source: ModelSource, config: Any = None) -> nn.Module:
    """A model on its device, in evaluation mode; every tensor of it comes from the files.

    A tensor that is missing, left over or of another shape stops with its name. `random_weights` builds the
    architecture untrained, from `weights_seed`, on one device. `config` is what `load_config` gave, if it is at hand.
    """
    config = load_config(source) if config is None else config
    device = device_of(source)
    auto = auto_class(config)
    options: dict[str, Any] = {"trust_remote_code": source.trust_remote_code}
    if source.attention:
        options["attn_implementation"] = source.attention
    name = compute_dtype(source, config)
    dtype: Any = "auto" if name == "auto" else getattr(torch, name)
    if source.dtype == "auto" and config.dtype is not None and dtype != config.dtype:
        stored = name_of(config.dtype)
        logger.info(
            "%s: stored in %s, computed in %s, as this CPU is slow in the former; `dtype: %s` keeps it",
            *(source.label, stored, name, stored),
        )
    if source.random_weights:
        dtype = torch.float32 if dtype == "auto" else dtype
        with torch.random.fork_rng(), _explained(source), _quiet():
            torch.manual_seed(source.weights_seed)
            model: nn.Module = auto.from_config(config, dtype=dtype, **options)
        return model.to(device).eval()
    repo = str(source.repo)
    folder = model_folder(repo, source.revision)
    files = [] if source.gguf_file else weight_files(repo, folder)
    if source.device_map is not None:
        options["device_map"] = source.device_map
    with _explained(source, files), _quiet():
        model, report = auto.from_pretrained(
            folder,
            config=config,
            dtype=dtype,
            use_safetensors=None if source.gguf_file else True,
            # Without it a wrong shape is an error that does not name the tensor; with it, it is in the report.
            ignore_mismatched_sizes=True,
            output_loading_info=True,
            **options,
            **_gguf_option(source),
        )
    check_complete(source.label, report)
    if source.device_map is None:
        model = model.to(device)
    return model.eval()


def load_tokenizer(source: ModelSource) -> Any:
    """The tokenizer of a model, from its own repo or the one the study names."""
    repo, revision, gguf_file = source.tokenizer_location
    folder = model_folder(str(repo), revision)
    options: dict[str, Any] = {"trust_remote_code": source.trust_remote_code}
    if gguf_file:
        _gguf(source, folder)
        options["gguf_file"] = gguf_file
    remedy = "name the repository or folder that has one as `tokenizer`"
    try:
        with _quiet():
            tokenizer = transformers.AutoTokenizer.from_pretrained(folder, **options)
    # The tokenizers library raises bare exceptions; nothing of this project runs in here.
    except Exception as error:
        raise RopewalkError(f"no tokenizer at {repo} for {source.label!r} ({one_line(error)}): {remedy}") from error
    if len(tokenizer) < 2:
        raise RopewalkError(f"the tokenizer at {repo} for {source.label!r} is empty: {remedy}")
    return tokenizer


def device_of(source: ModelSource) -> torch.device:
    """The device a study asks for, or a sentence when it (or one of its device map) is not there."""
    spread = source.device_map
    for device in spread.values() if isinstance(spread, dict) else [spread]:
        if device not in (None, "disk", *SPREADS):
            choose_device(device)
    return choose_device(source.device)


def _check_type(source: ModelSource, folder: Path) -> None:
    """Refuse what config.json shows to be no model, of a type that is not known, or with code of its own."""
    repo = str(source.repo)
    path = repo_file(repo, folder, CONFIG)
    if path is None:
        raise RopewalkError(f"{repo} has no {CONFIG}: give the repository or folder of a transformers model")
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        kind = data.get("model_type")
    except (ValueError, AttributeError) as error:
        raise RopewalkError(f"{CONFIG} of {repo} is not JSON that describes a model: fetch it again") from error
    if kind in transformers.CONFIG_MAPPING:
        return
    if not data.get("auto_map"):
        raise RopewalkError(
            f"model type {kind!r} of {repo} is not known to transformers {transformers.__version__}: "
            "a newer one may know it"
        )
    if not source.trust_remote_code:
        raise RopewalkError(
            f"{repo} comes with modelling code of its own, which is not run unasked: "
            "read it, and set `trust_remote_code: true` if you trust it"
        )


def _gguf_option(source: ModelSource) -> dict[str, Any]:
    return {"gguf_file": source.gguf_file} if source.gguf_file else {}


def _gguf(source: ModelSource, folder: Path) -> None:
    """Make sure that a GGUF file can be read and is in the folder."""
    try:
        import gguf  # noqa: F401
    except ImportError as error:
        raise RopewalkError(f"GGUF files need an extra: {install_extra('gguf')}") from error
    if repo_file(str(source.repo), folder, str(source.gguf_file)) is None:
        raise RopewalkError(f"{source.repo} has no {source.gguf_file}: check `gguf_file`")


@contextmanager
def _explained(source: ModelSource, files: list[Path] | None = None) -> Iterator[None]:
    """Turn the failures of building a model that a user can mend into sentences; anything else keeps its traceback."""
    try:
        yield
    except SafetensorError as error:
        damaged = next((path for path in files or () if not is_whole(path)), source.repo)
        raise RopewalkError(
            f"the weight file {damaged} is damaged or cut short ({one_line(error)}): fetch it again"
        ) from error
    except torch.cuda.OutOfMemoryError as error:
        raise RopewalkError(
            f"{source.label!r} does not fit on the device: set `device_map: auto` or a smaller `dtype`"
        ) from error
    except (OSError, ValueError, ImportError) as error:
        raise RopewalkError(f"cannot load {source.label!r} from {source.repo}: {one_line(error)}") from error


@contextmanager
def _quiet() -> Iterator[None]:
    """No bars and no load report from transformers: what matters of it is checked and said in a sentence."""
    level = transformers.logging.get_verbosity()
    bars = transformers.logging.is_progress_bar_enabled()
    # The reader of GGUF files has a bar of its own, which does not ask whether bars are wanted.
    reader: Any = modeling_gguf_pytorch_utils
    own_bar = reader.tqdm
    transformers.logging.set_verbosity(logging.ERROR)
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
