"""What a recipe says when its input is wrong."""


class RecipeError(ValueError):
    """One sentence: what was given, where (file and field, or parameter), what would be right."""
