"""The tap: seeing the queries and keys that attention uses, without touching a model's code.

transformers' models fetch their attention function by name from a registry. For the time of a `with` block the entry
that a model uses is wrapped; when the last such block is left, in whatever order, the entry is what it was. Swapping an
entry in place, rather than registering a new name, leaves masks and every branch on the name as they are. Entries are
shared by all models of the process, so a wrapper counts only the calls of its own model's modules (and, where several
threads tap one model, those of its own thread).
"""

import functools
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import nn
from transformers import AutoConfig

AttentionFunction = Callable[..., Any]
REGISTRY = "ALL_ATTENTION_FUNCTIONS"
EAGER = "eager_attention_forward"
ROTARY = "apply_rotary_pos_emb"


class Call(NamedTuple):
    """One call of an attention function: query [batch, heads, tokens, d], key and value [batch, key heads, tokens, d].

    Query and key are what the dot product takes: after QK-norm and RoPE, before key heads are repeated.
    """

    module: nn.Module
    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    options: dict[str, Any]


class Rotation(NamedTuple):
    """One call of a rotary embedding function: the query and key that went in, and the key that came out."""

    query: torch.Tensor
    key: torch.Tensor
    rotated_key: torch.Tensor


class Finished(Exception):  # noqa: N818 - a signal, not an error
    """Raised by a viewer to end the forward pass: nobody needs what would follow."""


@contextmanager
def tap(model: nn.Module, view: Callable[[Call], None]) -> Iterator[None]:
    """While the block runs, `view` is given every self-attention call of `model` before the original function runs.

    The calls come in the order of the layers. Their tensors are the model's own: copy what is to be kept, and what is
    changed in place changes the model's output. Raising `ropewalk.models.tap.Finished` in `view` ends the forward pass.
    Cross attention reads another sequence, which has no token positions of its own to learn, and is passed by.

    >>> norms = []
    >>> with ropewalk.tap(model, lambda call: norms.append(call.query.norm(dim=-1).mean())):  # doctest: +SKIP
    ...     model(input_ids)
    """

    def wrap(original: AttentionFunction) -> AttentionFunction:
        @functools.wraps(original)
        def tapped(module: nn.Module, query: Any, key: Any, value: Any, *args: Any, **options: Any) -> Any:
            if query.shape[2] == key.shape[2]:
                # The mask is the one option that some models give without its name.
                named = {**options, "attention_mask": args[0]} if args else options
                view(Call(module, query, key, value, named))
            return original(module, query, key, value, *args, **options)

        return tapped

    with replaced_attention(model, wrap):
        yield


@contextmanager
def replaced_attention(model: nn.Module, wrap: Callable[[AttentionFunction], AttentionFunction]) -> Iterator[None]:
    """While the block runs, each attention function that `model` fetches from a registry is `wrap(function)` for it."""
    modules = frozenset(model.modules())
    with ExitStack() as stack:
        for registry, name in _entries(model):
            # An instance's own entries stand before the ones shared by all registries; only the former are touched.
            find = functools.partial(registry.get, name, _eager)
            stack.enter_context(_wrapped(registry._local_mapping, name, find, wrap, modules))
        yield


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """While the block runs, the model is in evaluation mode; afterwards it is as it was, module by module."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


def dispatches(model_class: type) -> bool:
    """Whether the modelling code of a class, or of the language model it holds, fetches attention from a registry.

    A multimodal class may leave the type of its language model to the configuration; then this says yes, and running it
    shows.
    """
    parts = getattr(getattr(model_class, "config_class", None), "sub_configs", {})
    return parts.get("text_config") is AutoConfig or any(hasattr(source, REGISTRY) for source in _sources(model_class))


@contextmanager
def rotations(model: nn.Module) -> Iterator[list[Rotation]]:
    """While the block runs, the list holds the last call of a rotary embedding function.

    The reader empties it after each attention call; a layer that does not rotate leaves it empty, and so does one that
    rotates queries and keys apart.
    """
    seen: list[Rotation] = []

    def recording(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def rotate(*args: Any, **options: Any) -> Any:
            pair = (*args[:2], options.get("q"), options.get("k"))
            vectors = [part for part in pair if isinstance(part, torch.Tensor) and part.ndim == 4]
            rotated = original(*args, **options)
            if len(vectors) == 2 and isinstance(rotated, tuple):
                seen[:] = [Rotation(vectors[0], vectors[1], rotated[1])]
            return rotated

        return rotate

    sources = {source for module in model.modules() for source in _sources(type(module))}
    with ExitStack() as stack:
        for source in sources:
            if ROTARY in source.__dict__:
                find = functools.partial(source.__dict__.get, ROTARY)
                stack.enter_context(_wrapped(source.__dict__, ROTARY, find, recording, None))
        yield seen


class _Wrapper(NamedTuple):
    """One wrapper of a shared function: the modules whose calls it counts (None: any), and the thread it is for."""

    wrap: Callable[[AttentionFunction], AttentionFunction]
    modules: frozenset[nn.Module] | None
    thread: int

    def owns(self, module: Any) -> bool:
        """Whether a call with this first argument is one of its model's."""
        return self.modules is None or module in self.modules


