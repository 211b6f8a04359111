# SPDX-License-Identifier: MIT
#
# Run at the install of a -dbgsym: the debug information of _file, under the name that its build-id gives.
execute_process(COMMAND ${_readelf} -n ${_file} OUTPUT_VARIABLE _notes COMMAND_ERROR_IS_FATAL ANY)
if(NOT _notes MATCHES "Build ID: ([0-9a-f][0-9a-f])([0-9a-f]+)")
    message(FATAL_ERROR "${_file} has no build-id")
endif()
set(_debug "${CMAKE_INSTALL_PREFIX}/lib/debug/.build-id/${CMAKE_MATCH_1}/${CMAKE_MATCH_2}.debug")
get_filename_component(_folder "${_debug}" DIRECTORY)
file(MAKE_DIRECTORY "$ENV{DESTDIR}${_folder}")
execute_process(COMMAND ${_objcopy} --only-keep-debug --compress-debug-sections=zlib ${_file} "$ENV{DESTDIR}${_debug}"
    COMMAND_ERROR_IS_FATAL ANY)
file(CHMOD "$ENV{DESTDIR}${_debug}" PERMISSIONS OWNER_READ OWNER_WRITE GROUP_READ WORLD_READ)
list(APPEND CMAKE_INSTALL_MANIFEST_FILES "${_debug}")
