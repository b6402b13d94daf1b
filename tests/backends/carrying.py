"""The recordings' driver with a backend behind the scheduler."""

from typing import Any

from kvplan.backends.backend import Backend
from kvplan.backends.carried import CarriedScheduler
from tests.support.drive import Run
from tests.support.scenario import Scenario, prompt_tokens, sampled_token


class Script:
    """What a scenario's requests turn out to be."""

    def __init__(self, scenario: Scenario, prompts: dict[str, list[int]]) -> None:
        self._prompts = prompts
        self._requests = {request["id"]: (at, request) for at, request in enumerate(scenario["requests"])}
        self._pattern = scenario.get("accept", [1])

    def tokens(self, request_id: str) -> list[int]:
        at, request = self._requests[request_id]
        output = [sampled_token(at, index) for index in range(request["output"])]
        return self._prompts[request_id] + output

    def accepted(self, request_id: str, step: int) -> int:
        at, _ = self._requests[request_id]
        count: int = self._pattern[(step + at) % len(self._pattern)]
        return count


class CarriedRun(Run):
    """A scenario whose plans are carried out. Copies beside the forward happen as late as they may."""

    carried = CarriedScheduler

    def __init__(self, scenario: Scenario, *, copy_delay: int | None = None, **settings: Any) -> None:
        super().__init__({**scenario, "storage": []}, check=False, **settings)
        self.backend = Backend(
            self.config,
            Script(scenario, self.prompts),
            copy_delay=copy_delay,
            failing_loads=self.failing_loads,
        )
        self.scheduler = self.carried(self.config, self.backend)
        for prompt in scenario.get("storage", []):
            hashes = self.scheduler.prefix_hashes_for_tokens(prompt_tokens(prompt))
            self.scheduler.register_storage_keys(*self.scheduler.expand_prefix_keys(hashes))


def carry_out(scenario: Scenario, **options: Any) -> CarriedRun:
    """Play a scenario to its end. Raises ``Violation``."""
    run = CarriedRun(scenario, **options)
    for _ in run.rounds():
        pass
    return run
