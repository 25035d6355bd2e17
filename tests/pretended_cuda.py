"""A pretended CUDA device, so that what runs on a GPU is tested on machines without one.

Its tensors say that they lie on "cuda:0", but their memory is the CPU's, and operations run there
after the checks of CUDA: tensors of two devices, a generator of the CPU and ``.numpy()`` raise.
Kernels, copies and waits of the host are counted. Streams, memory, TF32 and rounding are not
pretended. Import this module before the first backward pass, which starts the devices' threads.
"""

import ctypes
import sys
import warnings
from collections import Counter
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from unittest.mock import patch

import torch
from torch import Tensor
from torch.storage import _StorageBase
from torch.utils._pytree import tree_leaves, tree_map

UNAVAILABLE = ""  # or why no device can be pretended here
if torch.version.cuda or torch.version.hip or not torch.__version__.startswith("2.13."):
    UNAVAILABLE = "a GPU is pretended by internals of the CPU builds of torch 2.13"

CPU, CUDA = 1, 2  # numbers of the devices in DLPack
_TAKES_NUMBER_OF_CPU = {"_index_put_impl_", "fill_", "masked_fill", "masked_fill_"}
_ANSWERS = {  # of functions of torch.cuda
    **dict.fromkeys(("is_available", "is_initialized", "is_bf16_supported"), True),
    **dict.fromkeys(("current_device", "_exchange_device", "_maybe_exchange_device"), 0),
    **dict.fromkeys(("_lazy_init", "set_device", "empty_cache", "manual_seed", "synchronize")),
    **{"device_count": 1, "manual_seed_all": None, "get_device_capability": (9, 0)},
    **{"mem_get_info": (2**36, 2**36), "get_device_name": "pretended"},
}
_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
_yes = ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_void_p)(lambda hooks: True)
if not UNAVAILABLE:
    # Autograd asks the guard of a device for its stream. Python can set only that of device 20.
    _type = {"type_": lambda self: torch._C._autograd.DeviceType.CUDA}
    _guard = type("_Guard", (torch._C._acc.DeviceGuard,), _type)()
    _core = ctypes.CDLL("libc10.so")
    _guards = (ctypes.c_void_p * 21).in_dll(_core, "_ZN3c104impl26device_guard_impl_registryE")
    torch._C._acc.register_python_privateuseone_device_guard(_guard)
    _guards[1], _guards[20] = _guards[20], None


class Record(Counter):
    """Numbers of events ("kernel", "to device", "to host", "wait"), by operation and code line."""

    def add(self, kind, name):
        frame = sys._getframe()
        while frame and frame.f_globals.get("__name__", "").split(".")[0] != "isoadapt":
            frame = frame.f_back
        line = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}" if frame else "elsewhere"
        self[kind, name, line] += 1

    def __sub__(self, earlier):
        return Record(super().__sub__(earlier))

    def of(self, *kinds):
        return sum(number for key, number in self.items() if key[0] in kinds)


def _placed(device, tensor):
    """Return a tensor over the same memory that is said to lie on another device."""
    capsule = torch._C._to_dlpack(tensor.detach())
    ctypes.c_int32.from_address(_pointer(capsule, b"dltensor") + 8).value = device
    return torch._C._from_dlpack(capsule)


def _check(op, name, args):
    """Raise as CUDA does for tensors of the CPU, which may be indices or a single number."""
    indexed = "index" in name and isinstance(args[1], list | tuple) and args[0].is_cuda
    leaves = tree_leaves([args[0], args[2:]] if indexed else args)
    host = [each for each in leaves if isinstance(each, Tensor) and not each.is_cuda]
    written = any(each is args[0] and op._schema.arguments[0].alias_info for each in host)
    pointwise = torch.Tag.pointwise in op.tags or name in _TAKES_NUMBER_OF_CPU
    if written or len(host) > (3 if name == "where" else pointwise) or any(x.ndim for x in host):
        raise RuntimeError(f"tensors are on two devices, cuda:0 and cpu, in {op}")
    if any(isinstance(each, torch.Generator) and each.device.type == "cpu" for each in leaves):
        raise RuntimeError(f"the generator is on the CPU in {op}")


def _waits(op, name, args):
    """Whether the host waits for a number, or for a size that depends on values."""
    if "index" not in name:
        return {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape} & set(op.tags)
    masked = any(getattr(each, "dtype", None) == torch.bool for each in tree_leaves(args[1]))
    return masked and not (len(args) > 2 and isinstance(args[2], Tensor) and args[2].numel() == 1)


