"""Hone fine-tunes Mixture-of-Experts language models. Its program and its library, in a Python environment:

    import hone
    hone.train("run.yaml", learning_rate=1e-4, on_step=lambda row: print(row["loss"]))
    hone.plan(model_name_or_path="./model", finetuning_type="lora", max_length=4096)["verdict"]
    model = hone.Model("./model", adapter="out/run1")
    print(model.generate("What is a mixture of experts?")["text"])

    subprocess.run([hone.program(), "train", "run.yaml"], check=True)

Settings are the keys of a configuration or the options of a verb, with underscores. Several ranks are processes: start
Python by `torchrun` or `srun`, or the program by `hone launch`.
"""
from hone._experts import Experts
from hone._library import HoneError, evaluate, merge, plan, stop, train, version
from hone._model import Model
from hone._program import program

__all__ = ["Experts", "HoneError", "Model", "evaluate", "merge", "plan", "program", "stop", "train", "version"]
