"""Where the documents of a study come from, as it says it."""

from typing import Literal

from pydantic import Field, model_validator

from ropewalk.schema import Part


class Corpus(Part):
    """Where documents come from."""

    source: Literal["files", "jsonl", "parquet", "dataset", "python-stdlib", "memory"] = Field(
        "python-stdlib",
        description=(
            "Text files by glob, JSONL or Parquet with a text column, a hub dataset, or the installed standard "
            "library. `memory` stands in records of what was measured from Python."
        ),
    )
    paths: tuple[str, ...] = Field((), description="Globs of files, absolute or relative to the study file.")
    column: str = Field("text", description="Column that holds the text.")
    repo: str | None = Field(None, description="Dataset on the hub, or a folder of one.")
    config: str | None = Field(None, description="Configuration of the dataset.")
    split: str = Field("train", description="Split of the dataset.")
    revision: str | None = Field(
        None, description="Revision of the dataset. A branch is read at its commit, which the record names."
    )
    documents: int | None = Field(
        None,
        gt=0,
        le=10**9,
        description="How many documents to use, in their order; all that are long enough by default.",
    )
    short_documents: Literal["leave_out", "join"] = Field(
        "leave_out",
        description=(
            "What to do with documents shorter than the context: leave them out, or join neighbours "
            "until they fill one."
        ),
    )
    special_tokens: bool = Field(True, description="Let the tokenizer add its special tokens (such as a leading BOS).")

    @model_validator(mode="after")
    def _complete(self) -> "Corpus":
        if self.source in ("files", "jsonl", "parquet") and not self.paths:
            raise ValueError(f"source `{self.source}` needs `paths`, a list of globs such as [texts/*.txt]")
        if self.source == "dataset" and not self.repo:
            raise ValueError("source `dataset` needs `repo`, such as owner/name")
        return self
