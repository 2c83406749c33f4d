"""`fedsift serve`: the live page of runs."""

from __future__ import annotations

from pathlib import Path

import typer

from fedsift.cli.output import print_json, say


def register(app: typer.Typer) -> None:
    app.command("serve")(serve)


def serve(
    runs: Path = typer.Argument(Path("runs"), help="A folder of runs, or one run's folder."),
    port: int = typer.Option(None, "--port", help="0 takes a free one. [default: the first free from 8700 on]"),
    host: str = typer.Option("127.0.0.1", "--host", help="Another address shows nothing to anybody without the token."),
    token: str = typer.Option(None, "--token", help="Your own token; without it one is drawn and printed."),
    show: bool = typer.Option(False, "--open", help="Open the page in the browser."),
    json: bool = typer.Option(False, "--json", help="Print address and token as JSON."),
) -> None:
    """Show runs in the browser while they run: curves, sites, findings; stop and resume. Ctrl-C ends it."""
    from fedsift.core.loopback import is_loopback
    from fedsift.live.server import Address, serve_runs

    def ready(address: Address) -> None:
        if json:
            print_json({"address": address.plain, "url": address.url, "token": address.token})
        else:
            say(f"the page: {address.url}")
            if not is_loopback(host):
                say("the line is not encrypted: across a network, prefer `ssh -L` to this machine")
        if show:
            import webbrowser

            webbrowser.open(address.url)

    serve_runs(runs, host=host, port=port, token=token, ready=ready)
