# SPDX-License-Identifier: MIT
#
# Runs when everything else of a component, or of all, is installed: CMAKE_INSTALL_MANIFEST_FILES has the files.
if(CMAKE_INSTALL_COMPONENT STREQUAL "python") # its folder is a Python package's
    return()
endif()
set(_place ${_data}/doc/sternway/sternway)
set(_name sternway)
if(CMAKE_INSTALL_COMPONENT)
    set(_name sternway-${CMAKE_INSTALL_COMPONENT})
    set(_place ${_data}/doc/sternway/${_name})
    foreach(_pair IN LISTS _places)
        if(_pair MATCHES "^${CMAKE_INSTALL_COMPONENT}=(.*)$")
            set(_name ${CMAKE_MATCH_1})
            set(_place ${_data}/doc/${_name}/${_name})
        endif()
    endforeach()
endif()

# Regular files, in one order on every machine.
set(_files "")
foreach(_path IN LISTS CMAKE_INSTALL_MANIFEST_FILES)
    file(RELATIVE_PATH _relative "${CMAKE_INSTALL_PREFIX}" "${_path}")
    if(NOT IS_SYMLINK "$ENV{DESTDIR}${_path}" AND NOT IS_DIRECTORY "$ENV{DESTDIR}${_path}" AND EXISTS "$ENV{DESTDIR}${_path}"
       AND NOT _relative MATCHES "\\.spdx\\.json$")
        list(APPEND _files "${_relative}")
    endif()
endforeach()
list(REMOVE_DUPLICATES _files)
list(SORT _files)
if(NOT _files)
    return()
endif()

set(_index 0)
set(_sums "")
set(_entries "")
set(_relations "")
foreach(_file IN LISTS _files)
    set(_path "$ENV{DESTDIR}${CMAKE_INSTALL_PREFIX}/${_file}")
    file(SHA1 "${_path}" _sha1)
    file(SHA256 "${_path}" _sha256)
    math(EXPR _index "${_index} + 1")
    list(APPEND _sums ${_sha1})
    set(_license MIT)
    if(_file MATCHES "^(.*/)?lib[^/]*/libcjson[^/]*$")
        set(_license NOASSERTION)
    endif()
    string(APPEND _entries "    {\"SPDXID\": \"SPDXRef-File-${_index}\", \"fileName\": \"./${_file}\",\n"
        "     \"checksums\": [{\"algorithm\": \"SHA1\", \"checksumValue\": \"${_sha1}\"},\n"
        "                   {\"algorithm\": \"SHA256\", \"checksumValue\": \"${_sha256}\"}],\n"
        "     \"licenseConcluded\": \"${_license}\", \"licenseInfoInFiles\": [\"NOASSERTION\"], \"copyrightText\": \"NOASSERTION\"},\n")
    string(APPEND _relations ",\n    {\"spdxElementId\": \"SPDXRef-Package\", \"relationshipType\": \"CONTAINS\", "
        "\"relatedSpdxElement\": \"SPDXRef-File-${_index}\"}")
endforeach()
string(REGEX REPLACE ",\n$" "\n" _entries "${_entries}")
list(SORT _sums)
string(REPLACE ";" "" _sums "${_sums}")
string(SHA1 _verification "${_sums}") # SPDX 2.3, 7.9
string(SHA256 _content "${_entries}")

set(_others "")
foreach(_tool IN LISTS _tools)
    string(REPLACE "=" ";" _tool "${_tool}")
    list(GET _tool 0 _maker)
    list(GET _tool 1 _maker_version)
    string(APPEND _others ",\n    {\"SPDXID\": \"SPDXRef-Tool-${_maker}\", \"name\": \"${_maker}\", \"versionInfo\": \"${_maker_version}\",\n"
        "     \"downloadLocation\": \"NOASSERTION\", \"filesAnalyzed\": false, \"licenseConcluded\": \"NOASSERTION\",\n"
        "     \"licenseDeclared\": \"NOASSERTION\", \"copyrightText\": \"NOASSERTION\", \"primaryPackagePurpose\": \"APPLICATION\"}")
    string(APPEND _relations ",\n    {\"spdxElementId\": \"SPDXRef-Tool-${_maker}\", \"relationshipType\": \"BUILD_TOOL_OF\", "
        "\"relatedSpdxElement\": \"SPDXRef-Package\"}")
endforeach()
if(_cjson AND _files MATCHES "bin/sternway|libcjson")
    string(APPEND _others ",\n    {\"SPDXID\": \"SPDXRef-cJSON\", \"name\": \"cJSON\", \"versionInfo\": \"${_cjson}\",\n"
        "     \"downloadLocation\": \"https://github.com/DaveGamble/cJSON\", \"filesAnalyzed\": false, \"licenseConcluded\": \"MIT\",\n"
        "     \"licenseDeclared\": \"MIT\", \"copyrightText\": \"NOASSERTION\", \"primaryPackagePurpose\": \"LIBRARY\"}")
    string(APPEND _relations ",\n    {\"spdxElementId\": \"SPDXRef-Package\", \"relationshipType\": \"DEPENDS_ON\", "
        "\"relatedSpdxElement\": \"SPDXRef-cJSON\"}")
endif()
if(_commit)
    set(_source "     \"sourceInfo\": \"commit ${_commit}\",\n")
else()
    set(_source "")
endif()

file(WRITE "$ENV{DESTDIR}${CMAKE_INSTALL_PREFIX}/${_place}.spdx.json" "{
  \"spdxVersion\": \"SPDX-2.3\",
  \"dataLicense\": \"CC0-1.0\",
  \"SPDXID\": \"SPDXRef-DOCUMENT\",
  \"name\": \"${_name}-${_version}\",
  \"documentNamespace\": \"https://sternway.invalid/spdx/${_name}-${_version}-${_content}\",
  \"creationInfo\": {\"created\": \"${_created}\", \"creators\": [\"Organization: the Sternway developers\", \"Tool: sternway-install-${_version}\"]},
  \"packages\": [
    {\"SPDXID\": \"SPDXRef-Package\", \"name\": \"${_name}\", \"versionInfo\": \"${_version}\",
     \"supplier\": \"Organization: the Sternway developers\", \"downloadLocation\": \"NOASSERTION\", \"filesAnalyzed\": true,
     \"packageVerificationCode\": {\"packageVerificationCodeValue\": \"${_verification}\"},
${_source}     \"licenseConcluded\": \"MIT\", \"licenseDeclared\": \"MIT\", \"licenseInfoFromFiles\": [\"NOASSERTION\"],
     \"copyrightText\": \"Copyright (c) 2026 The Sternway developers\", \"primaryPackagePurpose\": \"LIBRARY\"}${_others}
  ],
  \"files\": [
${_entries}  ],
  \"relationships\": [
    {\"spdxElementId\": \"SPDXRef-DOCUMENT\", \"relationshipType\": \"DESCRIBES\", \"relatedSpdxElement\": \"SPDXRef-Package\"}${_relations}
  ]
}
")
list(APPEND CMAKE_INSTALL_MANIFEST_FILES "${CMAKE_INSTALL_PREFIX}/${_place}.spdx.json")
message(STATUS "SPDX document: ${CMAKE_INSTALL_PREFIX}/${_place}.spdx.json")
