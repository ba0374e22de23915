"""Start-up for SGLang on a CPU: `make_env.sh` puts it into an environment, a `.pth` file imports it there.

In every process of that environment, so that those which SGLang spawns have it too:

- torchvision from PyPI is built for CUDA, and next to a CPU torch its operators do not load; torchvision
  asks for their schemas while it is imported, so they are declared just before.
- `sgl_kernel` is imported unconditionally and has no wheel for this machine.  Where it is missing, a package
  whose names exist and fail when called stands in for it.

Torch is not imported here: most processes of an environment do not need it.
"""

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

OPERATORS = ("nms", "qnms")
SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
KERNELS = "sgl_kernel"


class OperatorsFirst:
    """Comes first among the finders, finds nothing, and goes when torchvision is asked for."""

    library = None

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name == "torchvision":
            sys.meta_path.remove(cls)
            cls.declare()

    @classmethod
    def declare(cls):
        import torch

        if not torch.cuda.is_available():
            cls.library = torch.library.Library("torchvision", "DEF")  # lives as long as the process
            for operator in OPERATORS:
                cls.library.define(operator + SCHEMA)


class Absent:
    """A name of the missing package, or of what hangs on it."""

    def __init__(self, name):
        self.name = name

    def __getattr__(self, attribute):
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        return Absent(f"{self.name}.{attribute}")

    def __call__(self, *args, **kwargs):
        raise NotImplementedError(f"{self.name} needs the compiled {KERNELS}")


class AbsentModule(ModuleType):
    __path__ = ()

    def __getattr__(self, attribute):
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        return Absent(f"{self.__name__}.{attribute}")


class StandIn:
    """Comes last among the finders: a real package wins."""

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name.partition(".")[0] != KERNELS:
            return None
        return ModuleSpec(name, cls, is_package=True)

    @staticmethod
    def create_module(spec):
        return AbsentModule(spec.name)

    @staticmethod
    def exec_module(module):
        pass


if OperatorsFirst not in sys.meta_path:
    sys.meta_path.insert(0, OperatorsFirst)
    sys.meta_path.append(StandIn)
