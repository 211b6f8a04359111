# SPDX-License-Identifier: MIT
# An overlay port of this tree: vcpkg install sternway --overlay-ports=cmake/packages/vcpkg
get_filename_component(SOURCE_PATH "${CURRENT_PORT_DIR}/../../.." ABSOLUTE)
vcpkg_check_features(OUT_FEATURE_OPTIONS _options FEATURES
    cuda STERNWAY_CUDA
    hip STERNWAY_HIP
    tools STERNWAY_TOOLS)
vcpkg_check_linkage(ONLY_DYNAMIC_LIBRARY)
vcpkg_cmake_configure(SOURCE_PATH "${SOURCE_PATH}"
    OPTIONS ${_options} -DSTERNWAY_STATIC=OFF -DSTERNWAY_TESTS=OFF -DSTERNWAY_PYTHON=OFF -DSTERNWAY_GLIBC=OFF)
vcpkg_cmake_install()
vcpkg_cmake_config_fixup(CONFIG_PATH lib/cmake/sternway)
vcpkg_fixup_pkgconfig()
if("tools" IN_LIST FEATURES)
    vcpkg_copy_tools(TOOL_NAMES sternway AUTO_CLEAN)
endif()
file(REMOVE_RECURSE "${CURRENT_PACKAGES_DIR}/debug/include" "${CURRENT_PACKAGES_DIR}/debug/share"
    "${CURRENT_PACKAGES_DIR}/share/doc")
vcpkg_install_copyright(FILE_LIST "${SOURCE_PATH}/LICENSE")
