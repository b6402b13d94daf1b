"""What a recipe says when its input is wrong."""


class RecipeError(ValueError):
    """One sentence: what was given, where (file and field, or parameter), what would be right."""


class NoRoomError(RecipeError):
    """Nothing is wrong of what was given, but a GPU has no room for a cache beside it."""
