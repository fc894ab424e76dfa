"""Annealing in stages: MaxK's k halves, and each k has a compiled program of its own.

A stage's kernels move rows of its k entries, so that later stages are faster; parameters, random
streams and the optimizer's state do not depend on k and carry over. The stage follows from the
number of epochs done: a run that is continued goes on in the same one.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from jaxgnn.train.loop.epochs import Compiled
from jaxgnn.train.settings.config import TrainConfig
from jaxgnn.train.steps.build_program import build
from jaxgnn.train.steps.step import Program, TrainState
from jaxgnn.train.steps.task import Task


def stage_widths(wide: int, narrow: int) -> list[int]:
    """The entries that each stage keeps: `wide`, half of it and so on, at last `narrow`."""
    widths = []
    while wide > narrow:
        widths.append(wide)
        wide //= 2
    return [*widths, narrow]


class StagedCompiled(Compiled):
    """A `Compiled` for each stage; itself that of the last one.

    The stages before share the first `epochs` epochs equally.
    """

    def __init__(self, config: TrainConfig, program: Program, state: TrainState, task: Task):
        super().__init__(program, state, task)
        self._epochs = config.anneal_epochs
        self._before: list[Compiled] = []
        for k in stage_widths(config.anneal_from, config.k)[:-1]:
            stage = dataclasses.replace(config, k=k, anneal_from=0, anneal_stages=False)
            self._before.append(Compiled(build(stage, task)[0], state, task))
        self.seconds += sum(stage.seconds for stage in self._before)

    def at(self, epoch: int) -> Compiled:
        if epoch >= self._epochs or not self._before:
            return self
        return self._before[epoch * len(self._before) // self._epochs]


def compile_program(
    config: TrainConfig, program: Program, state: TrainState, task: Any
) -> Compiled:
    """The step and the evaluation of a configuration, of each of its stages."""
    if config.anneal_stages:
        return StagedCompiled(config, program, state, task)
    return Compiled(program, state, task)
