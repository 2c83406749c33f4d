"""A federation whose sites answer as deployed ones do: from a site.toml, by the code of a site's own process.

Every envelope is a message to `deploy.site.worker`, so that the site's policy does to a reply whatever it does to one
across a network: its floor, clipping, noise, account and refusals. What comes back is kept, for the attacks to read.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w

from fedsift.core.errors import DataError
from fedsift.core.files import private_folder, write_private
from fedsift.data.dataset import FederatedDataset
from fedsift.deploy.site import worker
from fedsift.deploy.site.consent import APPROVED, approve
from fedsift.deploy.site.site_file import notebook_of, read_site_file
from fedsift.deploy.trial_data import export_trial
from fedsift.protocol.messages import Reply, ReplyEnvelope, Request, RequestEnvelope, RequestMoment, SiteFacts
from fedsift.runtime.federation import EngineFederation
from fedsift.runtime.in_process import InProcess
from fedsift.transports.remote.encoding import decode, encode
from fedsift.transports.remote.introduction import Introduction, IntroductionRequest

Policies = Mapping[str, Any]
"""The keys of a `[policy]` table; an empty one is no table at all."""


@dataclass(frozen=True)
class Left:
    """A reply as it left a site, with the request that it answers."""

    site: str
    moment: RequestMoment
    request: Request[Any]
    reply: Reply


def site_files(federated: FederatedDataset, folder: Path, policy: Policies) -> dict[str, Path]:
    """A folder for each site, as a trial deployment has them; with a policy, one that the operator approved."""
    files = dict(zip(federated.sites, export_trial(federated, {}, folder), strict=True))
    approved: bytes | None = None
    for path in files.values() if policy else ():
        table = tomllib.loads(path.read_text("utf-8"))
        path.write_text(tomli_w.dumps({**table, "policy": dict(policy)}), "utf-8")
        notebook = notebook_of(path, read_site_file(path))
        if approved is None:
            approve(notebook)
            approved = (notebook / APPROVED).read_bytes()
        else:  # the same list, which takes longer to make than a round
            private_folder(notebook)
            write_private(notebook / APPROVED, approved)
    return files


def told(path: Path, asked: Any, model: str) -> Any:
    """What the site's own process hands out."""
    return decode(worker._reply(encode(asked).with_note(model=model, session="1"), path))


def introduced(files: Mapping[str, Path], model: str) -> dict[str, SiteFacts]:
    """What each site declares on joining."""
    found = {}
    for site, path in files.items():
        answer = told(path, IntroductionRequest(), model)
        if not isinstance(answer, Introduction):
            raise DataError(f"site '{site}' does not join ({answer.failure}): give it more samples or a lower floor")
        found[site] = answer.facts
    return found


class Deployed(InProcess):
    """Asks the sites' own code. `files` and `left` are set before the first round."""

    files: Mapping[str, Path]
    left: list[Left]
    failures: list[str]
    """Why there was no reply, each time."""

    def deliver(self, envelopes: Mapping[str, RequestEnvelope], deadline: float) -> Mapping[str, ReplyEnvelope]:
        answers = {}
        for site, envelope in envelopes.items():
            answer = told(self.files[site], envelope, self.facts[site].model or self.model)
            if answer.reply is None:
                self.failures.append(answer.failure)
            else:
                pairs = parts_of(envelope.request, answer.reply)
                self.left += [Left(site, envelope.moment, *pair) for pair in pairs]
            answers[site] = answer
        return answers

    def accept_notebook(self, envelope: RequestEnvelope) -> None:
        EngineFederation.accept_notebook(self, envelope)  # the notebook is the site's, which has kept it


def parts_of(request: Request[Any], reply: Reply) -> Iterator[tuple[Request[Any], Reply]]:
    """A reply and those to what rode on its request, each with what it answers."""
    yield request, reply
    inner: Sequence[Reply] = getattr(reply, "then", ())
    for asked, own in zip(request.besides, inner, strict=True):
        yield from parts_of(asked, own)
