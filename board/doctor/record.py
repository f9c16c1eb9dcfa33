"""What the doctor found, as one record of JSON.

SCHEMA changes whenever an entry is renamed, dropped or given another meaning; new entries may join without.
docs/install.md describes them. No text in it names the user, the machine or the home folder.
"""

from __future__ import annotations

from typing import Any

from board.doctor.checks import CHECKS, GOALS, Goal
from board.doctor.examination import Results
from board.report.scrubbing import Scrubber

SCHEMA = 1


def record(results: Results) -> dict[str, Any]:
    """{"schema", "checks": [...], "goals": [...]}; every check and goal of the tables, in their order."""
    checks = [
        {
            "name": check.name,
            "layer": check.layer,
            "status": results[check.name].status.value,
            "found": results[check.name].found,
            "wanted": results[check.name].wanted,
            "fix": results[check.name].fix,
        }
        for check in CHECKS
    ]
    goals = [_goal(goal, results) for goal in GOALS]
    whole = {"schema": SCHEMA, "checks": checks, "goals": goals}
    scrubbed: dict[str, Any] = Scrubber.of_this_machine().record(whole)
    return scrubbed


def _goal(goal: Goal, results: Results) -> dict[str, Any]:
    obstacle = goal.obstacle(results)
    return {"name": goal.name, "works": obstacle is None, "obstacle": obstacle.name if obstacle else None}
