"""Functions in machine code: compiled by numba once, kept in `~/.cache/perfsim`, and loaded by LLVM alone.

Importing numba takes a quarter of a second, importing LLVM and loading a function 0.03 s.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from ctypes import CFUNCTYPE, c_char_p, c_int32
from functools import cache
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from struct import pack
from types import FunctionType
from typing import Any

import numpy as np

from perfsim.base.errors import PerfsimError
from perfsim.base.files import write_file

IS_INSTALLED = find_spec("numba") is not None
"""Whether there is a compiler; where there is none, functions run as they are written."""
FEW = 20_000
"""Entries that Python goes through in less time than importing LLVM takes."""


class Laid:
    """An argument laid out once for many calls: an array, a whole number or a tuple of these."""

    def __init__(self, value: Any) -> None:
        self.value = value
        self.kinds, self.words = _laid(value)


def _laid(value: Any) -> tuple[str, bytes]:
    """The kind of every array and number, and the words of eight bytes that numba makes of them.

    Of an array: two for the owner of its memory, size, bytes of an element, address, shape and strides.
    """
    if isinstance(value, Laid):
        return value.kinds, value.words
    if isinstance(value, tuple):
        kinds, words = zip(*map(_laid, value), strict=True)
        return "".join(kinds), b"".join(words)
    if isinstance(value, np.ndarray):
        flags = value.flags
        order = "C" if flags.c_contiguous else "F" if flags.f_contiguous else "A"
        kind = f"{value.dtype.char}{value.ndim}{order}{'' if flags.writeable else 'r'}"
        address = value.__array_interface__["data"][0]
        shape = (*value.shape, *value.strides)
        return kind, pack(f"{5 + len(shape)}q", 0, 0, value.size, value.itemsize, address, *shape)
    return "i", pack("q", value)


class Compiled:
    """A function that fills arrays, in machine code.

    It takes what `Laid` does, returns nothing, and makes no arrays, so references to them need no count.
    Functions that it calls may return numbers, and need no mark.
    """

    def __init__(self, function: Callable[..., None], few: int = 0) -> None:
        """Until LLVM is there, arrays with no more than `few` entries do not import it."""
        self._function: Any = function
        self._few = few
        self._loaded: dict[str, Callable[[bytes], int]] = {}

    def __call__(self, *arguments: Any) -> None:
        kinds, words = _laid(arguments)
        values = [part.value if isinstance(part, Laid) else part for part in arguments]
        is_short = False
        if self._few and not _machine.cache_info().currsize:
            is_short = sum(value.size for value in values if isinstance(value, np.ndarray)) <= self._few
        if is_short or not IS_INSTALLED or os.environ.get("NUMBA_DISABLE_JIT"):
            self._function(*values)
            return
        if kinds not in self._loaded:
            self._loaded[kinds] = self._load(kinds, len(words) // 8, values)
        if self._loaded[kinds](words):
            raise ArithmeticError(f"an error in the machine code of {self._function.__name__}")

    def _load(self, kinds: str, num_words: int, values: list[Any]) -> Callable[[bytes], int]:
        """The code for arguments of these kinds, from disk; else it is compiled, and kept there."""
        import llvmlite
        import llvmlite.binding as llvm

        own = Path(__file__).read_text("utf-8")
        made_of = (own, _source(self._function), kinds, llvmlite.__version__, llvm.get_host_cpu_name())
        name = f"{self._function.__name__}-{sha256(repr(made_of).encode()).hexdigest()[:32]}"
        of_user = os.path.expanduser("~/.cache")  # noqa: PTH111 (`Path` refuses a user without a home)
        file = Path(os.environ.get("XDG_CACHE_HOME") or of_user, "perfsim", name)
        try:
            code = file.read_bytes()
        except OSError:
            code = self._compile(name, num_words, values)
            with suppress(OSError):
                write_file(file, code)
        _, engine = _machine()
        engine.add_object_file(llvm.ObjectFileRef.from_data(code))
        engine.finalize_object()
        return CFUNCTYPE(c_int32, c_char_p)(engine.get_function_address(name))

    def _compile(self, name: str, num_words: int, values: list[Any]) -> bytes:
        """An object file with a function of this name, which reads the words and calls what numba makes."""
        import llvmlite.binding as llvm
        from llvmlite import ir
        from numba import typeof

        kinds = tuple(map(typeof, values))
        dispatcher = _jitted(self._function, no_cpython_wrapper=True, no_cfunc_wrapper=True)
        dispatcher.compile(kinds)
        made = dispatcher.overloads[kinds].fndesc.llvm_func_name
        status = ir.IntType(32)
        word = ir.IntType(64)
        calling = ir.Module()
        reader = ir.Function(calling, ir.FunctionType(status, [word.as_pointer()]), name)
        called = ir.Function(calling, ir.FunctionType(status, [word] * (2 + num_words)), made)
        body = ir.IRBuilder(reader.append_basic_block())
        # First where a result would go, and where an error would.
        words = [body.ptrtoint(body.alloca(word), word) for _ in range(2)]
        words += [body.load(body.gep(reader.args[0], [word(number)])) for number in range(num_words)]
        body.ret(body.call(called, words))
        module = llvm.parse_assembly(dispatcher.inspect_llvm(kinds))
        if len(list(module.get_function(made).arguments)) != 2 + num_words:
            known = "numba passes arrays in a way that perfsim does not know"
            raise PerfsimError(f"{known}: install another version of it, or set NUMBA_DISABLE_JIT=1")
        module.link_in(llvm.parse_assembly(str(calling)))
        return bytes(_machine()[0].emit_object(module))


def _read(function: Any, made: Callable[[Any], Any]) -> dict[str, Any]:
    """What a function reads of its module, by name, with something `made` of functions."""
    scope = function.__globals__
    read = {name: scope[name] for name in sorted(function.__code__.co_names) if name in scope}
    return {name: made(one) if isinstance(one, FunctionType) else one for name, one in read.items()}


def _source(function: Any) -> str:
    """All that decides on the code of a function, with those that it calls."""
    code = function.__code__
    parts = code.co_code, code.co_consts, code.co_varnames, code.co_names
    return repr((parts, _read(function, _source)))


def _jitted(function: Any, **options: Any) -> Any:
    """The function as numba compiles it, with those that it calls."""
    from numba import njit

    options["_nrt"] = False
    scope = {"__name__": function.__module__, **_read(function, _jitted)}
    return njit(**options)(FunctionType(function.__code__, scope, function.__name__))


@cache
def _machine() -> tuple[Any, Any]:
    """What makes code for this processor, and what loads it."""
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    target = llvm.Target.from_triple(llvm.get_process_triple())
    machine = target.create_target_machine(
        cpu=llvm.get_host_cpu_name(),
        features=llvm.get_host_cpu_features().flatten(),
        opt=3,
        reloc="static" if target.name.startswith("x86") else "default",
        codemodel="jitdefault",
        jit=True,
    )
    return machine, llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
