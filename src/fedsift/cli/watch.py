"""`fedsift watch` and `fedsift serve`: a run while it runs, in the terminal or in the browser."""

from __future__ import annotations

from pathlib import Path

import typer

from fedsift.cli.output import print_json, say, stdout


def register(app: typer.Typer) -> None:
    app.command("watch")(watch)
    app.command("serve")(serve)


def watch(
    run: Path = typer.Argument(help="The run's folder, also one on another machine's shared disk."),
    once: bool = typer.Option(False, "--once", help="Show how it stands now, and stop."),
    json: bool = typer.Option(False, "--json", help="Print how it stands now as JSON, and stop."),
) -> None:
    """Follow a run in the terminal: stages, sites, scores, findings, time left. Ctrl-C stops looking, not the run."""
    from fedsift.report.watching import RunScreen, follow

    view = RunScreen(run)
    if json:
        state = {"run": view.folder.path, "state": view.state.word, "why": view.state.why}
        print_json({**state, **view.story.snapshot(view.at)})
    elif once:
        for line in view.lines(stdout.width, max(stdout.height, 20)):
            stdout.print(line)
    else:
        follow(view, stdout)


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