def _run(record: Record, op, *args, **kwargs):
    """Run an operation of the pretended device on the CPU."""
    name, returns = op._schema.name.split("::")[1], op._schema.returns
    changes = returns and returns[0].alias_info
    outs = {each.name: kwargs[each.name] for each in op._schema.arguments if each.is_out}
    if name == "set_" or (changes and not changes.is_write):  # a view, which shares the storage
        return op.redispatch(torch._C.DispatchKeySet(torch._C.DispatchKey.CPU), *args, **kwargs)
    if name == "resize_":
        new = torch.empty(args[1], dtype=args[0].dtype, device="cuda")
        return args[0].set_(new.untyped_storage(), 0, new.shape, new.stride())
    if name == "_fused_sdp_choice":
        return 0  # attention by single operations
    if name == "copy_":
        kinds = ("to device", "kernel") if args[0].is_cuda else ("", "to host")
        record.add(kinds[args[1].is_cuda], "non_blocking" if args[2:] == (True,) else name)
    else:
        _check(op, name, [*args, *kwargs.values()])
        if _waits(op, name, list(args)):
            record.add("wait", name)
        if not name.startswith(("empty", "_local_scalar")):
            record.add("kernel", name)
    lowered = {}

    def lower(value):
        if isinstance(value, Tensor) and value.is_cuda:
            return lowered.setdefault(id(value), _placed(CPU, value))
        return torch.device("cpu") if isinstance(value, torch.device) else value

    fresh = {key: torch.empty(0, dtype=out.dtype) for key, out in outs.items()}
    # Numbers may stand for tensors; then the overload for numbers is called.
    pairs = zip(op._schema.arguments, args, strict=False)
    numbers = any(isinstance(arg, int | float) and "Tensor" in str(s.type) for s, arg in pairs)
    called = op.overloadpacket if numbers else op
    found = called(*tree_map(lower, args), **tree_map(lower, kwargs | fresh))
    for key, out in outs.items():
        if out.shape != fresh[key].shape:
            out.resize_(fresh[key].shape)
        _placed(CPU, out).copy_(fresh[key])
    if changes:
        return (*outs.values(),) if len(returns) > 1 else next(iter(outs.values()), args[0])
    return tree_map(lambda each: _placed(CUDA, each) if isinstance(each, Tensor) else each, found)


def _copied(storage, device="cuda", **_):
    """Copy a storage to a device; torch cannot construct one on the pretended device."""
    flat = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
    return flat.to(device, copy=True).untyped_storage()


@contextmanager
def pretended_cuda():
    """Pretend that torch finds one GPU; its tensors cannot be used after the context."""
    record, library = Record(), torch.library.Library("aten", "IMPL")
    # Autograd asks the hooks of CUDA, by three virtual methods, whether torch is built with it.
    hooks = ctypes.CDLL("libtorch_cpu.so")["_ZN2at6detail12getCUDAHooksEv"]
    hooks.restype = ctypes.c_void_p
    table = ctypes.c_void_p.from_address(hooks())
    original, changed = table.value, (ctypes.c_void_p * 100)()
    ctypes.memmove(changed, original - 16, 800)
    changed[4:7] = [ctypes.cast(_yes, ctypes.c_void_p).value] * 3
    table.value = ctypes.addressof(changed) + 16
    with warnings.catch_warnings(action="ignore"):  # some operations have a general kernel
        for full in torch._C._dispatch_get_all_op_names():
            own = torch._C._dispatch_has_kernel_for_dispatch_key(full, "CPU")
            own |= full.startswith(("aten::copy_", "aten::_foreach_")) and "out" not in full
            if full.startswith("aten::") and own:
                name, _, overload = full[6:].partition(".")
                op = getattr(getattr(torch.ops.aten, name), overload or "default")
                library.impl(op, partial(_run, record, op), "CUDA")
    clone = _StorageBase.clone
    replaced = [
        *((torch.cuda, name, lambda *_, a=answer, **__: a) for name, answer in _ANSWERS.items()),
        (torch.cuda, "get_rng_state", lambda *_: torch.get_rng_state()),
        (torch.cuda, "set_rng_state", lambda state, *_: torch.set_rng_state(state)),
        (_StorageBase, "to", _copied),
        (_StorageBase, "clone", lambda own: (_copied if own.is_cuda else clone)(own)),
        (Tensor, "pin_memory", lambda self, *_: self.clone()),
    ]
    with ExitStack() as stack:
        for change in replaced:
            stack.enter_context(patch.object(*change))
        try:
            yield record
        finally:
            table.value = original
            library._destroy()
