"""A stand-in for Ray: tasks at once, in this process, and what is lost of them."""

import sys
import types

import numpy as np

from tfp_bfl.engines.ray.runtime import RayRuntime


class Exceptions:
    class RayError(Exception):
        pass

    class RayTaskError(RayError):
        def __init__(self, cause):
            super().__init__(str(cause))
            self.cause = cause


NEVER = object()


class Ref:
    def __init__(self, result):
        self.result = result


class Ray:
    """Tasks at once, in this process; a task that raises tells when its result is asked for."""

    exceptions = Exceptions

    def __init__(self):
        self.machines = [{"NodeID": "a", "Alive": True, "Resources": {"CPU": 2.0}, "NodeManagerAddress": "10.0.0.7"}]
        self.answers, self.calls, self.lost = True, 0, {}

    def put(self, value):
        return value

    def remote(self, function):
        def call(*given):
            self.calls += 1
            if self.calls in self.lost:
                return Ref(self.lost[self.calls])
            try:
                return Ref(function(*given))
            except Exception as error:
                return Ref(Exceptions.RayTaskError(error))

        return types.SimpleNamespace(options=lambda **options: types.SimpleNamespace(remote=call))

    def wait(self, refs, **options):
        ready = refs if self.answers else []
        return [ref for ref in ready if ref.result is not NEVER], []

    def get(self, ref):
        if isinstance(ref, np.ndarray):
            return ref
        if isinstance(ref.result, Exception):
            raise ref.result
        return ref.result

    def nodes(self):
        return self.machines


def stand_in(monkeypatch, num_workers=2):
    """The runtime of a cluster with one machine, for whoever imports ray."""
    strategies = types.SimpleNamespace(NodeAffinitySchedulingStrategy=lambda **given: given)
    ray = Ray()
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setitem(sys.modules, "ray.util.scheduling_strategies", strategies)
    return RayRuntime(ray, num_workers, 1, 0.0)
