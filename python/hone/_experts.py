"""The routed experts of one layer on the CPU, for the mixture-of-experts block of another program."""
import ctypes
import json

from hone._library import call_plain, library


class Experts:
    """Experts of hone_experts_create() (hone/hone.h): `experts`, `hidden`, `intermediate`, and `dtype`, `weight_dtype`, `lora_r`,
    `lora_alpha`, `threads`. Arrays are of numpy, or tensors of torch on the CPU, contiguous; bfloat16 needs torch."""

    def __init__(self, experts, hidden, intermediate, *, dtype="bfloat16", **settings):
        self.experts, self.hidden, self.intermediate, self.dtype = experts, hidden, intermediate, dtype
        self._experts = ctypes.c_void_p()
        stated = {"experts": experts, "hidden": hidden, "intermediate": intermediate, "dtype": dtype, **settings}
        call_plain("hone_experts_create", json.dumps(stated).encode(), ctypes.byref(self._experts))
        self._held = []  # what queued passes read and write

    def set(self, expert, gate, up, down):
        """The weights of an expert: gate and up [intermediate, hidden], down [hidden, intermediate]."""
        rows = (self.intermediate, self.hidden)
        call_plain("hone_experts_set", self._experts, ctypes.c_int64(expert), self._pointer(gate, rows), self._pointer(up, rows),
                   self._pointer(down, rows[::-1]))

    def tensor(self, name):
        """A float32 tensor of the adapters, or its gradient, in the object's memory: "gate.lora_a", "gate.lora_a.grad", …, with
        the array interface of numpy. Write to it after sync()."""
        data, shape = ctypes.POINTER(ctypes.c_float)(), (ctypes.c_int64 * 3)()
        call_plain("hone_experts_tensor", self._experts, name.encode(), ctypes.byref(data), shape)
        return _View(self, ctypes.cast(data, ctypes.c_void_p).value, tuple(shape))

    def zero_grad(self):
        call_plain("hone_experts_zero_grad", self._experts)

    def forward(self, x, ids, weights, out, training=False):
        """Queues out [tokens, hidden] for x [tokens, hidden], ids (int64) and weights (float32) [tokens, choices]."""
        tokens, choices = ids.shape
        call_plain("hone_experts_forward", self._experts, ctypes.c_int64(tokens), ctypes.c_int64(choices),
                   self._pointer(x, (tokens, self.hidden)), self._pointer(ids, (tokens, choices), "int64"),
                   self._pointer(weights, (tokens, choices), "float32"), self._pointer(out, (tokens, self.hidden)),
                   ctypes.c_int(bool(training)))
        self._tokens, self._choices = tokens, choices
        self._held += [x, out]

    def backward(self, dout, dx=None, dweights=None):
        """Queues the gradients of the last forward pass in training."""
        rows = (self._tokens, self.hidden)
        call_plain("hone_experts_backward", self._experts, self._pointer(dout, rows),
                   None if dx is None else self._pointer(dx, rows),
                   None if dweights is None else self._pointer(dweights, (self._tokens, self._choices), "float32"))
        self._held += [dout, dx, dweights]

    def sync(self):
        """Waits for what is queued."""
        call_plain("hone_experts_sync", self._experts)
        self._held.clear()

    def close(self):
        if self._experts:
            library().hone_experts_free(self._experts)
            self._experts = ctypes.c_void_p()

    def __del__(self):
        self.close()

    def _pointer(self, array, shape, dtype=None):
        dtype = dtype or self.dtype
        if tuple(array.shape) != tuple(shape) or str(array.dtype).replace("torch.", "") != dtype:
            raise ValueError(f"an array of {tuple(shape)} in {dtype} is asked for, not of {tuple(array.shape)} in {array.dtype}")
        if hasattr(array, "data_ptr"):  # torch
            if array.device.type != "cpu" or not array.is_contiguous():
                raise ValueError("a tensor must be contiguous and on the CPU")
            return ctypes.c_void_p(array.data_ptr())
        interface = array.__array_interface__
        if interface.get("strides") is not None:
            raise ValueError("an array must be contiguous")
        return ctypes.c_void_p(interface["data"][0])


class _View:
    """Memory of an object as an array: numpy.asarray(view), torch.from_numpy(numpy.asarray(view))."""

    def __init__(self, owner, address, shape):
        self._owner = owner
        self.__array_interface__ = {"version": 3, "typestr": "<f4", "shape": shape, "data": (address, False)}
