# SPDX-License-Identifier: MIT
#
# Packages by CPack in the build folder: `cpack -G DEB`, `cpack -G RPM`, and `cpack -G TGZ`, one tarball that is used where
# it is unpacked and brings cJSON along. Called by cmake/install.cmake. Plain `cpack` makes the .deb where their tools are.
if(NOT TARGET sternway_tool OR STERNWAY_SANITIZE)
    message(STATUS "sternway packages: none (they need the command and no sanitizer)")
    return()
endif()
set(STERNWAY_MAINTAINER "Sternway developers <developers@sternway.invalid>")
set(STERNWAY_ABOUT "Sternway computes the gradients of attention and of nested (jagged) tensor
operations on NVIDIA and AMD GPUs and on the CPU, behind one C interface.")
set(STERNWAY_ABOUT_LIBRARY "Drivers are loaded when a program asks for them; a machine without a GPU
computes the same on its CPU.")
set(STERNWAY_ABOUT_TOOLS "This package holds the sternway command: what runs on this machine and why,
a conformance suite for its GPUs, timing, tuning, and gradients of problems in
safetensors files.")

# The command's only library that is not everywhere goes along in the tarball, with its licence.
get_filename_component(_cjson ${CJSON_LIBRARY} REALPATH)
if(_cjson MATCHES "/(libcjson\\.so\\.[0-9]+)[^/]*$")
    install(FILES ${_cjson} DESTINATION ${CMAKE_INSTALL_LIBDIR} RENAME ${CMAKE_MATCH_1} COMPONENT bundled EXCLUDE_FROM_ALL)
    find_file(STERNWAY_CJSON_LICENSE NAMES copyright LICENSE
        PATHS /usr/share/doc/libcjson1 /usr/share/licenses/cjson NO_DEFAULT_PATH DOC "licence of cJSON, which goes along with it")
    if(STERNWAY_CJSON_LICENSE)
        install(FILES ${STERNWAY_CJSON_LICENSE} DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/sternway RENAME libcjson.copyright
            COMPONENT bundled EXCLUDE_FROM_ALL)
    endif()
endif()

set(CPACK_GENERATOR TGZ)
set(CPACK_PACKAGE_NAME sternway)
set(CPACK_PACKAGE_VENDOR "the Sternway developers")
set(CPACK_PACKAGE_CONTACT "${STERNWAY_MAINTAINER}")
set(CPACK_PACKAGE_DIRECTORY ${PROJECT_BINARY_DIR}/packages)
set(CPACK_STRIP_FILES ON)
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS
    OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
set(CPACK_COMPONENTS_ALL library development tools bundled)
if(TARGET sternway_static)
    list(APPEND CPACK_COMPONENTS_ALL static)
endif()
set(_tarball_components ${CPACK_COMPONENTS_ALL})
set(CPACK_COMPONENTS_GROUPING IGNORE)
set(_tarball sternway-${PROJECT_VERSION}-${CMAKE_SYSTEM_PROCESSOR}-linux)
include(package_deb)
include(package_rpm)

# Read by cpack before it packs: what each kind holds; and every file in a package, and the archive around it, is dated like
# the version.
list(JOIN _tarball_components " " _tarball_components)
file(WRITE ${PROJECT_BINARY_DIR}/package/settings.cmake "if(NOT DEFINED ENV{SOURCE_DATE_EPOCH})
    set(ENV{SOURCE_DATE_EPOCH} ${STERNWAY_EPOCH})
endif()
if(CPACK_GENERATOR STREQUAL \"RPM\")
    set(CPACK_COMPONENTS_ALL ${STERNWAY_RPM_COMPONENTS})
    set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
    set(CPACK_PRE_BUILD_SCRIPTS ${CMAKE_CURRENT_SOURCE_DIR}/cmake/package_dates.cmake)
elseif(CPACK_GENERATOR STREQUAL \"DEB\")
    set(CPACK_COMPONENTS_ALL ${STERNWAY_DEB_COMPONENTS})
    set(CPACK_POST_BUILD_SCRIPTS ${CMAKE_CURRENT_SOURCE_DIR}/cmake/debian/installed_size.cmake)
    set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
else()
    set(CPACK_COMPONENTS_ALL ${_tarball_components})
    set(CPACK_ARCHIVE_COMPONENT_INSTALL ON)
    set(CPACK_COMPONENTS_GROUPING ALL_COMPONENTS_IN_ONE)
    set(CPACK_COMPONENT_INCLUDE_TOPLEVEL_DIRECTORY ON)
    set(CPACK_PACKAGE_FILE_NAME ${_tarball})
    set(CPACK_ARCHIVE_FILE_NAME ${_tarball})
    set(CPACK_PRE_BUILD_SCRIPTS ${CMAKE_CURRENT_SOURCE_DIR}/cmake/package_dates.cmake)
endif()
")
set(CPACK_PROJECT_CONFIG_FILE ${PROJECT_BINARY_DIR}/package/settings.cmake)
include(CPack)
