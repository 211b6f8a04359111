# SPDX-License-Identifier: MIT
#
# Debian packages by CPack, `cpack -G DEB`: libsternway0 (the library), libsternway-dev (headers, CMake package, pkg-config
# file, static library, examples), sternway-tools (the command, its manual pages and completion), and with
# STERNWAY_DEBUG_INFO a -dbgsym of the first and the last. Called by cmake/package.cmake. Needs dpkg-dev and file, which find
# out what they depend on.
find_program(STERNWAY_SHLIBDEPS dpkg-shlibdeps)
find_program(STERNWAY_FILE file)
find_program(STERNWAY_GZIP gzip)
set(STERNWAY_DEB_COMPONENTS "")
if(NOT STERNWAY_SHLIBDEPS OR NOT STERNWAY_FILE OR NOT STERNWAY_GZIP OR NOT CMAKE_LIBRARY_ARCHITECTURE)
    message(STATUS "sternway .deb packages: none (they need dpkg-dev, file, gzip)")
    return()
endif()
set(_debian ${PROJECT_BINARY_DIR}/debian)
set(_library libsternway${PROJECT_VERSION_MAJOR})
set(STERNWAY_DEB_VERSION ${PROJECT_VERSION}-1)

_stw_install(LIBRARY deb_library DEVELOPMENT deb_development STATIC deb_development TOOLS deb_tools DOC libsternway-dev
    LIBDIR lib/${CMAKE_LIBRARY_ARCHITECTURE} ZSH vendor-completions EXPORT sternwayDebTargets PREFIX /usr FOLDER ${_debian}
    WORDS EXCLUDE_FROM_ALL)
# The system's loader finds the library: no search path of its own.
install(CODE "file(RPATH_REMOVE FILE \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_BINDIR}/sternway\")"
    COMPONENT deb_tools EXCLUDE_FROM_ALL)

# share/doc of each: the licence, and both changelogs, compressed without a date.
set(ENV{SOURCE_DATE_EPOCH} ${STERNWAY_EPOCH})
string(TIMESTAMP STERNWAY_DEB_DATE "%a, %d %b %Y %H:%M:%S +0000" UTC)
unset(ENV{SOURCE_DATE_EPOCH})
file(READ LICENSE _license)
string(REGEX REPLACE "^MIT License\n\nCopyright [^\n]*\n\n" " " _license "${_license}")
string(REPLACE "\n\n" "\n.\n" _license "${_license}")
string(REGEX REPLACE "\n([^\n])" "\n \\1" STERNWAY_LICENSE_TEXT "${_license}")
configure_file(cmake/debian/copyright.in ${_debian}/copyright @ONLY)
configure_file(cmake/debian/changelog.in ${_debian}/changelog.Debian @ONLY)
configure_file(CHANGELOG.md ${_debian}/changelog COPYONLY)
execute_process(COMMAND ${STERNWAY_GZIP} -9nf ${_debian}/changelog.Debian ${_debian}/changelog COMMAND_ERROR_IS_FATAL ANY)
foreach(_pair deb_library=${_library} deb_development=libsternway-dev deb_tools=sternway-tools)
    string(REPLACE "=" ";" _pair ${_pair})
    list(GET _pair 0 _component)
    list(GET _pair 1 _package)
    install(FILES ${_debian}/copyright ${_debian}/changelog.Debian.gz ${_debian}/changelog.gz
        DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/${_package} COMPONENT ${_component} EXCLUDE_FROM_ALL)
    string(TOUPPER ${_component} _upper)
    set(CPACK_DEBIAN_${_upper}_PACKAGE_NAME ${_package})
    set(CPACK_DEBIAN_${_upper}_FILE_NAME DEB-DEFAULT)
    list(APPEND STERNWAY_SBOM_PLACES ${_component}=${_package})
    list(APPEND CPACK_COMPONENTS_ALL ${_component})
    string(APPEND STERNWAY_DEB_COMPONENTS " ${_component}")
