"""`--version`, alike for each command of this distribution; what was installed says it, so that no number stands twice."""

from typing import Annotated, TypeAlias

import typer

DISTRIBUTION = "batcher"


def _show(context: typer.Context, is_wanted: bool) -> None:
    if is_wanted:
        from importlib.metadata import version

        typer.echo(f"{context.find_root().info_name} {version(DISTRIBUTION)}")
        raise typer.Exit


Version: TypeAlias = Annotated[bool, typer.Option("--version", callback=_show, is_eager=True, help="Say which it is, and end.")]
