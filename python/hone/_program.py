"""Where the program of this package is."""
import os
import shutil
import sysconfig


def program():
    """The path of the program that was installed with this package."""
    folders = [sysconfig.get_path("scripts"), sysconfig.get_path("scripts", f"{os.name}_user")]
    folders.append(os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "bin"))  # pip install --target
    for folder in folders:
        path = os.path.join(folder, "hone")
        if os.access(path, os.X_OK):
            return path
    path = shutil.which("hone")
    if path is None:
        raise FileNotFoundError("the program hone is not installed in this environment")
    return path
