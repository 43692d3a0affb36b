"""What a person does who looks at a project and says yes."""

from multitap.config.projects import StartGrant, TrustDecision, TrustNothing, TrustState
from multitap.trust.project_review import review
from multitap.trust.projects import Projects


def trust(folder, *granted):
    """Trust everything in a folder as it is now."""
    projects = Projects()
    for project in review(folder, projects)[0]:
        projects.trust(project.root, [one.part for one in project.parts], granted)


class Gullible(TrustNothing):
    """Trusts everything, for tests of what a project may say once it is trusted."""

    def decide(self, proposal, /):
        return TrustDecision(
            dict.fromkeys(proposal.servers, TrustState.TRUSTED),
            TrustState.TRUSTED,
            dict.fromkeys(proposal.find_skills(), TrustState.TRUSTED),
        )

    def check_start(self, root, folder, name, config):
        return StartGrant()

    def accepts_skill(self, root, skill):
        return True
