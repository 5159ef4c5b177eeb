"""The figures of a study in their order, and writing them with their captions."""

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any

from ropewalk.errors import RopewalkError
from ropewalk.figures import (
    attention_by_distance,
    axis_choice,
    bias_decomposition,
    category_behaviour,
    category_flows,
    concordance,
    depth_heatmap_r_k,
    depth_heatmap_r_q,
    distance_kernels,
    drift_wavelengths,
    explained_variance,
    families,
    fixed_share,
    kernel_map,
    mean_paths,
    phase_portraits,
    plasticity_map,
    plasticity_profile,
    plasticity_trajectory,
    position_signal,
    rotation_metrics,
    sinks,
    spectrum,
    taxonomy_evolution,
)
from ropewalk.figures.caption import Caption
from ropewalk.figures.files import FILES, write_figure
from ropewalk.figures.spec import AXIS, FigureSpec
from ropewalk.helpers import ALONE, Helpers
from ropewalk.ownership import is_marked
from ropewalk.seals import Ledger
from ropewalk.summary.view import View

Told = Callable[[Path], object]
"""Who is told of each folder when it is written."""
SHARE = 6
"""Figures that there must be for each process, or it is not worth its start."""

FIGURES: tuple[FigureSpec, ...] = (
    position_signal.FIGURE,
    taxonomy_evolution.FIGURE,
    explained_variance.FIGURE,
    depth_heatmap_r_q.FIGURE,
    depth_heatmap_r_k.FIGURE,
    phase_portraits.FIGURE,
    concordance.FIGURE,
    category_flows.FIGURE,
    axis_choice.FIGURE,
    category_behaviour.FIGURE,
    fixed_share.FIGURE,
    distance_kernels.FIGURE,
    kernel_map.FIGURE,
    attention_by_distance.FIGURE,
    spectrum.FIGURE,
    mean_paths.FIGURE,
    sinks.FIGURE,
    rotation_metrics.FIGURE,
    bias_decomposition.FIGURE,
    drift_wavelengths.FIGURE,
    plasticity_trajectory.FIGURE,
    plasticity_profile.FIGURE,
    plasticity_map.FIGURE,
    families.FIGURE,
)


def find(name: str) -> FigureSpec:
    """The figure of this name."""
    by_name = {figure.name: figure for figure in FIGURES}
    if name not in by_name:
        near = get_close_matches(name, by_name, n=1)
        hint = f"did you mean {near[0]!r}? There are " if near else "there are "
        raise RopewalkError(f"no figure is called {name!r}: {hint}{', '.join(by_name)}")
    return by_name[name]


def shown(view: View) -> tuple[FigureSpec, ...]:
    """The figures that a view has everything for, in order."""
    return tuple(figure for figure in FIGURES if figure.can_show(view))


def folder_name(figure: FigureSpec) -> str:
    """Where a figure of the gallery is written, such as `01_position_signal`: its number in order and its name."""
    return f"{FIGURES.index(figure) + 1:02d}_{figure.name}"


def study_options(portraits: Sequence[str] | None, axis: str) -> Mapping[str, Mapping[str, Any]]:
    """What a study chooses for its figures (`figures.portraits`, `figures.axis`), as options by figure."""
    chosen: dict[str, dict[str, Any]] = {figure.name: {AXIS: axis} for figure in FIGURES if figure.on_axis}
    if portraits:
        chosen[phase_portraits.FIGURE.name]["checkpoints"] = portraits
    return chosen


def write_figures(
    view: View,
    folder: Path,
    source: str,
    options: Mapping[str, Mapping[str, Any]] = {},
    made_from: Mapping[str, Any] = {},
    done: Told = lambda _: None,
    helpers: Helpers = ALONE,
) -> dict[Path, Caption]:
    """Write `folder/NN_name/{figure.png, figure.pdf, README.md}` of every figure that there are numbers for.

    Returns these folders, in order, with the captions. A ledger beside them holds their digests, and what they were
    `made_from`.

    `source` names the file of the table in the captions, `options` gives keyword options by the name of the figure,
    and `done` is called with each folder when it is written. `helpers` are other processes that draw as well.
    """
    for name, chosen in options.items():
        find(name).check_options(chosen)
    names = [f"{folder_name(figure)}/{name}" for figure in shown(view) for name in FILES]
    Ledger.begin(folder, names, replace=is_marked(folder.parent))
    tasks = [
        Task(figure.name, Path(folder) / folder_name(figure), dict(options.get(figure.name, {})))
        for figure in shown(view)
    ]
    here, there = (partial(write_task, view=seen, source=source) for seen in (view, view.bare()))
    captions: dict[Path, Caption] = {}
    for task, caption in zip(tasks, helpers.each(tasks, here, there, SHARE), strict=True):
        captions[task.target] = caption
        done(task.target)
    Ledger.of(folder, names, made_from).write(folder)
    return captions


@dataclass(frozen=True)
class Task:
    """A figure to write: its name, its folder, and its options."""

    figure: str
    target: Path
    options: dict[str, Any]


def write_task(task: Task, view: View, source: str) -> Caption:
    """Draw and describe one figure, and write it into its folder; returns its caption."""
    figure = find(task.figure)
    with _uncollected():
        drawn, caption = figure.draw(view, **task.options), figure.caption(view, source, **task.options)
        write_figure(task.target, drawn, caption)
    return caption


@contextmanager
def _uncollected() -> Iterator[None]:
    """No search for unreachable objects before a figure is written: its thousands of artists are all reachable, and
    would be looked through again and again.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
