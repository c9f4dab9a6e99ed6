"""Placeholders for packages that SGLang imports as it starts and never uses for text on a CPU.

Its load generator has one more, `datasets`, for test sets that it would fetch. They save gigabytes,
and are used only where the real package is not installed. A placeholder lets `import x.y`,
`from x import Name`, `@x.decorator` and `class A(x.Base)` through, and computes nothing. Python
runs this file by its name before anything else.
"""

import importlib.machinery
import sys
import types
from collections.abc import Callable

ABSENT = {"datasets", "torchvision", "torchaudio", "triton"}


class _AnyClass:
    def __init__(self, *_: object, **__: object) -> None:
        pass


class _Anything(types.ModuleType):
    """A module that has every name: classes by their capital, else more of itself."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__: list[str] = []  # a package, so that its submodules are asked for
        self.__version__ = "0.0.0"  # some callers compare versions

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        full_name = f"{self.__name__}.{name}"
        value: object
        if name[:1].isupper() and not name.isupper():
            value = type(name, (_AnyClass,), {"__module__": self.__name__})
        else:
            value = sys.modules.get(full_name) or _Anything(full_name)
        setattr(self, name, value)
        return value

    def __call__(self, *args: object, **kwargs: object) -> object:
        """Be a decorator, plain or with arguments."""
        if len(args) == 1 and not kwargs and callable(args[0]):
            return args[0]
        return _unchanged

    def __bool__(self) -> bool:
        return False


def _unchanged(function: Callable[..., object]) -> Callable[..., object]:
    return function


class _Finder:
    """Finds a placeholder for what nobody else has found."""

    def find_spec(self, name: str, *_: object) -> importlib.machinery.ModuleSpec | None:
        if name.partition(".")[0] not in ABSENT:
            return None
        # Who asks "is it installed?" through importlib.util.find_spec must still hear no.
        if sys._getframe(2).f_code.co_name == "find_spec":
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _Anything(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        if module.__name__ == "triton":  # the two of its functions that are called
            module.cdiv = lambda a, b: -(-a // b)
            module.next_power_of_2 = lambda n: 1 << max(n - 1, 0).bit_length()


sys.meta_path.append(_Finder())  # the last to be asked: a real package wins
