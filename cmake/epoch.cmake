# SPDX-License-Identifier: MIT
#
# STERNWAY_EPOCH, the date of this version in seconds, for manual pages, packages and `sternway info`: builds of the same
# sources must be the same bytes. SOURCE_DATE_EPOCH where it is set, else the last commit's, else that of CHANGELOG.md.
# STERNWAY_COMMIT, the last commit's twelve digits, or empty. An archive that git made has both in the next line.
set(_archived "$Format:%H %ct$")
set(STERNWAY_COMMIT "")
set(_epoch "")
if(_archived MATCHES "^([0-9a-f]+) ([0-9]+)$")
    string(SUBSTRING ${CMAKE_MATCH_1} 0 12 STERNWAY_COMMIT)
    set(_epoch ${CMAKE_MATCH_2})
elseif(EXISTS ${PROJECT_SOURCE_DIR}/.git) # not that of a project around this one
    execute_process(COMMAND git -C ${PROJECT_SOURCE_DIR} log -1 "--format=%H %ct" OUTPUT_VARIABLE _words
        OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    if(_words MATCHES "^([0-9a-f]+) ([0-9]+)$")
        string(SUBSTRING ${CMAKE_MATCH_1} 0 12 STERNWAY_COMMIT)
        set(_epoch ${CMAKE_MATCH_2})
        execute_process(COMMAND git -C ${PROJECT_SOURCE_DIR} rev-parse --git-path logs/HEAD OUTPUT_VARIABLE _log
            OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
        get_filename_component(_log "${_log}" ABSOLUTE BASE_DIR ${PROJECT_SOURCE_DIR})
        if(EXISTS ${_log}) # the next commit is told as well
            set_property(DIRECTORY ${PROJECT_SOURCE_DIR} APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${_log})
        endif()
    endif()
endif()
if("$ENV{SOURCE_DATE_EPOCH}" MATCHES "^[0-9]+$")
    set(STERNWAY_EPOCH $ENV{SOURCE_DATE_EPOCH})
elseif(_epoch)
    set(STERNWAY_EPOCH ${_epoch})
else()
    file(TIMESTAMP ${PROJECT_SOURCE_DIR}/CHANGELOG.md STERNWAY_EPOCH "%s" UTC)
endif()
