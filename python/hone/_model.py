"""A model in memory that answers."""
import ctypes
import json

from hone._library import Callbacks, call, library, settings, take_text


class Model:
    """A model, with or without an adapter: options of `hone generate` (device, dtype, experts_device, …), and
    `max_length`, the tokens of the longest prompt and answer, and `max_sequences`, how many are answered at once."""

    def __init__(self, model, *, on_log=None, **options):
        self._model = ctypes.c_void_p()
        call("hone_model_open", settings({"model": model}, options), None, ctypes.byref(self._model),
             callbacks=Callbacks(on_log=on_log))

    def generate(self, prompts, *, on_text=None, **options):
        """Answers a prompt or a list of prompts, and returns {"text", "finish_reason", "prompt_tokens",
        "generated_tokens"} of each. A prompt is a text (a message of the user; with raw=True the beginning of a text), a
        list of messages, or a row with messages and tools. Options: max_new_tokens, temperature, top_k, top_p, seed, ….
        on_text(text) of one prompt, on_text(index, text) of a list, gets what is new; returning False ends."""
        many = isinstance(prompts, (list, tuple)) and not all(isinstance(p, dict) and "role" in p for p in prompts)
        if on_text and not many:
            function = on_text
            on_text = lambda _, text: function(text)
        if not self._model:
            raise ValueError("the model is closed")
        result = ctypes.c_void_p()
        call("hone_model_generate", self._model, settings({"prompts": list(prompts) if many else [prompts]}, options), None,
             ctypes.byref(result), callbacks=Callbacks(on_text=on_text))
        answers = json.loads(take_text(result))["answers"]
        return answers if many else answers[0]

    def close(self):
        """Frees the model's memory."""
        if self._model:
            library().hone_model_free(self._model)
            self._model = ctypes.c_void_p()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __del__(self):
        self.close()
