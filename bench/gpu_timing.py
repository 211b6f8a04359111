# SPDX-License-Identifier: MIT
"""Times of contenders that take turns: bursts of calls long enough for the clock to settle, in an order that is drawn anew in
each round. On a stream that is no default one, calls shorter than GRAPH_BELOW_MS run from a CUDA graph, so that no host is
measured; where one contender's are, all run from graphs, or a peer whose host is slow would be measured by that."""
import statistics

import torch

GRAPH_BELOW_MS, GRAPH_MS, GRAPH_CALLS = 0.5, 3.0, 200


def event():
    return torch.cuda.Event(enable_timing=True)


def time_of(issue, count):
    """Milliseconds of `count` issues; the first one and a pause are ahead of them, so that the host is, too."""
    begin, end = event(), event()
    torch.cuda._sleep(400_000)
    issue()
    begin.record()
    for _ in range(count):
        issue()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end)


def captured(function, calls):
    """A graph of so many calls, or None where the function cannot be captured. The current stream is no default one."""
    graph = torch.cuda.CUDAGraph()
    try:
        graph.capture_begin()
        try:
            for _ in range(calls):
                function()
        finally:
            graph.capture_end()
        graph.replay()
        torch.cuda.synchronize()
    except RuntimeError:
        return None
    return graph


def once_of(function):
    function()
    return time_of(function, 3) / 3


class Runner:
    """A function ready to be timed: `issue` does `calls` of it. `once`: milliseconds of one call, the host's time in it."""

    def __init__(self, function, once, wants_graph):
        self.issue, self.calls, self.graph = function, 1, None
        if wants_graph:
            calls = max(1, min(GRAPH_CALLS, round(GRAPH_MS / once)))
            self.graph = captured(function, calls)
        if self.graph:
            self.issue, self.calls = self.graph.replay, calls
            once = time_of(self.issue, 2) / 2 / calls
        self.once = once

    def burst(self, milliseconds):
        """Milliseconds of one call."""
        count = max(2, round(milliseconds / (self.once * self.calls)))
        return time_of(self.issue, count) / (count * self.calls)


def measure(functions, rounds, burst_ms, chance):
    """{name: Times} of functions by name, the burst of each of them once a round."""
    once = {name: once_of(function) for name, function in functions.items()}
    short = min(once.values()) < GRAPH_BELOW_MS and torch.cuda.current_stream() != torch.cuda.default_stream()
    runners = {name: Runner(function, once[name], short) for name, function in functions.items()}
    times = {name: [] for name in functions}
    for _ in range(rounds):
        for name in chance.sample(list(functions), len(functions)):
            times[name].append(runners[name].burst(burst_ms))
    return {name: Times(values, runners[name].graph is not None) for name, values in times.items()}


class Times:
    """A time for each round."""

    def __init__(self, rounds, in_graph):
        self.rounds, self.in_graph = rounds, in_graph
        self.median = statistics.median(rounds)
        self.spread = max(rounds) - min(rounds)

    def over(self, other):
        """The median of the rounds' ratios: both stood under the same heat."""
        return statistics.median(mine / theirs for mine, theirs in zip(self.rounds, other.rounds))
