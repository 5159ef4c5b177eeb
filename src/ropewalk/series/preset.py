"""A checkpoint series as text: the listing for the terminal and the study that runs it."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from ropewalk.errors import RopewalkError
from ropewalk.series.branches import Branch, labels, short_number
from ropewalk.series.findings import Finding, download_size
from ropewalk.series.hub import Series
from ropewalk.series.known import KNOWN
from ropewalk.text import LONGEST_SLUG, count, printable, simplified, size, some, table
from ropewalk.yamlfile import dump_yaml

_LENGTH = "max_position_embeddings"
_OVERRIDABLE = ("rope_theta", _LENGTH)
_LARGEST = 10**15
_DEFAULT_CORPUS: Mapping[str, Any] = {"source": "python-stdlib"}

HEADERS = ("", "label", "branch", "phase", "step", "tokens", "context", "weights")


def to_study(
    series: Series,
    *,
    context: int | None = None,
    corpus: Mapping[str, Any] | None = None,
    name: str | None = None,
    findings: Sequence[Finding] = (),
) -> str:
    """Write the study of a series as YAML text.

    The context of a checkpoint is the `max_position_embeddings` it was trained with, at most `context`. Where a value
    of rope_theta or max_position_embeddings is not that of the branch's own config, or not that of the first
    checkpoint, it stands among the overrides. Branches that `findings` call unusable are left out; all findings stand
    in comments at the top.
    """
    if context is not None and context < 2:
        raise RopewalkError(f"--context {context} is too short: give at least 2 tokens")
    unusable = {branch for finding in findings if finding.unusable for branch in finding.branches}
    branches = [branch for branch in series.branches if branch.name not in unusable]
    if not branches:
        raise RopewalkError(f"no checkpoint of {series.repo} can be loaded: {findings[0].text.rstrip('.')}")
    known = KNOWN.get(series.repo)
    defaults: dict[str, Any] = {"repo": series.repo}
    if known is not None:
        defaults["tokenizer"] = known.tokenizer
    defaults["dtype"] = "bfloat16"
    checkpoints = _checkpoints(series, branches, context)
    contexts = {checkpoint["context"] for checkpoint in checkpoints}
    if len(contexts) == 1:
        defaults["context"] = contexts.pop()
        for checkpoint in checkpoints:
            del checkpoint["context"]
    corpus = corpus or (known.corpus if known else None) or _DEFAULT_CORPUS
    comments = [f"{count(len(branches), 'checkpoint')} of {series.repo}"]
    comments += [f"- {finding.text}" + (" Left out." if finding.unusable else "") for finding in findings]
    lines = [f"  - {_flow(checkpoint)}" for checkpoint in checkpoints]
    return "\n".join(
        [
            # What a repository says stays in its comment: a line break would make a key of the study of it.
            *(f"# {printable(comment)}" for comment in comments),
            _block({"name": name or _study_name(series.repo), "defaults": defaults}),
            "checkpoints:",
            *lines,
            f"corpus: {_flow(dict(corpus))}",
            f"capture: {_flow({'heads': 300, 'seed': 0})}",
            "",
        ]
    )


def describe(series: Series, findings: Sequence[Finding] = ()) -> str:
    """Write the series for a terminal: a row for each checkpoint, then what the audit found."""
    named = labels(series.branches)
    rows = []
    total = 0
    for number, branch in enumerate(series.branches, start=1):
        held = series.contents.get(branch.name)
        weights = download_size(held) if held else None
        total += weights or 0
        length = _trained(series, branch).get(_LENGTH)
        tokens = short_number(branch.tokens) if branch.tokens is not None else "-"
        rows.append(
            (
                str(number),
                named[branch.name],
                branch.name,
                branch.phase or "-",
                str(branch.step),
                tokens,
                str(length or "-"),
                size(weights) if weights is not None else "-",
            )
        )
    phases = [phase for phase in series.phases if phase]
    head = f"{series.repo}: {count(len(series.branches), 'checkpoint')}"
    if phases:
        head += f" in {count(len(phases), 'phase')} ({', '.join(phases)})"
    if series.skipped:
        head += f"; {count(len(series.skipped), 'other branch')} skipped ({some(series.skipped)})"
    lines = [printable(head), "", *table(HEADERS, rows, right=(0, 4, 5, 6, 7), unused="-")]
    if total:
        lines += ["", f"weights to download: {size(total)}"]
    if series.contents:
        lines += ["", "audit:", *([printable(f"- {finding.text}") for finding in findings] or ["- nothing to report"])]
    return "\n".join(lines)


def _checkpoints(series: Series, branches: Sequence[Branch], limit: int | None) -> list[dict[str, Any]]:
    named = labels(branches)
    first = _trained(series, branches[0])
    checkpoints = []
    seen: Counter[str] = Counter()
    for branch in branches:
        trained = _trained(series, branch)
        length = trained.get(_LENGTH)
        if length is None and limit is None:
            raise RopewalkError(
                f"the config of {branch.name} in {series.repo} does not give {_LENGTH}: name a context with --context"
            )
        checkpoint: dict[str, Any] = {
            "revision": branch.name,
            "label": named[branch.name],
            "phase": branch.phase,
            "step": branch.step,
            "context": min(value for value in (length, limit) if value is not None),
        }
        seen[branch.name.casefold()] += 1
        if seen[branch.name.casefold()] > 1:
            # Names that differ in the case of letters alone would be one folder on some systems.
            other = f"{branch.name} ({seen[branch.name.casefold()]})"
            checkpoint |= {"name": other, "label": other}
        own = _configured(series, branch)
        overrides = {key: value for key, value in trained.items() if value != own.get(key) or value != first.get(key)}
        if overrides:
            checkpoint["overrides"] = overrides
        checkpoints.append(checkpoint)
    return checkpoints


def _trained(series: Series, branch: Branch) -> dict[str, Any]:
    """The values a branch was trained with: as known of the series, else as its config says."""
    known = KNOWN.get(series.repo)
    training = known.training.get(branch.phase, {}) if known else {}
    values = _configured(series, branch) | dict(training)
    return {key: values[key] for key in _OVERRIDABLE if key in values}


def _configured(series: Series, branch: Branch) -> dict[str, Any]:
    """The values in the config of a branch, or, where it was not scanned, of the first branch of its phase that was."""
    phase = [branch.name, *(other.name for other in series.branches if other.phase == branch.phase)]
    held = next((series.contents[name] for name in phase if name in series.contents), None)
    config = held.config if held else None
    if config is None:
        return {}
    text = config.get("text_config")
    config = config | (text if isinstance(text, dict) else {})
    rope = config.get("rope_parameters")
    values = {"rope_theta": config.get("rotary_emb_base")} | (rope if isinstance(rope, dict) else {}) | config
    return {key: values[key] for key in _OVERRIDABLE if _is_usable(key, values.get(key))}


def _is_usable(key: str, value: Any) -> bool:
    """Whether a value from a repository can stand in a study: a length of tokens, or a positive number."""
    if isinstance(value, bool) or not isinstance(value, int if key == _LENGTH else int | float):
        return False
    return bool(1 < value <= _LARGEST)


def _study_name(repo: str) -> str:
    return simplified(repo.rsplit("/", 1)[-1].lower(), keep="").strip("_")[:LONGEST_SLUG] or "study"


def _block(data: Mapping[str, Any]) -> str:
    return dump_yaml(dict(data), 1000).rstrip("\n")


def _flow(data: Mapping[str, Any]) -> str:
    return dump_yaml(dict(data), 10**6, flow=True).strip()