class _Slot:
    """A function in a mapping that several wrappers share: put back when the last of them is gone, in any order."""

    def __init__(self, mapping: dict[str, Any], name: str, original: AttentionFunction) -> None:
        self._mapping, self._name = mapping, name
        self._before = mapping.get(name)
        self.wrappers: tuple[_Wrapper, ...] = ()

        @functools.wraps(original)
        def shared(*args: Any, **options: Any) -> Any:
            # `wrappers` is replaced as a whole, so that a call sees one state of it whatever other threads do.
            function, thread = original, threading.get_ident()
            module = args[0] if args else options.get("module")
            owning = [wrapper for wrapper in self.wrappers if wrapper.owns(module)]
            mine = [wrapper for wrapper in owning if wrapper.thread == thread]
            for wrapper in mine or owning:
                function = wrapper.wrap(function)
            return function(*args, **options)

        mapping[name] = shared

    def restore(self) -> None:
        """Put back what was there."""
        if self._before is None:
            self._mapping.pop(self._name, None)
        else:
            self._mapping[self._name] = self._before


_slots: dict[tuple[int, str], _Slot] = {}
_lock = threading.Lock()


@contextmanager
def _wrapped(
    mapping: dict[str, Any],
    name: str,
    find: Callable[[], Any],
    wrap: Callable[[AttentionFunction], AttentionFunction],
    modules: frozenset[nn.Module] | None,
) -> Iterator[None]:
    """While the block runs, `mapping[name]` is wrapped for calls of these modules; later wrappers are further out.

    `find` gives the function that is called without wrappers, asked for while nobody else changes it.
    """
    key, wrapper = (id(mapping), name), _Wrapper(wrap, modules, threading.get_ident())
    with _lock:
        if key not in _slots:
            _slots[key] = _Slot(mapping, name, find())
        slot = _slots[key]
        slot.wrappers = (*slot.wrappers, wrapper)
    try:
        yield
    finally:
        with _lock:
            slot.wrappers = tuple(one for one in slot.wrappers if one is not wrapper)
            if not slot.wrappers:
                slot.restore()
                del _slots[key]


def _entries(model: nn.Module) -> list[tuple[Any, str]]:
    found: dict[tuple[int, str], tuple[Any, str]] = {}
    for module in model.modules():
        name = getattr(getattr(module, "config", None), "_attn_implementation", None)
        for source in _sources(type(module)):
            registry = getattr(source, REGISTRY, None)
            if registry is not None and name is not None:
                found[id(registry), name] = (registry, name)
    return list(found.values())


def _sources(cls: type) -> list[ModuleType]:
    """The modelling files in which a class and its ancestors are written; not those of the bases that all share."""
    names = {base.__module__ for base in cls.__mro__}
    own = {name for name in names if ".modeling_" in name and not name.startswith("transformers.modeling_")}
    own |= {name for name in names if name.startswith("transformers_modules")}
    return [sys.modules[name] for name in sorted(own) if name in sys.modules]


def _eager(module: nn.Module, *args: Any, **options: Any) -> Any:
    """The plain attention that stands in the modelling file of the module that calls, as the registry would choose."""
    for source in _sources(type(module)):
        if hasattr(source, EAGER):
            return getattr(source, EAGER)(module, *args, **options)
    raise RuntimeError(f"{type(module).__name__} has no {EAGER} beside it")
