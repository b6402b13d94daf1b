"""From a model and a GPU to a pool: layers → group → pack → bind.

``read_model`` reads a configuration, ``plan_memory`` makes the pool of it. Nothing is guessed: what is not
known is refused, and every figure says whether it is exact, estimated or given.
"""

from kvplan.recipes.budget import Basis, BudgetLine
from kvplan.recipes.cache_fields import CacheField
from kvplan.recipes.config_file import bundled_models
from kvplan.recipes.errors import RecipeError
from kvplan.recipes.gpus import Gpu, find_gpu, known_gpus
from kvplan.recipes.groups import LayerGroup
from kvplan.recipes.memory_plan import Demand, GroupPlan, MemoryPlan, StagePlan
from kvplan.recipes.mixers import Attention, Latent, Mixer, Recurrent
from kvplan.recipes.model import Layer, Model
from kvplan.recipes.packing import Packing
from kvplan.recipes.plan import plan_memory
from kvplan.recipes.ranks import Ranks
from kvplan.recipes.reading import read_model

__all__ = [
    "Attention",
    "Basis",
    "BudgetLine",
    "CacheField",
    "Demand",
    "Gpu",
    "GroupPlan",
    "Latent",
    "Layer",
    "LayerGroup",
    "MemoryPlan",
    "Mixer",
    "Model",
    "Packing",
    "Ranks",
    "RecipeError",
    "Recurrent",
    "StagePlan",
    "bundled_models",
    "find_gpu",
    "known_gpus",
    "plan_memory",
    "read_model",
]
