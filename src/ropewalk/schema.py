"""What everything that users write down as data has in common."""

from pydantic import BaseModel, ConfigDict


class Part(BaseModel):
    """A part of a study or recipe: unknown keys are mistakes, and what was checked does not change."""

    model_config = ConfigDict(extra="forbid", frozen=True)
