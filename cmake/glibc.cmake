# SPDX-License-Identifier: MIT
#
# stw_old_glibc(target): what the target links runs on glibc STERNWAY_GLIBC and every newer one, whatever is here, by
# libraries to link with that cmake/glibc/stubs.py makes. Nothing where that cannot be, which a line says.
set(_glibc_default OFF)
if(PROJECT_IS_TOP_LEVEL AND NOT STERNWAY_SANITIZE AND NOT STERNWAY_COVERAGE AND NOT CMAKE_CROSSCOMPILING
   AND CMAKE_SYSTEM_NAME STREQUAL "Linux" AND CMAKE_SYSTEM_PROCESSOR STREQUAL "x86_64")
    set(_glibc_default 2.28)
endif()
set(STERNWAY_GLIBC ${_glibc_default} CACHE STRING "The oldest glibc that the library, the command and the Python module run on, or OFF: that of this system")
set(_glibc_stubs "")
if(STERNWAY_GLIBC)
    if(NOT STERNWAY_GLIBC MATCHES "^2\\.[0-9]+$")
        message(FATAL_ERROR "STERNWAY_GLIBC=${STERNWAY_GLIBC}: a version, for example 2.28, or OFF")
    endif()
    find_package(Python3 COMPONENTS Interpreter REQUIRED)
    set(_folder ${PROJECT_BINARY_DIR}/glibc)
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS cmake/glibc/stubs.py cmake/glibc/start.c cmake/glibc/stat.c)
    execute_process(COMMAND ${Python3_EXECUTABLE} -B ${CMAKE_CURRENT_SOURCE_DIR}/cmake/glibc/stubs.py ${STERNWAY_GLIBC}
        ${_folder} ${CMAKE_C_COMPILER} RESULT_VARIABLE _failed OUTPUT_VARIABLE _said ERROR_VARIABLE _said
        OUTPUT_STRIP_TRAILING_WHITESPACE)
    if(_failed EQUAL 0)
        set(_glibc_stubs ${_folder})
        message(STATUS "sternway runs on glibc ${STERNWAY_GLIBC} and newer")
    elseif(_failed EQUAL 3)
        message(STATUS "sternway runs on this system's C library and newer ones: ${_said}")
    else()
        message(FATAL_ERROR "STERNWAY_GLIBC=${STERNWAY_GLIBC}: nothing to link with could be made; OFF goes without\n${_said}")
    endif()
endif()

function(stw_old_glibc target)
    if(_glibc_stubs) # the compiler's own libraries may ask for names of this system's libc: that is not ours to refuse
        target_link_options(${target} PRIVATE -L${_glibc_stubs} LINKER:--allow-shlib-undefined)
        get_target_property(_type ${target} TYPE)
        if(_type STREQUAL "EXECUTABLE")
            target_link_options(${target} PRIVATE LINKER:--wrap=__libc_start_main)
        endif()
        set_property(TARGET ${target} APPEND PROPERTY LINK_DEPENDS ${CMAKE_CURRENT_FUNCTION_LIST_DIR}/glibc/stubs.py)
    endif()
endfunction()
