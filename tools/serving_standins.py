"""Empty modules in the place of packages that only kernels and services of an engine need."""
import importlib.abc
import importlib.machinery
import sys
import types


class Empty(type):
    """A class that has every name."""

    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return cls

    def __or__(cls, other):
        return cls

    __ror__ = __or__


class Nothing(metaclass=Empty):
    def __class_getitem__(cls, item):
        return cls


class StandIn(types.ModuleType):
    __path__ = []
    __version__ = "0"

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Nothing


class StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, packages):
        self.packages = packages

    def find_spec(self, name, path=None, target=None):
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if name.split(".")[0] in self.packages else None

    def create_module(self, spec):
        return StandIn(spec.name)

    def exec_module(self, module):
        pass


def stand_in(*packages):
    """Imports of packages, installed or not, find empty modules from now on."""
    sys.meta_path.insert(0, StandIns(packages))
