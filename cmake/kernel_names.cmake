# SPDX-License-Identifier: MIT
#
# Writes the names of all kernels, which macros put together: a line "name source arch" each, for grep. Run by
# the build with CC, SOURCE (the tree), OUTPUT and IMAGES, words of four: source arch macro tuning-table.
set(_lines)
while(IMAGES)
    list(POP_FRONT IMAGES _source _arch _macro _table)
    execute_process(COMMAND ${CC} -E -P -x c -D${_macro} "-DSTW_VARIANT_TABLE=\"${_table}\"" -I${SOURCE} -I${SOURCE}/include
        ${SOURCE}/${_source} OUTPUT_VARIABLE _text ERROR_VARIABLE _words RESULT_VARIABLE _failed)
    if(_failed)
        message(FATAL_ERROR "the names of the kernels of ${_source}: ${_words}")
    endif()
    # a kernel is told by what bounds its launch
    string(REGEX MATCHALL "(__launch_bounds__|amdgpu_flat_work_group_size)[^;{]* stw_[a-z0-9_]+ *\\(" _kernels "${_text}")
    foreach(_kernel IN LISTS _kernels)
        string(REGEX MATCH "(stw_[a-z0-9_]+) *\\($" _name "${_kernel}")
        list(APPEND _lines "${CMAKE_MATCH_1} ${_source} ${_arch}")
    endforeach()
endwhile()
list(SORT _lines)
list(REMOVE_DUPLICATES _lines)
list(JOIN _lines "\n" _lines)
file(WRITE ${OUTPUT} "${_lines}\n")
