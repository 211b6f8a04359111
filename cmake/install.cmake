# SPDX-License-Identifier: MIT
#
# `cmake --install`: the library, its headers, the command, a CMake package (find_package(sternway)), a pkg-config file
# that finds its folder by itself, and the documents that the command's texts point to.
include(CMakePackageConfigHelpers)
install(TARGETS sternway EXPORT sternwayTargets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(DIRECTORY include/sternway DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(EXPORT sternwayTargets NAMESPACE sternway:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/sternway)
configure_package_config_file(cmake/sternwayConfig.cmake.in ${PROJECT_BINARY_DIR}/sternwayConfig.cmake
    INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/sternway)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/sternwayConfigVersion.cmake COMPATIBILITY SameMajorVersion)
install(FILES ${PROJECT_BINARY_DIR}/sternwayConfig.cmake ${PROJECT_BINARY_DIR}/sternwayConfigVersion.cmake
    DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/sternway)
file(RELATIVE_PATH _pc_up /prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig /prefix)
string(REGEX REPLACE "/$" "" _pc_up "${_pc_up}")
configure_file(cmake/sternway.pc.in ${PROJECT_BINARY_DIR}/sternway.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/sternway.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
install(FILES README.md CHANGELOG.md LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
foreach(_folder tools common/tuning tests/problem)
    install(FILES ${_folder}/README.md DESTINATION ${CMAKE_INSTALL_DOCDIR}/${_folder})
endforeach()
install(DIRECTORY docs DESTINATION ${CMAKE_INSTALL_DOCDIR} FILES_MATCHING PATTERN "*.md" PATTERN "*.svg" PATTERN "*.json")
if(TARGET sternway_tool)
    install(TARGETS sternway_tool RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()
