# SPDX-License-Identifier: MIT
#
# Reads common/arch.def, the registry of architectures: STERNWAY_ARCHS_{CPU,CUDA,HIP}.
set(_arch_def ${CMAKE_CURRENT_SOURCE_DIR}/common/arch.def)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${_arch_def})
file(STRINGS ${_arch_def} _arch_rows REGEX "^STW_ARCH\\(")
foreach(_row IN LISTS _arch_rows)
    if(NOT _row MATCHES "^STW_ARCH\\(([a-z0-9]+), (CPU|CUDA|HIP), ([0-9]+), ")
        message(FATAL_ERROR "common/arch.def: cannot read the row ${_row}")
    endif()
    list(APPEND STERNWAY_ARCHS_${CMAKE_MATCH_2} ${CMAKE_MATCH_1})
    set(_backend_${CMAKE_MATCH_1} ${CMAKE_MATCH_2})
    set(_wave_${CMAKE_MATCH_1} ${CMAKE_MATCH_3})
endforeach()
message(STATUS "sternway archs: CUDA ${STERNWAY_ARCHS_CUDA}; HIP ${STERNWAY_ARCHS_HIP}; CPU")

# Every tuning table that exists, as one include for dispatch/tables.c: adding
# common/tuning/attn_bwd.<arch>.def is all it takes.
set(_tables "/* Made by cmake/archs.cmake from common/arch.def and common/tuning. */\n")
foreach(_arch IN LISTS STERNWAY_ARCHS_CPU STERNWAY_ARCHS_CUDA STERNWAY_ARCHS_HIP)
    if(EXISTS ${CMAKE_CURRENT_SOURCE_DIR}/common/tuning/attn_bwd.${_arch}.def)
        set(_loop LOOP_NAMED)
        if(_backend_${_arch} STREQUAL CPU OR STERNWAY_${_backend_${_arch}})
            set(_loop LOOP_BUILT)
        endif()
        string(APPEND _tables
            "#define STW_VARIANT LOOP_DECLARED\n#define STW_RULE(conditions, id)\n"
            "#include \"common/tuning/attn_bwd.${_arch}.def\"\n"
            "#undef STW_VARIANT\n#define LOOP_OF ${_loop}\n#define ARCH_TEXT \"${_arch}\"\n"
            "static const stw_variant attn_variants_${_arch}[] = {\n"
            "#define STW_VARIANT VARIANT_ROW\n"
            "#include \"common/tuning/attn_bwd.${_arch}.def\"\n"
            "#undef STW_VARIANT\n#undef STW_RULE\n#undef LOOP_OF\n#undef ARCH_TEXT\n};\n"
            "static const stw_rule_row attn_rules_${_arch}[] = {\n"
            "#define STW_VARIANT(...)\n#define STW_RULE RULE_ROW\n"
            "#include \"common/tuning/attn_bwd.${_arch}.def\"\n"
            "#undef STW_VARIANT\n#undef STW_RULE\n};\n")
        list(APPEND _rows "    TABLE(${_arch})")
    endif()
endforeach()
list(JOIN _rows "\n" _rows)
file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/generated/attn_tables.inc
    CONTENT "${_tables}static const stw_attn_table attn_tables[] = {\n${_rows}\n};\n" @ONLY)

# The same for backends/gpu/jagged_tables.c, of common/tuning/jagged.<arch>.def.
set(_tables "/* Made by cmake/archs.cmake from common/arch.def and common/tuning. */\n")
set(_rows)
foreach(_arch IN LISTS STERNWAY_ARCHS_CUDA STERNWAY_ARCHS_HIP)
    if(EXISTS ${CMAKE_CURRENT_SOURCE_DIR}/common/tuning/jagged.${_arch}.def)
        if(_backend_${_arch} STREQUAL CUDA AND NOT _arch STREQUAL sm80) # its kernels are those of sm80's image
            message(FATAL_ERROR "common/tuning/jagged.${_arch}.def: the jagged operations of CUDA have one image, sm80's")
        endif()
        string(APPEND _tables
            "static const stw_jagged_line jagged_lines_${_arch}[] = {\n"
            "#define STW_JAGGED_LINE LINE_ROW\n#define STW_JAGGED_PRODUCT(...)\n"
            "#include \"common/tuning/jagged.${_arch}.def\"\n"
            "#undef STW_JAGGED_LINE\n#undef STW_JAGGED_PRODUCT\n};\n"
            "static const stw_jagged_tile jagged_tiles_${_arch}[] = {\n"
            "#define STW_JAGGED_LINE(...)\n#define STW_JAGGED_PRODUCT TILE_ROW\n"
            "#include \"common/tuning/jagged.${_arch}.def\"\n"
            "#undef STW_JAGGED_LINE\n#undef STW_JAGGED_PRODUCT\n};\n")
        list(APPEND _rows "    TABLE(${_arch}, ${_backend_${_arch}}, ${_wave_${_arch}})")
    endif()
endforeach()
list(JOIN _rows ",\n" _rows)
file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/generated/jagged_tables.inc
    CONTENT "${_tables}static const stw_jagged_table jagged_tables[] = {\n${_rows}\n};\n" @ONLY)