endforeach()
# Debug information, by build-id: debuggers find it there.
if(STERNWAY_DEBUG_INFO)
    foreach(_row "deb_library_debug ${_library} sternway" "deb_tools_debug sternway-tools sternway_tool")
        string(REPLACE " " ";" _row "${_row}")
        list(GET _row 0 _component)
        list(GET _row 1 _package)
        list(GET _row 2 _target)
        install(CODE "set(_objcopy \"${CMAKE_OBJCOPY}\")\nset(_readelf \"${CMAKE_READELF}\")\nset(_file \"$<TARGET_FILE:${_target}>\")
include(\"${CMAKE_CURRENT_SOURCE_DIR}/cmake/debian/debug.cmake\")" COMPONENT ${_component} EXCLUDE_FROM_ALL)
        install(FILES ${_debian}/copyright ${_debian}/changelog.Debian.gz ${_debian}/changelog.gz
            DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/${_package}-dbgsym COMPONENT ${_component} EXCLUDE_FROM_ALL)
        string(TOUPPER ${_component} _upper)
        set(CPACK_DEBIAN_${_upper}_PACKAGE_NAME ${_package}-dbgsym)
        set(CPACK_DEBIAN_${_upper}_FILE_NAME DEB-DEFAULT)
        set(CPACK_DEBIAN_${_upper}_PACKAGE_SECTION debug)
        set(CPACK_DEBIAN_${_upper}_PACKAGE_DEPENDS "${_package} (= ${STERNWAY_DEB_VERSION})")
        set(CPACK_DEBIAN_${_upper}_PACKAGE_SHLIBDEPS OFF)
        set(CPACK_COMPONENT_${_upper}_DESCRIPTION "debug symbols for ${_package}\n${STERNWAY_ABOUT}\n.\nThis package holds what debuggers and profilers read of ${_package}.")
        list(APPEND STERNWAY_SBOM_PLACES ${_component}=${_package}-dbgsym)
        list(APPEND CPACK_COMPONENTS_ALL ${_component})
        string(APPEND STERNWAY_DEB_COMPONENTS " ${_component}")
    endforeach()
endif()
# A library's trigger, as policy wants it; CPack's own scripts call ldconfig as well.
file(WRITE ${_debian}/triggers "activate-noawait ldconfig\n")

set(CPACK_GENERATOR DEB)
set(CPACK_DEBIAN_PACKAGE_MAINTAINER "${STERNWAY_MAINTAINER}")
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_PACKAGE_RELEASE 1)
set(CPACK_DEBIAN_COMPRESSION_TYPE xz)
set(CPACK_DEBIAN_PACKAGE_PRIORITY optional)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${PROJECT_BINARY_DIR}/lib)
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS ON)
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS_POLICY ">=")

set(CPACK_DEBIAN_DEB_LIBRARY_PACKAGE_SECTION libs)
set(CPACK_DEBIAN_DEB_LIBRARY_PACKAGE_CONTROL_EXTRA ${_debian}/triggers)
set(CPACK_COMPONENT_DEB_LIBRARY_DESCRIPTION "backward pass of attention, on GPUs and CPUs
${STERNWAY_ABOUT}
${STERNWAY_ABOUT_LIBRARY}
.
This package holds the library with the device code inside.")
set(CPACK_DEBIAN_DEB_DEVELOPMENT_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_DEB_DEVELOPMENT_PACKAGE_DEPENDS "${_library} (= ${STERNWAY_DEB_VERSION})")
set(CPACK_DEBIAN_DEB_DEVELOPMENT_PACKAGE_SHLIBDEPS OFF)
set(CPACK_COMPONENT_DEB_DEVELOPMENT_DESCRIPTION "backward pass of attention (development files)
${STERNWAY_ABOUT}
.
This package holds the headers, the CMake package, the pkg-config file, the
static library and examples.")
set(CPACK_DEBIAN_DEB_TOOLS_PACKAGE_SECTION science)
set(CPACK_DEBIAN_DEB_TOOLS_PACKAGE_DEPENDS "${_library} (= ${STERNWAY_DEB_VERSION})")
set(CPACK_COMPONENT_DEB_TOOLS_DESCRIPTION "backward pass of attention (command line)
${STERNWAY_ABOUT}
.
${STERNWAY_ABOUT_TOOLS}")
