# SPDX-License-Identifier: MIT
#
# STERNWAY_EPOCH, the date of this version in seconds, for manual pages and packages: builds of the same sources must be
# the same bytes. SOURCE_DATE_EPOCH where it is set, else the last commit's, else that of CHANGELOG.md.
if("$ENV{SOURCE_DATE_EPOCH}" MATCHES "^[0-9]+$")
    set(STERNWAY_EPOCH $ENV{SOURCE_DATE_EPOCH})
else()
    execute_process(COMMAND git -C ${PROJECT_SOURCE_DIR} log -1 --format=%ct OUTPUT_VARIABLE STERNWAY_EPOCH
        OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE _failed)
    if(_failed OR NOT STERNWAY_EPOCH MATCHES "^[0-9]+$")
        file(TIMESTAMP ${PROJECT_SOURCE_DIR}/CHANGELOG.md STERNWAY_EPOCH "%s" UTC)
    endif()
endif()
