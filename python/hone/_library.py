"""Calls of libhone (hone/hone.h) by ctypes: dictionaries in and out, errors as exceptions, callbacks of Python."""
import ctypes
import json
import os


class HoneError(Exception):
    """What went wrong; `where` (a file and line, a key), `fix` (how to mend it) and the program's exit `code`."""

    def __init__(self, message, where="", fix="", code=2):
        lines = [message]
        if where:
            lines.append(f"  where: {where}")
        if fix:
            lines.append(f"  fix:   {fix}")
        super().__init__("\n".join(lines))
        self.message, self.where, self.fix, self.code = message, where, fix, code


class _Listener(ctypes.Structure):
    ON_LOG = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_char_p)
    ON_METRICS = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)
    ON_TEXT = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int64, ctypes.c_char_p)
    _fields_ = [("user", ctypes.c_void_p), ("on_log", ON_LOG), ("on_metrics", ON_METRICS), ("on_text", ON_TEXT)]


def _load():
    """The library beside this package, of HONE_LIBRARY, or the loader's."""
    beside = os.path.join(os.path.dirname(os.path.abspath(__file__)), "libhone.so.1")
    path = os.environ.get("HONE_LIBRARY") or (beside if os.path.exists(beside) else "libhone.so.1")
    library = ctypes.CDLL(path)
    for name in ("hone_version", "hone_error_message", "hone_error_where", "hone_error_fix"):
        getattr(library, name).restype = ctypes.c_char_p
    for name in ("hone_error_message", "hone_error_where", "hone_error_fix", "hone_error_code", "hone_error_free",
                 "hone_text_free", "hone_model_free", "hone_experts_free"):
        getattr(library, name).argtypes = [ctypes.c_void_p]
    return library


_library = None


def library():
    """libhone, loaded by the first call."""
    global _library
    if _library is None:
        _library = _load()
    return _library


def version():
    """The version of the library."""
    return library().hone_version().decode()


def stop():
    """Asks the running call to stop: training saves first, generation returns what there is. From another thread."""
    library().hone_stop()


class Callbacks:
    """Functions of Python that a call may use. What they raise ends the call, and is raised again after it."""

    def __init__(self, on_log=None, on_row=None, on_text=None):
        self.raised = None
        self.structure = _Listener()
        if on_log:
            self.structure.on_log = _Listener.ON_LOG(lambda _, text: self._guard(on_log, _text(text)))
        if on_row:
            self.structure.on_metrics = _Listener.ON_METRICS(lambda _, row: self._guard(on_row, json.loads(row)))
        if on_text:
            self.structure.on_text = _Listener.ON_TEXT(lambda _, index, text: self._guard(on_text, index, _text(text)))

    def _guard(self, function, *arguments):
        """1, which ends the call, if the function raises or returns False."""
        if self.raised is not None:
            return 1
        try:
            return 1 if function(*arguments) is False else 0
        except BaseException as error:  # also KeyboardInterrupt
            self.raised = error
            library().hone_stop()
            return 1


def _text(data):
    return data.decode("utf-8", "replace")


def take_text(pointer):
    """A text of the library, which is freed."""
    if not pointer:
        return None
    text = _text(ctypes.string_at(pointer))
    library().hone_text_free(pointer)
    return text


def call_plain(function, *arguments):
    """Calls function(…, &error) of the library, and raises its error."""
    error = ctypes.c_void_p()
    code = getattr(library(), function)(*arguments, ctypes.byref(error))
    if code == 0:
        return
    if not error:
        raise HoneError("out of memory", code=code)
    parts = [_text(getattr(library(), f"hone_error_{part}")(error)) for part in ("message", "where", "fix")]
    library().hone_error_free(error)
    raise HoneError(*parts, code)


def call(function, *arguments, callbacks):
    """The same of a function with a listener, which stands where `arguments` have None."""
    listener = ctypes.byref(callbacks.structure)
    try:
        call_plain(function, *[listener if argument is None else argument for argument in arguments])
    except HoneError as failure:
        if callbacks.raised is None:
            raise
        raise callbacks.raised from failure
    if callbacks.raised is not None:
        raise callbacks.raised


def settings(config, keys):
    """JSON of a configuration: a file's path or a dictionary, and keys that replace those of it."""
    merged = dict(config) if isinstance(config, dict) else {} if config is None else {"config": os.fspath(config)}
    merged.update(keys)
    return json.dumps(merged, default=_plain).encode()


def _plain(value):
    """Paths, and numbers and arrays of numpy or torch, as JSON has them."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} is no value of a setting")


def _result(function, config, keys, callbacks):
    result = ctypes.c_void_p()
    call(function, settings(config, keys), None, ctypes.byref(result), callbacks=callbacks)
    return json.loads(take_text(result))


def plan(config=None, *, on_log=None, **keys):
    """The memory that a run needs: what `hone estimate --json` prints, as a dictionary."""
    return _result("hone_plan", config, keys, Callbacks(on_log=on_log))


def train(config=None, *, on_step=None, on_eval=None, on_log=None, **keys):
    """Trains. on_step and on_eval get the rows of metrics.jsonl as dictionaries; returning False from one saves and stops,
    raising does so and raises again. Ctrl-C saves, and then raises KeyboardInterrupt; a second one ends the process. Returns
    {"stopped", "stopped_by", "output_dir", "last"}."""
    def on_row(row):
        function = on_eval if "eval_loss" in row else on_step
        return function(row) if function else None
    result = _result("hone_train", config, keys, Callbacks(on_log=on_log, on_row=on_row))
    if result["stopped_by"] == "SIGINT":
        raise KeyboardInterrupt
    return result


def evaluate(config=None, *, on_log=None, **keys):
    """Loss and accuracy on data: what `hone eval --json` prints, as a dictionary."""
    return _result("hone_evaluate", config, keys, Callbacks(on_log=on_log))


def merge(model, adapter, output, *, on_log=None, **keys):
    """Merges an adapter into its model, in the folder `output`, and checks it."""
    call("hone_merge", settings({"model": model, "adapter": adapter, "output": output}, keys), None,
         callbacks=Callbacks(on_log=on_log))
