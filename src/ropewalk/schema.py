"""What everything that users write down as data has in common."""

from typing import Any, get_args

from pydantic import BaseModel, ConfigDict, ValidationInfo, field_validator


class Part(BaseModel):
    """A part of a study or recipe: unknown keys are mistakes, and what was checked does not change."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @field_validator("*", mode="before")
    @classmethod
    def _numbers_are_no_switches(cls, value: Any, info: ValidationInfo) -> Any:
        # Python takes true for 1: `shards: yes` would be one shard.
        if isinstance(value, bool) and info.field_name in cls.model_fields:
            annotation = cls.model_fields[info.field_name].annotation
            if {annotation, *get_args(annotation)} & {int, float}:
                raise ValueError(f"must be a number, and is {str(value).lower()} (yes, no, on and off are such, too)")
        return value
