"""The deployment file (TOML) and the flags that override it.

Imports nothing heavy before a file is loaded: the command line's help is made from these tables.
"""

from kvplan.deployment.deployment import Deployment, load_deployment
from kvplan.deployment.errors import DeploymentError

__all__ = ["Deployment", "DeploymentError", "load_deployment"]
