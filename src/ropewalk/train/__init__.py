"""Training a miniature of the published run from scratch."""

from ropewalk.train.recipe import Recipe, load_recipe
from ropewalk.train.trainer import train

__all__ = ["Recipe", "load_recipe", "train"]
