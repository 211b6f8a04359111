# SPDX-License-Identifier: MIT
#
# What `conform` needs of the library beyond its interface: the names of the variants in the tuning tables.
target_sources(sternway_common PRIVATE ${PROJECT_SOURCE_DIR}/dispatch/tables.c)
target_compile_definitions(sternway_common PRIVATE STW_TABLES_ALONE)
target_include_directories(sternway_common PRIVATE ${PROJECT_BINARY_DIR}/generated)
