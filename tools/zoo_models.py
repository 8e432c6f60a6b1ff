"""The networks of the zoo: how each is made with torch, randomly initialised and without any download."""

import zoo_language
import zoo_small
import zoo_vision
from zoo_recipes import Recipe

RECIPES: dict[str, Recipe] = {**zoo_vision.RECIPES, **zoo_language.RECIPES, **zoo_small.RECIPES}
