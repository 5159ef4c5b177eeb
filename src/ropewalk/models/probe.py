"""Reading a model's layout off the model itself: a few tokens under the tap, and the same at other positions."""

import inspect
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from ropewalk.errors import OutOfMemoryError, RopewalkError
from ropewalk.models.device import is_out_of_memory
from ropewalk.models.layout import AttentionLayer, Layout
from ropewalk.models.recomputation import score_scale
from ropewalk.models.tap import AttentionFunction, Call, replaced_attention, tap
from ropewalk.text import one_line

PROBE_TOKENS = 16
POSITION_LIMITS = ("max_position_embeddings", "n_positions", "max_target_positions", "max_seq_len")
UNLIMITED = 2048


def text_config(model: nn.Module) -> Any:
    """The configuration of the language model, also inside a multimodal one."""
    config: Any = model.config
    return config.get_text_config(decoder=True) if hasattr(config, "get_text_config") else config


def probe_tokens(model: nn.Module, count: int = PROBE_TOKENS) -> torch.Tensor:
    """A short input [1, count] that every vocabulary has."""
    vocabulary = int(getattr(text_config(model), "vocab_size", 32) or 32)
    return (torch.arange(3, 3 + count, device=input_device(model)) % vocabulary)[None]


def input_device(model: nn.Module) -> torch.device:
    """Where tokens go: beside the first weights that are in memory (offloaded ones are on no device)."""
    return next((weights.device for weights in model.parameters() if not weights.is_meta), torch.device("cpu"))


@torch.inference_mode()
def read_layout(model: nn.Module) -> Layout:
    """Find the attention layers by running a few tokens under the tap, and measure which dimensions rotate.

    The same tokens run twice, near the first and near the last position, while every attention module is given
    the hidden states of the first run, so that nothing but the position differs: the dimensions that move, by however
    little, in both q and k are the rotated ones. (A query alone may also be scaled by position; that is no rotation.)
    A model that takes no position ids cannot be asked: there `rotary` is None.
    """
    tokens = probe_tokens(model)
    modules = _calling_modules(model, tokens)
    # Position 0 is left out: some recurrent layers start anew there, which is no trace of a position embedding.
    near = torch.arange(1, 1 + PROBE_TOKENS, device=tokens.device)[None]
    far = near + max(position_limit(model) - PROBE_TOKENS - 1, 1)
    first, second = _Pass(), _Pass()
    parameters = inspect.signature(model.forward).parameters
    named = "position_ids" in parameters
    passed = named or any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    first.run(model, tokens, modules, positions=near if passed else None)
    second.run(model, tokens, modules, replay=first.states, positions=far if passed else None)
    kept = _distinct(first.calls)
    numbers = _layer_numbers(first, kept)
    shares = [_moved_share(first.calls[index], second.calls[index]) for index in kept]
    embedded = not torch.equal(first.states[0], second.states[0])
    # What is passed on without being named may end unread: only an effect shows that it was read.
    read = named or embedded or any(shares)
    layers = tuple(
        AttentionLayer(
            call_index=index,
            layer=number,
            query_heads=first.calls[index].query.shape[1],
            key_heads=first.calls[index].key.shape[1],
            head_dim=first.calls[index].query.shape[3],
            rotary=share if read else None,
            window=_window(first.calls[index], number),
            scale=score_scale(first.calls[index].query, first.calls[index].options),
        )
        for index, number, share in zip(kept, numbers, shares, strict=True)
    )
    return Layout(
        model_type=model_type_of(model),
        depth=max(int(getattr(text_config(model), "num_hidden_layers", 0) or 0), max(numbers) + 1),
        layers=layers,
        absolute_positions=embedded if read else _embeds_positions(model, modules),
    )


@dataclass(frozen=True)
class Replay:
    """The attention calls of one run, and those of another at other positions with the same hidden states."""

    before: list[Call]
    after: list[Call]

    @classmethod
    def of(cls, model: nn.Module, tokens: torch.Tensor, before: torch.Tensor, after: torch.Tensor) -> "Replay":
        """Run the tokens [1, count] at the position ids `before` and `after`."""
        modules, first, second = _calling_modules(model, tokens), _Pass(), _Pass()
        first.run(model, tokens, modules, positions=before)
        second.run(model, tokens, modules, replay=first.states, positions=after)
        return cls(first.calls, second.calls)


