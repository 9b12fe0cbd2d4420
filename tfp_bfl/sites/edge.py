"""Registration with the core: the command `deploy`."""

from tfp_bfl.sites.deployment.cli import deploy

COMMANDS = (deploy,)
