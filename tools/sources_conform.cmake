# SPDX-License-Identifier: MIT
#
# What `conform` needs of the library beyond its interface: the names of the variants in the tuning tables.
target_sources(sternway_common PRIVATE ${CMAKE_SOURCE_DIR}/dispatch/tables.c)
target_include_directories(sternway_common PRIVATE ${CMAKE_BINARY_DIR}/generated)
