#!/usr/bin/env python3
"""Packs a build with HONE_STATIC as a Python wheel, which installs the command `hone` without a compiler:

    tools/wheel.py BUILD_DIR        dist/hone-VERSION-py3-none-manylinux_2_34_x86_64.whl
    tools/wheel.py --check PROGRAM  whether it starts on every machine that the tag promises
    tools/wheel.py --notice         the licences of the linked libraries

The command is a small program that runs libhone, and no Python runs; `import hone` loads libhone, too. cuBLAS and NCCL,
which only GPUs need, are packages of their own: the extras `cuda` and `multi`. Refuses a program that needs a newer C
library than the tag says or any other library, and a wheel of more than 60 MB.
"""
import base64
import hashlib
import pathlib
import re
import subprocess
import sys
import zipfile

GLIBC = (2, 34)
TAG = f"py3-none-manylinux_{GLIBC[0]}_{GLIBC[1]}_x86_64"
MOST_BYTES = 60_000_000
OF_THE_SYSTEM = re.compile(r"(libc|libm|ld-linux-x86-64)\.so")
EXTRAS = {"cuda": ["nvidia-cublas>=13,<14"], "multi": ["nvidia-cublas>=13,<14", "nvidia-nccl-cu13>=2.18"]}
# Packages of the distribution whose code is in the program (cmake/libraries.cmake).
LINKED = ["libfmt-dev", "libyaml-cpp-dev", "nlohmann-json3-dev", "libcli11-dev", "libpcre2-dev", "libutf8proc-dev", "zlib1g-dev",
          "libzstd-dev", "libsnappy-dev", "libbrotli-dev", "liblz4-dev", "libcpp-httplib-dev", "libssl-dev", "gcc-12-base"]


def run(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def check(program):
    """Ends with a message if the program does not start on every machine that the tag promises."""
    others = [name for name in re.findall(r"\(NEEDED\).*\[(.*)\]", run("readelf", "-d", program)) if not OF_THE_SYSTEM.match(name)]
    if others:
        sys.exit(f"{program} is linked with {', '.join(others)}: build with -DHONE_STATIC=ON")
    versions = {tuple(map(int, v)) for v in re.findall(r"Name: GLIBC_(\d+)\.(\d+)", run("readelf", "-V", program))}
    if max(versions) > GLIBC:
        sys.exit(f"{program} needs glibc {'.'.join(map(str, max(versions)))}, newer than the wheel's tag says")


def notice():
    """The licences of the linked libraries, as the distribution's packages state them."""
    text = ("Beside Hone, its library contains those below, and of CUDA's runtime what programs may link statically (End User\n"
            "License Agreement of the CUDA toolkit, attachment A).\n")
    for package in LINKED:
        licence = pathlib.Path(f"/usr/share/doc/{package}/copyright").read_text(encoding="utf-8")
        text += f"\n{100 * '-'}\n{package}\n\n{licence}"
    return text


class Wheel:
    """Writes the files of a wheel and their record: the same wheel from the same files."""

    def __init__(self, path, info):
        self.zip = zipfile.ZipFile(path, "w")
        self.info = info
        self.record = []

    def write(self, name, data, mode=0o644):
        entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
        entry.compress_type = zipfile.ZIP_DEFLATED
        entry.external_attr = (0o100000 | mode) << 16
        self.zip.writestr(entry, data, compresslevel=9)

    def add(self, name, data, mode=0o644):
        self.write(name, data, mode)
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
        self.record.append(f"{name},sha256={digest},{len(data)}")

    def close(self):
        name = f"{self.info}/RECORD"
        self.write(name, "\n".join(self.record + [f"{name},,", ""]))
        self.zip.close()


def metadata(version, readme):
    lines = ["Metadata-Version: 2.1", "Name: hone", f"Version: {version}",
             "Summary: Fine-tunes Mixture-of-Experts language models, natively",
             "License: Apache-2.0", "Requires-Python: >=3.9"]
    lines += [f"Provides-Extra: {extra}" for extra in EXTRAS]
    lines += [f'Requires-Dist: {package} ; extra == "{extra}"' for extra, needs in EXTRAS.items() for package in needs]
    lines += ["Description-Content-Type: text/markdown", "", readme]
    return "\n".join(lines)


def main():
    if sys.argv[1] == "--check":
        check(sys.argv[2])
        return
    if sys.argv[1:] == ["--notice"]:
        print(notice(), end="")
        return
    build, root = pathlib.Path(sys.argv[1]), pathlib.Path(__file__).resolve().parent.parent
    program = root / "dist" / "hone"
    program.parent.mkdir(exist_ok=True)
    run("strip", "-o", str(program), str(build / "hone"))
    check(str(program))
    library = root / "dist" / "libhone.so.1"
    run("strip", "-o", str(library), str(build / "libhone.so.1"))
    check(str(library))
    version = run(str(program), "version").split()[1]
    info = f"hone-{version}.dist-info"
    path = root / "dist" / f"hone-{version}-{TAG}.whl"
    wheel = Wheel(path, info)
    wheel.add(f"hone-{version}.data/scripts/hone", program.read_bytes(), 0o755)
    wheel.add(f"hone/{library.name}", library.read_bytes(), 0o755)
    for file in sorted((root / "python" / "hone").glob("*.py")):
        wheel.add(f"hone/{file.name}", file.read_bytes())
    wheel.add(f"{info}/METADATA", metadata(version, (root / "README.md").read_text(encoding="utf-8")).encode())
    wheel.add(f"{info}/WHEEL", f"Wheel-Version: 1.0\nGenerator: tools/wheel.py\nRoot-Is-Purelib: false\nTag: {TAG}\n".encode())
    for name in ("LICENSE", "NOTICE"):
        wheel.add(f"{info}/{name}", notice().encode() if name == "NOTICE" else (root / name).read_bytes())
    wheel.close()
    program.unlink()
    library.unlink()
    print(f"{path.relative_to(root)}: {path.stat().st_size / 1e6:.1f} MB")
    if path.stat().st_size > MOST_BYTES:
        sys.exit(f"the wheel is larger than {MOST_BYTES / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
