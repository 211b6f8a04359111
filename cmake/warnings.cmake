# SPDX-License-Identifier: MIT
#
# What every target of ours compiles with: warnings, sanitizers, reproducible paths.
add_library(sternway_options INTERFACE)
target_compile_options(sternway_options INTERFACE
    -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wpointer-arith -Wvla -Wundef
    -fno-math-errno -ffile-prefix-map=${PROJECT_SOURCE_DIR}/=)
option(STERNWAY_WERROR "Warnings are errors" OFF)
if(STERNWAY_WERROR)
    target_compile_options(sternway_options INTERFACE -Werror)
endif()
option(STERNWAY_DEBUG_INFO "Debug information, of which packages are made: -dbgsym" OFF)
if(STERNWAY_DEBUG_INFO)
    target_compile_options(sternway_options INTERFACE -g)
endif()
if(STERNWAY_SANITIZE)
    target_compile_options(sternway_options INTERFACE
        -fsanitize=${STERNWAY_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
    # every executable and library needs the sanitizer's run time
    add_link_options(-fsanitize=${STERNWAY_SANITIZE})
endif()
