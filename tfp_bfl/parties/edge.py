"""Registration with the core: the command `deploy`."""

from tfp_bfl.parties.deployment.cli import deploy

COMMANDS = (deploy,)
