# SPDX-License-Identifier: MIT
#
# Makes the manual pages of the API (section 3) of what Doxygen writes: a page each header (sternway_attn_bwd.h), each
# struct, and one that leads to its header for each function and type; constants and members have none. Run by
# docs/man/CMakeLists.txt:
#   cmake -DDOXYGEN= -DDOXYFILE=file -DRAW=folder with its output -DOUTPUT=folder -DGZIP= -DVERSION= -DEPOCH= -P man_api.cmake
set(ENV{SOURCE_DATE_EPOCH} ${EPOCH})
string(TIMESTAMP DATE "%Y-%m-%d" UTC)
file(REMOVE_RECURSE ${RAW} ${OUTPUT})
file(MAKE_DIRECTORY ${OUTPUT})
execute_process(COMMAND ${DOXYGEN} ${DOXYFILE} COMMAND_ERROR_IS_FATAL ANY)
file(GLOB _pages RELATIVE ${RAW}/man3 ${RAW}/man3/stw_*.3 ${RAW}/man3/*.h.3)
foreach(_page IN LISTS _pages)
    file(READ ${RAW}/man3/${_page} _text)
    string(REGEX REPLACE "\\.3$" "" _name "${_page}")
    if(_name MATCHES "\\.h$" AND NOT _name STREQUAL "sternway.h")
        string(PREPEND _name "sternway_")
    endif()
    string(REGEX REPLACE "^\\.so man3/" ".so man3/sternway_" _text "${_text}")
    # The title, without the day of the build; the name as the file has it; no line "generated automatically".
    string(REGEX REPLACE "^\\.TH [^\n]*" ".TH \"${_name}\" 3 \"${DATE}\" \"sternway ${VERSION}\" \"Sternway\"" _text "${_text}")
    string(REGEX REPLACE "\n\\.SH NAME\n[^\n]* (\\\\- )" "\n.SH NAME\n${_name} \\1" _text "${_text}")
    string(REGEX REPLACE "\n\\.SH \"Author\".*" "\n" _text "${_text}")
    string(REPLACE "\n.br\n \"" "\"" _text "${_text}") # a quotation that Doxygen ends on the next line
    string(REPLACE "\n'" "\n\\&'" _text "${_text}") # else troff takes a quotation at a line's begin for a request
    file(WRITE ${OUTPUT}/${_name}.3 "${_text}")
    execute_process(COMMAND ${GZIP} -9nf ${OUTPUT}/${_name}.3 COMMAND_ERROR_IS_FATAL ANY)
endforeach()
