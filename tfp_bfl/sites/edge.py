"""Registration with the core: the command `deploy`."""

from tfp_bfl.sites.deployment.commands import deploy

COMMANDS = (deploy,)
