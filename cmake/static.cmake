# SPDX-License-Identifier: MIT
#
# lib/libsternway.a: one object, in which every name but those of dispatch/exports.map is local, so that a program may have
# names of its own and may link other libraries in any order. STERNWAY_STATIC_FILE, the target sternway_static.
option(STERNWAY_STATIC "Make the static library too" ${PROJECT_IS_TOP_LEVEL})
set(_target)
set(_objcopy objcopy)
if(CMAKE_C_COMPILER_TARGET) # clang for another machine; objcopy knows this one's alone
    set(_target --target=${CMAKE_C_COMPILER_TARGET} -fuse-ld=lld)
    set(_objcopy)
endif()
find_program(STERNWAY_OBJCOPY NAMES ${_objcopy} llvm-objcopy llvm-objcopy-19)
if(NOT STERNWAY_STATIC OR NOT STERNWAY_OBJCOPY OR STERNWAY_SANITIZE OR STERNWAY_COVERAGE)
    return()
endif()
set(_map ${CMAKE_CURRENT_SOURCE_DIR}/dispatch/exports.map)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${_map})
file(READ ${_map} _names)
string(REGEX MATCHALL "\n +stw_[a-z0-9_]+" _names "${_names}")
string(REGEX REPLACE "[ ;\n]+" "\n" _names "${_names}")
file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/static/names.txt CONTENT "${_names}\n" @ONLY)
set(STERNWAY_STATIC_FILE ${PROJECT_BINARY_DIR}/lib/libsternway.a)
add_custom_command(OUTPUT ${STERNWAY_STATIC_FILE}
    DEPENDS sternway_internal ${PROJECT_BINARY_DIR}/static/names.txt
    COMMAND ${CMAKE_C_COMPILER} ${_target} -r -nostdlib -o static/sternway.o
        -Wl,--whole-archive $<TARGET_FILE:sternway_internal> -Wl,--no-whole-archive
    COMMAND ${STERNWAY_OBJCOPY} --strip-debug --keep-global-symbols=static/names.txt static/sternway.o
    COMMAND ${CMAKE_COMMAND} -E make_directory lib
    COMMAND ${CMAKE_COMMAND} -E rm -f ${STERNWAY_STATIC_FILE}
    COMMAND ${CMAKE_AR} qcsD ${STERNWAY_STATIC_FILE} static/sternway.o
    COMMAND ${CMAKE_COMMAND} -E rm -f static/sternway.o
    WORKING_DIRECTORY ${PROJECT_BINARY_DIR} COMMENT "Static library" VERBATIM)
add_custom_target(sternway_static ALL DEPENDS ${STERNWAY_STATIC_FILE})
