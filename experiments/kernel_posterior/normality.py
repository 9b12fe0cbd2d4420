"""A test of normality of the clients' weights: `python -m experiments.kernel_posterior.normality --size small`.

What is looked at are the stacks of `client_stacks`; those that are there are not made again.
"""

from __future__ import annotations

import pathlib

import click

from experiments.kernel_posterior.client_stacks import collect
from experiments.kernel_posterior.config import NORMALITY
from experiments.kernel_posterior.normality_figures import write_figures
from experiments.kernel_posterior.normality_tables import write_tables
from tfp_bfl import errors


@click.command()
@click.option("--size", type=click.Choice(list(NORMALITY)), default="small", show_default=True)
@click.option("--seed", "seeds", type=int, multiple=True, help="Seed to run; default: all.")
@click.option(
    "--output",
    type=click.Path(path_type=pathlib.Path),
    default=pathlib.Path("runs/kernel_posterior/normality"),
    show_default=True,
)
def main(size: str, seeds: tuple[int, ...], output: pathlib.Path) -> None:
    """Train the clients that are missing, and write tables and figures."""
    output, seeds = output / size, seeds or tuple(NORMALITY[size]["seeds"])
    try:
        collect(size, output, seeds)
    except errors.InvalidArgument as error:
        raise click.UsageError(str(error)) from None
    write_tables(size, output, seeds)
    write_figures(size, output, seeds)


if __name__ == "__main__":
    main()
