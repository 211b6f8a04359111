# SPDX-License-Identifier: MIT
#
# The toolchain of the preset `aarch64` (GH200, Grace), for builds on another machine: clang and lld with the C library in
# STERNWAY_SYSROOT, which cmake/aarch64_root.sh fills. CTest runs the programs by qemu-user.
set(STERNWAY_SYSROOT ${CMAKE_CURRENT_LIST_DIR}/../build/aarch64-root CACHE PATH
    "A folder that cmake/aarch64_root.sh filled")
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES STERNWAY_SYSROOT)
get_filename_component(CMAKE_SYSROOT ${STERNWAY_SYSROOT} ABSOLUTE)
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
foreach(_language C CXX)
    set(CMAKE_${_language}_COMPILER_TARGET aarch64-linux-gnu)
endforeach()
set(CMAKE_C_COMPILER clang-19)
set(CMAKE_CXX_COMPILER clang++-19)
foreach(_kind EXE SHARED MODULE)
    set(CMAKE_${_kind}_LINKER_FLAGS_INIT -fuse-ld=lld)
endforeach()
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
foreach(_kind LIBRARY INCLUDE PACKAGE)
    set(CMAKE_FIND_ROOT_PATH_MODE_${_kind} ONLY)
endforeach()
set(ENV{PKG_CONFIG_SYSROOT_DIR} ${CMAKE_SYSROOT})
set(ENV{PKG_CONFIG_LIBDIR} ${CMAKE_SYSROOT}/usr/lib/aarch64-linux-gnu/pkgconfig)
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64 -L ${CMAKE_SYSROOT})
