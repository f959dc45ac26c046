#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What the demo and the tests need.  `setup.sh venv DIR EXTRA` makes a virtual environment with aotc and one of its
# extras; `setup.sh tools` installs the optional system tools (compilers, cmake, qemu, a browser) where this is root on a
# Debian machine, else says what is missing; `setup.sh firmware-tools` those for microcontrollers; `setup.sh package-tools
# DIR` those for packages of models that only the long run of the tests uses.
set -eu
torch_index=https://download.pytorch.org/whl/cpu
torch_wheel=torch==2.13.0

apt_install() {
  [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1 || return 1
  apt-get install -y -qq "$@" >/dev/null 2>&1 && return 0
  apt-get update -qq >/dev/null 2>&1 && apt-get install -y -qq "$@" >/dev/null 2>&1
}

make_venv() {
  python=${PYTHON:-python3}
  if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))'; then
    echo "aotc needs Python 3.10 or newer; name one with PYTHON=" >&2
    exit 1
  fi
  if ! "$python" -m venv "$1" >/dev/null 2>&1; then
    apt_install python3-venv || true
    "$python" -m venv --clear "$1"
  fi
  echo "installing aotc and its '$2' packages into $1" >&2
  [ "$2" != test ] || install_torch "$1"
  install_packages "$1" "$2" && return 0
  [ "$2" = verify ] || exit 1
  echo "ONNX Runtime cannot be installed here: models are compared with onnx's own evaluator" >&2
  install_packages "$1"
}

# Builds of torch for the CPU are a tenth of the size of the others.  They have a local version (+cpu), which pip
# prefers wherever it finds one: in a folder of wheels, in the index of torch, which may be out of reach.
install_torch() {
  "$1/bin/python" -c 'import torch' 2>/dev/null && return 0
  "$1/bin/python" -m pip install -qq --disable-pip-version-check --retries 0 "$torch_wheel" \
    --extra-index-url "$torch_index" || true
}

install_packages() {
  "$1/bin/python" -m pip install --quiet --disable-pip-version-check -e ".${2:+[$2]}"
}

# Compilers for microcontrollers, their C libraries, and boards that run the programs.
install_firmware_tools() {
  missing=""
  command -v arm-none-eabi-gcc >/dev/null 2>&1 || missing="$missing gcc-arm-none-eabi libnewlib-arm-none-eabi"
  command -v riscv64-unknown-elf-gcc >/dev/null 2>&1 ||
    missing="$missing gcc-riscv64-unknown-elf picolibc-riscv64-unknown-elf"
  command -v qemu-system-arm >/dev/null 2>&1 || missing="$missing qemu-system-arm"
  command -v qemu-system-riscv32 >/dev/null 2>&1 || missing="$missing qemu-system-misc"
  # shellcheck disable=SC2086
  [ -z "$missing" ] || apt_install $missing || echo "not installed, firmware is not tested:$missing" >&2
}

install_tools() {
  missing=""
  for tool in clang cmake g++; do
    command -v "$tool" >/dev/null 2>&1 || missing="$missing $tool"
  done
  for machine in aarch64 riscv64; do
    [ "$(uname -m)" != "$machine" ] || continue
    command -v "$machine-linux-gnu-gcc" >/dev/null 2>&1 || missing="$missing gcc-$machine-linux-gnu"
    command -v "qemu-$machine" >/dev/null 2>&1 || missing="$missing qemu-user"
  done
  # WebAssembly
  command -v node >/dev/null 2>&1 || missing="$missing nodejs"
  # packages of models are built by these
  command -v ninja >/dev/null 2>&1 || missing="$missing ninja-build"
  command -v cppcheck >/dev/null 2>&1 || missing="$missing cppcheck"
  command -v pkg-config >/dev/null 2>&1 || missing="$missing pkg-config"
  command -v cargo >/dev/null 2>&1 || missing="$missing cargo"
  ls -d /usr/share/cargo/registry/cc-1.* >/dev/null 2>&1 || missing="$missing librust-cc-dev"
  # shellcheck disable=SC2086
  [ -z "$missing" ] || apt_install $missing || echo "not installed, tests that need them are skipped:$missing" >&2
  install_firmware_tools
  command -v clang-19 >/dev/null 2>&1 || apt_install clang-19 ||
    echo "not installed, kernels are compared without it, and vectors of RISC-V are not tested: clang-19" >&2
  { command -v wasm-ld-19 && [ -e /usr/lib/wasm32-wasi/libc.a ] &&
    ls /usr/lib/llvm-19/lib/clang/19/lib/wasm32-unknown-wasi/libclang_rt.builtins.a; } >/dev/null 2>&1 ||
    apt_install lld-19 wasi-libc libclang-rt-19-dev-wasm32 ||
    echo "not installed, WebAssembly is not tested: lld-19 wasi-libc libclang-rt-19-dev-wasm32" >&2
  command -v x86_64-w64-mingw32-gcc >/dev/null 2>&1 || apt_install gcc-mingw-w64-x86-64-posix ||
    echo "not installed, the runtime is not compiled for Windows: gcc-mingw-w64-x86-64-posix" >&2
  command -v wine64 >/dev/null 2>&1 || [ -x /usr/lib/wine/wine64 ] || apt_install wine64 ||
    echo "not installed, programs for Windows are not run: wine64" >&2
  command -v chromium >/dev/null 2>&1 || apt_install chromium ||
    echo "not installed, the test of reports in a browser is skipped: chromium" >&2
}

# Tools of ecosystems for packages of models, in a folder of their own: Python packages and packages of npm.
install_package_tools() {
  "$1/bin/python" -c 'import platformio, idf_component_manager' 2>/dev/null ||
    { "${PYTHON:-python3}" -m venv "$1" && "$1/bin/python" -m pip install -qq --disable-pip-version-check platformio \
      idf-component-manager >/dev/null 2>&1; } || echo "not installed, some packages are not tested: platformio" >&2
  [ -x "$1/node_modules/.bin/tsc" ] || npm install --silent --no-fund --no-audit --prefix "$1" \
    @bazel/bazel-linux_x64@2 @bazel/buildifier@8 typescript@5 >/dev/null 2>&1 ||
    echo "not installed, some packages are not tested: bazel, buildifier, typescript" >&2
  command -v arduino-builder >/dev/null 2>&1 || apt_install arduino-builder arduino-core-avr gcc-avr avr-libc ||
    echo "not installed, no sketch is built by Arduino: arduino-builder arduino-core-avr gcc-avr avr-libc" >&2
}

case "$1" in
  venv) make_venv "$2" "$3" ;;
  tools) install_tools ;;
  firmware-tools) install_firmware_tools ;;
  package-tools) install_package_tools "$2" ;;
  *) echo "usage: setup.sh venv DIR EXTRA | tools | firmware-tools | package-tools DIR" >&2; exit 2 ;;
esac
