# SPDX-License-Identifier: MIT
#
# `cmake --install`: the library, its headers, the command, and a CMake package (find_package(sternway)).
include(CMakePackageConfigHelpers)
install(TARGETS sternway EXPORT sternwayTargets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(DIRECTORY include/sternway DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(EXPORT sternwayTargets NAMESPACE sternway:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/sternway)
configure_package_config_file(cmake/sternwayConfig.cmake.in ${PROJECT_BINARY_DIR}/sternwayConfig.cmake
    INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/sternway)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/sternwayConfigVersion.cmake COMPATIBILITY SameMajorVersion)
install(FILES ${PROJECT_BINARY_DIR}/sternwayConfig.cmake ${PROJECT_BINARY_DIR}/sternwayConfigVersion.cmake
    DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/sternway)
if(TARGET sternway_tool)
    install(TARGETS sternway_tool RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()
