# SPDX-License-Identifier: MIT
#
# RPM packages by CPack, `cpack -G RPM`: sternway-libs, sternway-devel, sternway-static, sternway (the command). Called by
# cmake/package.cmake. Needs rpmbuild, which finds out what they depend on; sternway wants cJSON, which EPEL has for RHEL.
find_program(STERNWAY_RPMBUILD rpmbuild)
set(STERNWAY_RPM_COMPONENTS "")
if(NOT STERNWAY_RPMBUILD)
    message(STATUS "sternway .rpm packages: none (they need rpmbuild)")
    return()
endif()
_stw_install(LIBRARY rpm_library DEVELOPMENT rpm_development STATIC rpm_static TOOLS rpm_tools DOC sternway-devel LIBDIR lib64
    ZSH site-functions EXPORT sternwayRpmTargets PREFIX /usr FOLDER ${PROJECT_BINARY_DIR}/package/rpm WORDS EXCLUDE_FROM_ALL)
install(CODE "file(RPATH_REMOVE FILE \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_BINDIR}/sternway\")"
    COMPONENT rpm_tools EXCLUDE_FROM_ALL)

foreach(_pair rpm_library=sternway-libs rpm_development=sternway-devel rpm_static=sternway-static rpm_tools=sternway)
    string(REPLACE "=" ";" _pair ${_pair})
    list(GET _pair 0 _component)
    list(GET _pair 1 _package)
    if(_component STREQUAL "rpm_static" AND NOT TARGET sternway_static)
        continue()
    endif()
    string(APPEND STERNWAY_RPM_COMPONENTS " ${_component}")
    list(APPEND CPACK_COMPONENTS_ALL ${_component})
    list(APPEND STERNWAY_SBOM_PLACES ${_component}=${_package})
    install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DATADIR}/licenses/${_package} COMPONENT ${_component} EXCLUDE_FROM_ALL)
    string(TOUPPER ${_component} _upper)
    set(CPACK_RPM_${_component}_PACKAGE_NAME ${_package})
    set(CPACK_RPM_${_component}_FILE_NAME RPM-DEFAULT)
    if(NOT _component STREQUAL "rpm_library")
        set(CPACK_RPM_${_component}_PACKAGE_REQUIRES "sternway-libs%{?_isa} = ${PROJECT_VERSION}-1")
    endif()
endforeach()
string(STRIP "${STERNWAY_RPM_COMPONENTS}" STERNWAY_RPM_COMPONENTS)
set(CPACK_RPM_rpm_static_PACKAGE_REQUIRES "sternway-devel%{?_isa} = ${PROJECT_VERSION}-1")
install(CODE "file(GLOB _libraries \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/lib64/libsternway.so.*\")
file(CHMOD \${_libraries} PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)"
    COMPONENT rpm_library EXCLUDE_FROM_ALL)
set(CPACK_RPM_COMPONENT_INSTALL ON)
set(CPACK_RPM_PACKAGE_LICENSE MIT)
set(CPACK_RPM_PACKAGE_RELEASE 1)
set(CPACK_RPM_PACKAGE_GROUP "System Environment/Libraries")
set(CPACK_RPM_rpm_development_PACKAGE_GROUP "Development/Libraries")
set(CPACK_RPM_rpm_static_PACKAGE_GROUP "Development/Libraries")
set(CPACK_RPM_COMPRESSION_TYPE xz)
set(CPACK_RPM_EXCLUDE_FROM_AUTO_FILELIST_ADDITION /usr/share/man /usr/share/man/man1 /usr/share/man/man3
    /usr/share/bash-completion /usr/share/bash-completion/completions /usr/share/zsh /usr/share/zsh/site-functions
    /usr/share/fish /usr/share/fish/vendor_completions.d /usr/share/licenses /usr/lib64/cmake /usr/lib64/pkgconfig)
# Files are packed as they were installed: stripped, dated, and with the sums that the SPDX document has.
set(CPACK_RPM_SPEC_MORE_DEFINE "%define __os_install_post %{nil}
%define debug_package %{nil}
%define _build_id_links none
%define use_source_date_epoch_as_buildtime 1
%define clamp_mtime_to_source_date_epoch 1
%define _buildhost sternway.invalid
%define packager ${STERNWAY_MAINTAINER}")
set(CPACK_RPM_rpm_library_PACKAGE_SUMMARY "Backward pass of attention, on GPUs and CPUs")
set(CPACK_RPM_rpm_library_PACKAGE_DESCRIPTION "${STERNWAY_ABOUT}
${STERNWAY_ABOUT_LIBRARY}")
set(CPACK_RPM_rpm_library_POST_INSTALL_SCRIPT_FILE ${PROJECT_BINARY_DIR}/package/rpm/ldconfig)
set(CPACK_RPM_rpm_library_POST_UNINSTALL_SCRIPT_FILE ${PROJECT_BINARY_DIR}/package/rpm/ldconfig)
file(WRITE ${PROJECT_BINARY_DIR}/package/rpm/ldconfig "/sbin/ldconfig\n")
set(CPACK_RPM_rpm_development_PACKAGE_SUMMARY "Headers, CMake package and pkg-config file of Sternway")
set(CPACK_RPM_rpm_development_PACKAGE_DESCRIPTION "${STERNWAY_ABOUT}
This package is for building programs with it.")
set(CPACK_RPM_rpm_static_PACKAGE_SUMMARY "Static library of Sternway")
set(CPACK_RPM_rpm_static_PACKAGE_DESCRIPTION "${STERNWAY_ABOUT}
This package holds the static library.")
set(CPACK_RPM_rpm_tools_PACKAGE_SUMMARY "Command line of Sternway, the backward pass of attention")
set(CPACK_RPM_rpm_tools_PACKAGE_DESCRIPTION "${STERNWAY_ABOUT}
${STERNWAY_ABOUT_TOOLS}")
