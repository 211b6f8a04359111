# SPDX-License-Identifier: MIT
#
# STERNWAY_COMPILER_CACHE: ccache where it is found, for host code; device images have a folder of their own then
# (STERNWAY_IMAGE_CACHE, cmake/image.cmake). Not for a program that takes Sternway in: what caches there is its choice.
# Counting builds go without, since their compiler writes a second file for each object.
if(PROJECT_IS_TOP_LEVEL AND NOT STERNWAY_COVERAGE)
    find_program(STERNWAY_COMPILER_CACHE ccache DOC "ccache, or OFF")
    if(STERNWAY_COMPILER_CACHE AND NOT DEFINED CMAKE_C_COMPILER_LAUNCHER)
        set(CMAKE_C_COMPILER_LAUNCHER ${STERNWAY_COMPILER_CACHE})
    endif()
endif()
