"""Compiles one CUDA C++ file to PTX on standard output: nvrtc.py FILE ARCH.

Calls libnvrtc through ctypes; LD_LIBRARY_PATH must lead to it and to its
builtins. The text is named after the file alone, so that the result is the same
wherever it is compiled.
"""
import ctypes
import os
import sys


def main() -> int:
    path, arch = sys.argv[1:]
    lib = ctypes.CDLL("libnvrtc.so.12")
    program = ctypes.c_void_p()

    def must(code: int, what: str) -> None:
        if code:
            lib.nvrtcGetErrorString.restype = ctypes.c_char_p
            sys.exit(f"{what}: {lib.nvrtcGetErrorString(code).decode()}")

    with open(path, "rb") as f:
        text = f.read()
    must(lib.nvrtcCreateProgram(ctypes.byref(program), text, os.path.basename(path).encode(), 0, None, None), "create")
    options = [f"--gpu-architecture={arch}".encode(), b"--std=c++11"]
    code = lib.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))
    size = ctypes.c_size_t()
    must(lib.nvrtcGetProgramLogSize(program, ctypes.byref(size)), "log")
    log = ctypes.create_string_buffer(size.value)
    must(lib.nvrtcGetProgramLog(program, log), "log")
    if log.value.strip():
        print(log.value.decode(), file=sys.stderr)
    must(code, "compile")
    must(lib.nvrtcGetPTXSize(program, ctypes.byref(size)), "size")
    ptx = ctypes.create_string_buffer(size.value)
    must(lib.nvrtcGetPTX(program, ptx), "PTX")
    sys.stdout.write(ptx.value.decode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
