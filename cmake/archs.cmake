# SPDX-License-Identifier: MIT
#
# Reads dispatch/arch.def, the registry of architectures: STERNWAY_ARCHS_CUDA and STERNWAY_ARCHS_HIP.
set(_arch_def ${CMAKE_CURRENT_SOURCE_DIR}/dispatch/arch.def)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${_arch_def})
file(STRINGS ${_arch_def} _arch_rows REGEX "^STW_ARCH\\(")
foreach(_row IN LISTS _arch_rows)
    if(NOT _row MATCHES "^STW_ARCH\\(([a-z0-9]+), (CPU|CUDA|HIP), ")
        message(FATAL_ERROR "dispatch/arch.def: cannot read the row ${_row}")
    endif()
    list(APPEND STERNWAY_ARCHS_${CMAKE_MATCH_2} ${CMAKE_MATCH_1})
endforeach()
message(STATUS "sternway archs: CUDA ${STERNWAY_ARCHS_CUDA}; HIP ${STERNWAY_ARCHS_HIP}; CPU")
