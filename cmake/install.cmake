# SPDX-License-Identifier: MIT
#
# What is installed and where: the library, its headers, a CMake package (find_package(sternway)), a pkg-config file, the
# command with manual pages and completion, and the documents that the command's texts point to. Two layouts of the same
# files: that of `cmake --install` (components library, development, tools; found from any folder), and that of Debian's
# packages, which cmake/package.cmake hands to CPack (components deb_library, deb_development, deb_tools).
include(CMakePackageConfigHelpers)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/sternwayConfigVersion.cmake COMPATIBILITY SameMajorVersion)

# _stw_install(library development tools libdir zsh-folder export pkg-config-prefix folder words...); words go to each install()
function(_stw_install library development tools libdir zsh export pc_prefix folder)
    install(TARGETS sternway EXPORT ${export} LIBRARY DESTINATION ${libdir} COMPONENT ${library} ${ARGN}
        NAMELINK_COMPONENT ${development})
    install(DIRECTORY include/sternway DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT ${development} ${ARGN})
    set(_config ${libdir}/cmake/sternway)
    install(EXPORT ${export} FILE sternwayTargets.cmake NAMESPACE sternway:: DESTINATION ${_config}
        COMPONENT ${development} ${ARGN})
    configure_package_config_file(cmake/sternwayConfig.cmake.in ${folder}/sternwayConfig.cmake
        INSTALL_DESTINATION ${_config})
    install(FILES ${folder}/sternwayConfig.cmake ${PROJECT_BINARY_DIR}/sternwayConfigVersion.cmake
        DESTINATION ${_config} COMPONENT ${development} ${ARGN})
    set(STERNWAY_PC_PREFIX ${pc_prefix})
    set(STERNWAY_PC_LIBDIR ${libdir})
    configure_file(cmake/sternway.pc.in ${folder}/sternway.pc @ONLY)
    install(FILES ${folder}/sternway.pc DESTINATION ${libdir}/pkgconfig COMPONENT ${development} ${ARGN})
    if(STERNWAY_MAN_API)
        install(DIRECTORY ${STERNWAY_MAN_API}/ DESTINATION ${CMAKE_INSTALL_DATADIR}/man/man3 COMPONENT ${development} ${ARGN})
    endif()
    install(FILES README.md CHANGELOG.md SECURITY.md LICENSE DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/sternway COMPONENT ${tools} ${ARGN})
    foreach(_folder tools common/tuning tests/problem backends/hip cmake/nvrtc)
        install(FILES ${_folder}/README.md DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/sternway/${_folder}
            COMPONENT ${tools} ${ARGN})
    endforeach()
    install(DIRECTORY docs DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/sternway COMPONENT ${tools} ${ARGN}
        FILES_MATCHING PATTERN "*.md" PATTERN "*.svg" PATTERN "*.json" PATTERN man EXCLUDE)
    if(NOT TARGET sternway_tool)
        return()
    endif()
    install(TARGETS sternway_tool RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT ${tools} ${ARGN})
    install(FILES ${STERNWAY_MAN_PAGES} DESTINATION ${CMAKE_INSTALL_DATADIR}/man/man1 COMPONENT ${tools} ${ARGN})
    install(FILES tools/completion/sternway.bash DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions
        RENAME sternway COMPONENT ${tools} ${ARGN})
    install(FILES tools/completion/_sternway DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/${zsh} COMPONENT ${tools} ${ARGN})
    install(FILES tools/completion/sternway.fish DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d
        COMPONENT ${tools} ${ARGN})
endfunction()

file(RELATIVE_PATH _up /prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig /prefix)
string(REGEX REPLACE "/$" "" _up "${_up}")
_stw_install(library development tools ${CMAKE_INSTALL_LIBDIR} site-functions sternwayTargets "\${pcfiledir}/${_up}"
    ${PROJECT_BINARY_DIR})
if(PROJECT_IS_TOP_LEVEL)
    include(package)
endif()
