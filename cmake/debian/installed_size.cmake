# SPDX-License-Identifier: MIT
#
# Run by cpack on the .deb that it made.
find_program(STERNWAY_PYTHON3 NAMES python3 REQUIRED)
execute_process(COMMAND ${STERNWAY_PYTHON3} -B ${CMAKE_CURRENT_LIST_DIR}/installed_size.py ${CPACK_PACKAGE_FILES}
    COMMAND_ERROR_IS_FATAL ANY)