@dataclass
class _Pass:
    """One forward pass under the tap: its attention calls with the layer index that their modules were told (if any).

    `states` are the hidden states that came to the calling modules, one for each time one of them ran.
    """

    calls: list[Call] = field(default_factory=list)
    told: list[int | None] = field(default_factory=list)
    states: list[torch.Tensor] = field(default_factory=list)

    def run(
        self,
        model: nn.Module,
        tokens: torch.Tensor,
        modules: Iterable[nn.Module],
        replay: Sequence[torch.Tensor] | None = None,
        positions: torch.Tensor | None = None,
    ) -> None:
        """Run the tokens; with `replay`, the modules are given those hidden states, in order, in place of their own."""
        source: Iterator[torch.Tensor] | None = None if replay is None else iter(replay)
        index: int | None = None

        def before(_: nn.Module, args: tuple[Any, ...], given: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
            nonlocal index
            index = given.get("layer_idx")
            state = given["hidden_states"] if "hidden_states" in given else args[0]
            self.states.append(state.clone())
            other = state if source is None else next(source)
            # The same tensor may come under several names (query, key, value).
            args = tuple(other if value is state else value for value in args)
            return args, {name: other if value is state else value for name, value in given.items()}

        def view(call: Call) -> None:
            self.calls.append(call)
            self.told.append(index)

        with ExitStack() as undo:
            for module in modules:
                undo.callback(module.register_forward_pre_hook(before, with_kwargs=True).remove)
            with tap(model, view):
                given = {} if positions is None else {"position_ids": positions}
                model(input_ids=tokens, use_cache=False, **given)


def _calling_modules(model: nn.Module, tokens: torch.Tensor) -> list[nn.Module]:
    """The modules that call attention; refuses a model that needs more than tokens, or whose q and k are not theirs."""
    found: dict[int, nn.Module] = {}
    shapes: list[tuple[int, int]] = []

    def wrap(original: AttentionFunction) -> AttentionFunction:
        def noting(module: nn.Module, query: Any, key: Any, *args: Any, **options: Any) -> Any:
            found[id(module)] = module
            shapes.append((query.shape[2], key.shape[2]))
            return original(module, query, key, *args, **options)

        return noting

    _check_runs(model, tokens)
    with replaced_attention(model, wrap):
        model(input_ids=tokens, use_cache=False)
    if not found:
        raise RopewalkError(
            f"no attention call of this {model_type_of(model)} model goes through transformers' registry: "
            "it cannot be tapped"
        )
    for queries, keys in shapes:
        if not queries == keys == tokens.shape[1]:
            raise RopewalkError(
                f"model type {model_type_of(model)!r} is not supported: an attention call has {queries} queries and "
                f"{keys} keys for {tokens.shape[1]} tokens, so they have no token positions"
            )
    return list(found.values())


def _check_runs(model: nn.Module, tokens: torch.Tensor) -> None:
    """Run a few tokens as anybody would: what fails now is the model's, not the tap's."""
    try:
        model(input_ids=tokens, use_cache=False)
    except (TypeError, ValueError) as error:
        raise RopewalkError(
            f"model type {model_type_of(model)!r} is not supported: it does not run on tokens alone ({one_line(error)})"
        ) from error
    # Sizes that do not go together show in as many ways as there are architectures.
    except Exception as error:
        if is_out_of_memory(error):
            raise OutOfMemoryError(
                f"there is no memory to run this {model_type_of(model)} model on {tokens.shape[1]} tokens: set a "
                "smaller `dtype`, or close other programs"
            ) from error
        raise RopewalkError(
            f"this {model_type_of(model)} model does not run ({one_line(error, 200)}): its configuration, or an "
            "override, does not go with it"
        ) from error


def _embeds_positions(model: nn.Module, modules: Iterable[nn.Module]) -> bool:
    """Whether the same token at every position reaches the first attention module as different hidden states."""
    alike = _Pass()
    alike.run(model, torch.full_like(probe_tokens(model), 3), modules)
    return not torch.allclose(alike.states[0], alike.states[0][:, :1], rtol=1e-3, atol=1e-5)


def _distinct(calls: Sequence[Call]) -> list[int]:
    """Indices of the calls, without those that repeat the queries and keys of the one before with other values."""
    return [
        index
        for index, call in enumerate(calls)
        if index == 0 or call.query is not calls[index - 1].query or call.key is not calls[index - 1].key
    ]


def _layer_numbers(run: _Pass, kept: Sequence[int]) -> list[int]:
    """The layer of each call: as its module was told or knows, or by order where layers are called several times."""
    numbers = []
    for index in kept:
        own = getattr(run.calls[index].module, "layer_idx", None)
        numbers.append(run.told[index] if run.told[index] is not None else own)
    if None in numbers or len(set(numbers)) < len(numbers):
        return list(range(len(kept)))
    return [int(number) for number in numbers if number is not None]


def _moved_share(before: Call, after: Call) -> float:
    moved = (before.query != after.query).any(dim=(0, 1, 2)) & (before.key != after.key).any(dim=(0, 1, 2))
    return float(moved.float().mean())


def position_limit(model: nn.Module) -> int:
    """How many positions a model has, as far as its configuration limits them."""
    limits = [getattr(text_config(model), name, None) for name in POSITION_LIMITS]
    return min((int(limit) for limit in limits if limit), default=UNLIMITED)


def model_type_of(model: nn.Module) -> str:
    """What transformers calls the architecture."""
    return str(getattr(model.config, "model_type", type(model).__name__))


def _window(call: Call, layer: int) -> int | None:
    """Length of the sliding or chunked window of a layer, None where it attends to everything before."""
    config: Any = getattr(call.module, "config", None)
    kinds = getattr(config, "layer_types", None)
    kind = kinds[layer] if kinds and layer < len(kinds) else None
    if kind == "chunked_attention":
        return int(config.attention_chunk_size)
    if kind == "full_attention":
        return None
    window = call.options.get("sliding_window", getattr(call.module, "sliding_window", None))
    if window is None and kind is not None and "sliding" in kind:
        window = getattr(config, "sliding_window", None)
    return int(window) if window else None
