# SPDX-License-Identifier: MIT
#
# Makes one manual page of what the command itself says under --help, by help2man. Run by docs/man/CMakeLists.txt:
#   cmake -DTOOL=bin/sternway -DCOMMAND=info|"" -DOUTPUT=sternway-info.1.gz -DINCLUDE=info.h2m -DHELP2MAN= -DGZIP=
#         -DVERSION= -DEPOCH= -P man_page.cmake
# The line about a command is that of `sternway --help`. EPOCH dates the page, so that two builds are the same bytes.
set(ENV{LC_ALL} C)
set(ENV{SOURCE_DATE_EPOCH} ${EPOCH})
unset(ENV{ARGP_HELP_FMT})
execute_process(COMMAND ${TOOL} --help OUTPUT_VARIABLE _help COMMAND_ERROR_IS_FATAL ANY)
if(COMMAND)
    set(_page sternway-${COMMAND})
    if(NOT _help MATCHES "\n  ${COMMAND} +([^\n]+)")
        message(FATAL_ERROR "sternway --help does not list ${COMMAND}")
    endif()
    set(_line "${CMAKE_MATCH_1}")
else()
    set(_page sternway)
    set(_line "backward pass of attention on NVIDIA and AMD GPUs and on the CPU")
endif()
# help2man gives its argument to a shell: no path in it, which may hold blanks.
cmake_path(GET TOOL PARENT_PATH _folder)
cmake_path(GET TOOL FILENAME _call)
string(STRIP "./${_call} ${COMMAND}" _call)
execute_process(COMMAND ${HELP2MAN} --no-info --section=1 --version-string=${VERSION} "--name=${_line}" --include=${INCLUDE}
    --manual=Sternway --source=sternway\ ${VERSION} ${_call} WORKING_DIRECTORY ${_folder} OUTPUT_VARIABLE _text
    COMMAND_ERROR_IS_FATAL ANY)
# help2man takes the command's words for its name; a page is named with a hyphen, as `man sternway info` looks for it.
string(TOUPPER ${_page} _title)
string(REGEX REPLACE "\n\\.TH [^\n\"]+ \"1\"" "\n.TH ${_title} \"1\"" _text "${_text}")
string(REGEX REPLACE "\n\\.SH NAME\n[^\n]* (\\\\- [^\n]*)" "\n.SH NAME\n${_page} \\1" _text "${_text}")
string(REGEX REPLACE "\\.gz$" "" _plain "${OUTPUT}")
file(WRITE ${_plain} "${_text}")
execute_process(COMMAND ${GZIP} -9nf ${_plain} COMMAND_ERROR_IS_FATAL ANY)
