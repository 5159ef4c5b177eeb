"""Loading models and tokenizers, from the hub or a folder, so that nothing is guessed and nothing is left at random."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import SafetensorError
from torch import nn

from ropewalk.errors import RopewalkError
from ropewalk.models.blueprint import CannotBuildError, blueprint, check_fits_gguf, check_fits_memory, loading_report
from ropewalk.models.classes import auto_class, model_class, quiet
from ropewalk.models.device import compute_dtype, device_of, is_out_of_memory, name_of
from ropewalk.models.documents import (
    CONFIG,
    TOKENIZERS,
    check_counts,
    check_folder,
    check_leads_nowhere,
    check_tokenizer,
    read_config,
    walked,
)
from ropewalk.models.gguf import check_gguf
from ropewalk.models.hub import model_folder, repo_file
from ropewalk.models.overrides import apply_overrides
from ropewalk.models.source import ModelSource
from ropewalk.models.weights import check_complete, damaged, read_header, weight_files
from ropewalk.progress import logger
from ropewalk.reading import unreadable
from ropewalk.text import install_extra, one_line

LARGEST_SIZE = 2**40
"""Beyond it, numbers of tokens and sizes of tensors do not fit into the numbers that torch counts them with."""


def load_config(source: ModelSource, context: int | None = None) -> Any:
    """The configuration of a model with its overrides, checked for what can be known before weights are read.

    Refuses a model type whose attention does not go through the registry and a context beyond the model's positions.
    """
    repo = str(source.repo)
    folder = model_folder(repo, source.revision)
    check_folder(repo, folder)
    options: dict[str, Any] = {"trust_remote_code": source.trust_remote_code, **_gguf_option(source, folder)}
    if not source.gguf_file:
        _check_type(source, folder)
    try:
        with quiet():
            config = transformers.AutoConfig.from_pretrained(folder, **options)
            text = config.get_text_config(decoder=True)
    # A configuration can say anything, and each type fails at it in its own way; nothing of this project runs in here.
    except Exception as error:
        raise RopewalkError(f"the configuration of {repo} cannot be used: {one_line(error)}") from error
    if not isinstance(text, transformers.PreTrainedConfig):
        raise RopewalkError(
            f"the configuration of {repo} cannot be used: that of its language model is {one_line(repr(text), 100)}"
        )
    apply_overrides(text, source.overrides)
    # How outputs are handed over is for who calls the model to say.
    config.return_dict = text.return_dict = True
    _check_values(config, text, repo)
    model_class(config)
    limit = getattr(text, "max_position_embeddings", None)
    if limit and context is not None and context > limit:
        raise RopewalkError(
            f"context {context} of {source.label!r} is beyond the {limit} positions of the model: "
            "lower `context`, or set max_position_embeddings (and rope_theta or rope_scaling) in `overrides`"
        )
    return config


def built(source: ModelSource, config: Any) -> nn.Module:
    """The model without its weights, or a sentence that names what of the configuration cannot be built."""
    try:
        return blueprint(source, config)
    except CannotBuildError as error:
        culprit = next((key for key in source.overrides if _builds_without(source, key)), None)
        if culprit is None:
            raise RopewalkError(
                f"no model can be built of the configuration of {source.repo} ({error}): fetch it again, or correct it"
            ) from error
        value = one_line(repr(source.overrides[culprit]), 100)
        raise RopewalkError(
            f"overrides.{culprit} of {source.label!r} is {value}: no model can be built with it ({error})"
        ) from error


def _builds_without(source: ModelSource, key: str) -> bool:
    rest = {name: value for name, value in source.overrides.items() if name != key}
    other = source.model_copy(update={"overrides": rest})
    try:
        blueprint(other, load_config(other))
    except (CannotBuildError, RopewalkError):
        return False
    return True


def _check_values(config: Any, text: Any, repo: str) -> None:
    """Refuse values that transformers takes as they are, and fails at much later."""
    for part in (config, text):
        dtype = getattr(part, "dtype", None)
        if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
            raise RopewalkError(
                f"`dtype` in the configuration of {repo} is {one_line(dtype, 100)}, no type of weights: correct it"
            )
    for name in ("num_hidden_layers", "num_attention_heads", "hidden_size", "max_position_embeddings", "vocab_size"):
        value = getattr(text, name, None)
        # Some give a number for each layer.
        listed = isinstance(value, list | tuple) and name != "max_position_embeddings"
        is_number = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= LARGEST_SIZE
        if value is not None and not listed and not is_number:
            raise RopewalkError(
                f"{name} in the configuration of {repo} is {one_line(repr(value), 100)}: it must be a positive number"
            )


def load_model(source: ModelSource, config: Any = None) -> nn.Module:
    """A model on its device, in evaluation mode; every tensor of it comes from the files.

    A tensor that is missing, left over or of another shape stops with its name. `random_weights` builds the
    architecture untrained, from `weights_seed`, on one device. `config` is what `load_config` gave, if it is at hand.
    """
    config = load_config(source) if config is None else config
    device = device_of(source)
    repo = str(source.repo)
    folder = model_folder(repo, source.revision)
    files = [] if source.gguf_file or source.random_weights else weight_files(repo, folder)
    check_weights(source, config, files)
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
        with torch.random.fork_rng(), _explained(source), quiet():
            torch.manual_seed(source.weights_seed)
            model: nn.Module = auto.from_config(config, dtype=dtype, **options)
            return model.to(device).eval()
    if source.device_map is not None:
        options["device_map"] = source.device_map
    with _explained(source), quiet():
        model, report = auto.from_pretrained(
            folder,
            config=config,
            dtype=dtype,
            use_safetensors=None if source.gguf_file else True,
            # Without it a wrong shape is an error that does not name the tensor; with it, it is in the report.
            ignore_mismatched_sizes=True,
            output_loading_info=True,
            # Nothing is generated: how a repository would do it is not read.
            generation_config=transformers.GenerationConfig(),
            **options,
            **_gguf_option(source, folder),
        )
    check_complete(source.label, report)
    if source.device_map is None:
        with _explained(source):
            model = model.to(device)
    return model.eval()


def load_tokenizer(source: ModelSource) -> Any:
    """The tokenizer of a model, from its own repo or the one the study names."""
    repo, revision, gguf_file = source.tokenizer_location
    folder = model_folder(str(repo), revision)
    options: dict[str, Any] = {"trust_remote_code": source.trust_remote_code}
    options |= _gguf_option(source, folder) if gguf_file else {}
    check_tokenizer(str(repo), folder, source.trust_remote_code)
    remedy = "name the repository or folder that has one as `tokenizer`"
    try:
        with quiet():
            tokenizer = transformers.AutoTokenizer.from_pretrained(folder, **options)
            empty = len(tokenizer) < 2
    # The tokenizers library raises bare exceptions; nothing of this project runs in here.
    except Exception as error:
        if isinstance(error, PermissionError):
            raise unreadable(error.filename or folder, error, "check who may read it, and the disk") from error
        if gguf_file or any((folder / name).exists() for name in TOKENIZERS):
            raise RopewalkError(
                f"the tokenizer at {repo} for {source.label!r} cannot be used ({one_line(error)}): fetch it again, or "
                "name another as `tokenizer`"
            ) from error
        raise RopewalkError(f"no tokenizer at {repo} for {source.label!r} ({one_line(error)}): {remedy}") from error
    if empty:
        raise RopewalkError(f"the tokenizer at {repo} for {source.label!r} is empty: {remedy}")
    return tokenizer


def _is_dtype(name: str) -> bool:
    dtype = getattr(torch, name.removeprefix("torch."), None)
    return isinstance(dtype, torch.dtype) and dtype.is_floating_point


def _check_type(source: ModelSource, folder: Path) -> None:
    """Refuse what config.json shows to be no model, of a type that is not known, or with code of its own."""
    repo = str(source.repo)
    path = repo_file(repo, folder, CONFIG)
    if path is None:
        raise RopewalkError(f"{repo} has no {CONFIG}: give the repository or folder of a transformers model")
    data = read_config(repo, path)
    kind = data.get("model_type")
    known = isinstance(kind, str) and kind in transformers.CONFIG_MAPPING
    where = f"{CONFIG} of {repo}"
    # Code that is not known cannot do without its own, which is refused before it is asked to be trusted.
    check_leads_nowhere(data, where, source.trust_remote_code or not known)
    check_counts(data, where)
    for key, value in walked(data):
        if key in ("dtype", "torch_dtype") and isinstance(value, str) and value != "auto" and not _is_dtype(value):
            raise RopewalkError(f"`{key}` in {where} is {one_line(repr(value), 100)}, no type of weights: correct it")
    if known:
        return
    if not data.get("auto_map"):
        raise RopewalkError(
            f"model type {one_line(repr(kind), 100)} of {repo} is not known to transformers "
            f"{transformers.__version__}: a newer one may know it"
        )
    if not source.trust_remote_code:
        raise RopewalkError(
            f"{repo} comes with modelling code of its own, which is not run unasked: "
            "read it, and set `trust_remote_code: true` if you trust it"
        )


def _gguf_option(source: ModelSource, folder: Path) -> dict[str, Any]:
    """The GGUF file of a model as transformers is told it, after a look at its header; nothing where there is none.

    By its whole path: a name alone would first be looked for where the command runs.
    """
    if not source.gguf_file:
        return {}
    try:
        import gguf  # noqa: F401
    except ImportError as error:
        raise RopewalkError(f"GGUF files need an extra: {install_extra('gguf')}") from error
    path = repo_file(str(source.repo), folder, source.gguf_file)
    if path is None:
        raise RopewalkError(f"{source.repo} has no {source.gguf_file}: check `gguf_file`")
    check_gguf(path, f"{source.gguf_file} of {source.repo}")
    return {"gguf_file": str(path.absolute())}


def check_weights(source: ModelSource, config: Any, files: Sequence[Path] | None) -> None:
    """Stop at weights that are not whole, do not fit the configuration, or do not fit into memory; none are read.

    `files` are safetensors files if all are at hand; None leaves what they hold to loading.
    """
    model = built(source, config)
    name = compute_dtype(source, config)
    check_fits_memory(source, model, torch.float32 if name == "auto" else getattr(torch, name))
    if source.random_weights:
        return
    if source.gguf_file:
        path = _gguf_option(source, model_folder(str(source.repo), source.revision))["gguf_file"]
        check_fits_gguf(source, model, check_gguf(Path(path), f"{source.gguf_file} of {source.repo}"))
    elif files is not None:
        check_complete(source.label, loading_report(model, config, [read_header(path) for path in files]) or {})


@contextmanager
def _explained(source: ModelSource) -> Iterator[None]:
    """Turn the failures of building a model that a user can mend into sentences; anything else keeps its traceback."""
    try:
        yield
    except SafetensorError as error:
        raise damaged(f"of {source.repo}", error) from error
    except torch.OutOfMemoryError as error:
        raise RopewalkError(
            f"{source.label!r} does not fit on the device: set `device_map: auto` or a smaller `dtype`"
        ) from error
    except (MemoryError, RuntimeError, OSError) as error:
        if is_out_of_memory(error):
            raise RopewalkError(
                f"the memory of this machine ran out while {source.label!r} was loaded: set a smaller `dtype`, or a "
                "`device_map` with `disk`, or close other programs"
            ) from error
        if not isinstance(error, OSError):
            raise
        raise RopewalkError(f"cannot load {source.label!r} from {source.repo}: {one_line(error)}") from error
    except (ValueError, ImportError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise RopewalkError(f"cannot load {source.label!r} from {source.repo}: {one_line(error)}") from error
