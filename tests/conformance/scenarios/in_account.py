"""Scenarios of other modules run as a user of an account, with the same transcripts as without accounts.

Belongs here: the list of modules. Each of their scenarios is registered again, for the pair of servers with accounts.
"""

from __future__ import annotations

from tests.conformance import harness
from tests.conformance.accounts import ACCOUNTS
from tests.conformance.scenarios import account, acks, files, interplay, pull, push
from tests.pairs import FLAGS

_MODULES = (account, acks, files, interplay, pull, push)
_NAMES = {module.__name__.rsplit(".", 1)[-1] for module in _MODULES}

for _scenario in tuple(harness.SCENARIOS):
    if _scenario.id.partition(".")[0] in _NAMES and _scenario.setup == FLAGS:
        harness.SCENARIOS.append(_scenario._replace(id=f"in_account.{_scenario.id}", setup=ACCOUNTS))
