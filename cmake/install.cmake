# SPDX-License-Identifier: MIT
#
# What is installed and where: the library, its headers, a CMake package (find_package(sternway)), a pkg-config file, the
# static library, the command with manual pages and completion, examples, the documents that the command's texts point to,
# and an SPDX document of it all. Layouts of the same files: that of `cmake --install` (components library, development,
# static, tools; found from any folder), and those of packages, which cmake/package.cmake hands to CPack.
include(CMakePackageConfigHelpers)
include(static)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/sternwayConfigVersion.cmake COMPATIBILITY SameMajorVersion)

# The README's program, which is an example as well.
file(READ README.md _readme)
string(REGEX MATCH "```c\n([^`]*)```" _program "${_readme}")
file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/generated/main.c CONTENT "${CMAKE_MATCH_1}" @ONLY)

# _stw_install(LIBRARY component DEVELOPMENT component STATIC component TOOLS component DOC folder of the development files'
# documents LIBDIR folder ZSH folder EXPORT name PREFIX pkg-config's FOLDER where to write WORDS words of each install())
function(_stw_install)
    cmake_parse_arguments(_ "" "LIBRARY;DEVELOPMENT;STATIC;TOOLS;DOC;LIBDIR;ZSH;EXPORT;PREFIX;FOLDER" "WORDS" ${ARGN})
    set(_words ${__WORDS})
    set(_doc ${CMAKE_INSTALL_DATADIR}/doc)
    install(TARGETS sternway EXPORT ${__EXPORT} LIBRARY DESTINATION ${__LIBDIR} COMPONENT ${__LIBRARY} ${_words}
        NAMELINK_COMPONENT ${__DEVELOPMENT})
    install(DIRECTORY include/sternway DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT ${__DEVELOPMENT} ${_words})
    set(_config ${__LIBDIR}/cmake/sternway)
    install(EXPORT ${__EXPORT} FILE sternwayTargets.cmake NAMESPACE sternway:: DESTINATION ${_config}
        COMPONENT ${__DEVELOPMENT} ${_words})
    configure_package_config_file(cmake/sternwayConfig.cmake.in ${__FOLDER}/sternwayConfig.cmake
        INSTALL_DESTINATION ${_config})
    install(FILES ${__FOLDER}/sternwayConfig.cmake ${PROJECT_BINARY_DIR}/sternwayConfigVersion.cmake
        DESTINATION ${_config} COMPONENT ${__DEVELOPMENT} ${_words})
    set(STERNWAY_PC_PREFIX ${__PREFIX})
    set(STERNWAY_PC_LIBDIR ${__LIBDIR})
    configure_file(cmake/sternway.pc.in ${__FOLDER}/sternway.pc @ONLY)
    install(FILES ${__FOLDER}/sternway.pc DESTINATION ${__LIBDIR}/pkgconfig COMPONENT ${__DEVELOPMENT} ${_words})
    if(TARGET sternway_static)
        install(FILES ${STERNWAY_STATIC_FILE} DESTINATION ${__LIBDIR} COMPONENT ${__STATIC} ${_words})
    endif()
    install(FILES ${PROJECT_BINARY_DIR}/generated/main.c examples/README.md examples/finetune.py
        examples/megatron_context_parallel.py examples/requirements.txt
        examples/causal_gqa.safetensors examples/nested.safetensors
        DESTINATION ${_doc}/${__DOC}/examples COMPONENT ${__DEVELOPMENT} ${_words})
    if(STERNWAY_MAN_API)
        install(DIRECTORY ${STERNWAY_MAN_API}/ DESTINATION ${CMAKE_INSTALL_DATADIR}/man/man3 COMPONENT ${__DEVELOPMENT} ${_words})
    endif()
    install(FILES README.md CHANGELOG.md SECURITY.md LICENSE DESTINATION ${_doc}/sternway COMPONENT ${__TOOLS} ${_words})
    foreach(_folder tools common/tuning tests/problem backends/hip cmake/nvrtc cmake/glibc cmake/packages)
        install(FILES ${_folder}/README.md DESTINATION ${_doc}/sternway/${_folder} COMPONENT ${__TOOLS} ${_words})
    endforeach()
    install(DIRECTORY docs DESTINATION ${_doc}/sternway COMPONENT ${__TOOLS} ${_words}
        FILES_MATCHING PATTERN "*.md" PATTERN "*.svg" PATTERN "*.json" PATTERN man EXCLUDE)
    if(NOT TARGET sternway_tool)
        return()
    endif()
    install(TARGETS sternway_tool RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT ${__TOOLS} ${_words})
    install(FILES ${STERNWAY_MAN_PAGES} DESTINATION ${CMAKE_INSTALL_DATADIR}/man/man1 COMPONENT ${__TOOLS} ${_words})
    install(FILES tools/completion/sternway.bash DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions
        RENAME sternway COMPONENT ${__TOOLS} ${_words})
    install(FILES tools/completion/_sternway DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/${__ZSH} COMPONENT ${__TOOLS} ${_words})
    install(FILES tools/completion/sternway.fish DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d
        COMPONENT ${__TOOLS} ${_words})
endfunction()

file(RELATIVE_PATH _up /prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig /prefix)
string(REGEX REPLACE "/$" "" _up "${_up}")
_stw_install(LIBRARY library DEVELOPMENT development STATIC static TOOLS tools DOC sternway LIBDIR ${CMAKE_INSTALL_LIBDIR}
    ZSH site-functions EXPORT sternwayTargets PREFIX "\${pcfiledir}/${_up}" FOLDER ${PROJECT_BINARY_DIR})
set(STERNWAY_SBOM_PLACES "")
if(PROJECT_IS_TOP_LEVEL)
    include(package)
endif()
include(sbom) # behind everything else that installs: it lists what is there
