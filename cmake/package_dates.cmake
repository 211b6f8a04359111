# SPDX-License-Identifier: MIT
#
# Run by cpack before it packs a tarball or an .rpm: files are dated like the version, so that the same files make the same bytes.
execute_process(COMMAND find ${CPACK_TEMPORARY_DIRECTORY} -depth -exec touch -h -d @$ENV{SOURCE_DATE_EPOCH} {} +
    COMMAND_ERROR_IS_FATAL ANY)
