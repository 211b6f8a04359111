# SPDX-License-Identifier: MIT
#
# Device images: compiled at build time, embedded by .incbin, listed with their hashes in
# generated/images.def, jagged_images.def and cp_images.def for backends/gpu/image.c. Included by the top level behind the
# backends, whose target the objects join. Without a device compiler the backend is built with its loader and no image.
set(STERNWAY_IMAGES_FROM "" CACHE PATH "images/ of another build of the same sources: its images are taken, which cost minutes")
set(STERNWAY_IMAGES all CACHE STRING "device images to build: all, none, or archs, as in sm80,gfx942; NVIDIA's also as sm80:cubin and sm80:ptx")
set(STERNWAY_ARCHS all CACHE STRING "GPU archs to build images of: all, or some with commas between, as in sm90,gfx942")
set(_default_cache OFF)
if(STERNWAY_COMPILER_CACHE AND DEFINED ENV{HOME})
    set(_default_cache $ENV{HOME}/.cache/sternway)
    if(IS_ABSOLUTE "$ENV{XDG_CACHE_HOME}")
        set(_default_cache $ENV{XDG_CACHE_HOME}/sternway)
    endif()
endif()
set(STERNWAY_IMAGE_CACHE ${_default_cache} CACHE STRING "folder that keeps compiled images for later builds (cmake/cached.sh), or OFF")
set(_images ${CMAKE_BINARY_DIR}/images)
file(MAKE_DIRECTORY ${_images} ${CMAKE_BINARY_DIR}/generated)
# BACKEND ARCH KIND SYMBOL FILE, five words an image: attention's; those of the jagged operations and of attention over ranks,
# sets of their own
set(_image_words)
set(_jagged_words)
set(_cp_words)
set(_image_files)
set(_image_asm "/* Made by cmake/image.cmake: the bytes of the device images. The zero behind each ends PTX text. */\n")

# What is wanted, as words of STERNWAY_IMAGES; STERNWAY_ARCHS is the same in archs alone. Newer GPUs of NVIDIA take what sm80's
# image has as PTX.
string(REPLACE "," ";" _wanted "${STERNWAY_IMAGES}")
set(_wanted_by "STERNWAY_IMAGES=${STERNWAY_IMAGES}") # in the texts
if(NOT "${STERNWAY_ARCHS}" STREQUAL "all")
    string(REPLACE "," ";" _archs "${STERNWAY_ARCHS}")
    set(_wanted_by "STERNWAY_ARCHS=${STERNWAY_ARCHS}")
    set(_unknown ${_archs})
    list(REMOVE_ITEM _unknown ${STERNWAY_ARCHS_CUDA} ${STERNWAY_ARCHS_HIP})
    if(_unknown OR NOT _archs)
        list(JOIN STERNWAY_ARCHS_CUDA ", " _cuda)
        list(JOIN STERNWAY_ARCHS_HIP ", " _hip)
        message(FATAL_ERROR "${_wanted_by}: accepted is all, or some of ${_cuda}, ${_hip}; STERNWAY_IMAGES=none builds no image")
    endif()
    if("${_archs}" MATCHES "sm" AND NOT "sm80" IN_LIST _archs)
        list(PREPEND _archs sm80:ptx)
    endif()
    list(REMOVE_DUPLICATES _archs)
    set(_same ${_wanted})
    list(REMOVE_ITEM _same ${_archs})
    list(LENGTH _archs _count)
    list(LENGTH _wanted _given)
    if(NOT _wanted STREQUAL "all" AND (_same OR NOT _count EQUAL _given))
        list(JOIN _archs "," _archs)
        message(FATAL_ERROR "${_wanted_by} means the images ${_archs}, STERNWAY_IMAGES=${STERNWAY_IMAGES} others: give one of the two "
            "(-DSTERNWAY_IMAGES=all where a preset gives it)")
    endif()
    set(_wanted ${_archs})
endif()
string(REPLACE ";" "," _wanted_by "${_wanted_by}")

# What is asked for by name and cannot be had is an error.
set(_named TRUE)
if(_wanted STREQUAL "all" OR _wanted STREQUAL "none")
    set(_named FALSE)
elseif(NOT _wanted)
    message(FATAL_ERROR "STERNWAY_IMAGES is empty: all, none, or archs of ${STERNWAY_ARCHS_CUDA};${STERNWAY_ARCHS_HIP}")
endif()
if(NOT _wanted STREQUAL "all" AND STERNWAY_TESTS AND (STERNWAY_CUDA OR STERNWAY_HIP))
    message(FATAL_ERROR "${_wanted_by}: the tests need every image; add -DSTERNWAY_TESTS=OFF, or take the preset no-gpu")
endif()
if(_named)
    foreach(_word IN LISTS _wanted)
        if(_word IN_LIST STERNWAY_ARCHS_CUDA OR _word MATCHES "^sm80:(cubin|ptx)$")
            set(_backend CUDA)
        elseif(_word IN_LIST STERNWAY_ARCHS_HIP)
            set(_backend HIP)
        else()
            list(JOIN STERNWAY_ARCHS_CUDA ", " _cuda)
            list(JOIN STERNWAY_ARCHS_HIP ", " _hip)
            message(FATAL_ERROR "STERNWAY_IMAGES: ${_word} is no image, accepted: all, none, or some of ${_cuda}, ${_hip}, sm80:cubin, sm80:ptx")
        endif()
        if(NOT STERNWAY_${_backend})
            message(FATAL_ERROR "${_wanted_by}: ${_word} belongs to the backend that STERNWAY_${_backend}=OFF leaves out")
        endif()
        if(_backend STREQUAL "CUDA" AND NOT _word MATCHES "^sm80" AND NOT "sm80" IN_LIST _wanted AND NOT "sm80:ptx" IN_LIST _wanted)
            message(FATAL_ERROR "STERNWAY_IMAGES: ${_word} needs sm80:ptx beside it, which holds the kernels around its main loop")
        endif()
    endforeach()
endif()

# Sets RESULT where the image of that arch and kind is wanted.
function(_stw_wanted result arch kind)
    string(TOLOWER ${arch}:${kind} _word)
    if(_wanted STREQUAL "all" OR ${arch} IN_LIST _wanted OR _word IN_LIST _wanted)
        set(${result} TRUE PARENT_SCOPE)
    else()
        set(${result} FALSE PARENT_SCOPE)
    endif()
endfunction()

# Words that go before a compiler's command; KIND is nvcc or clang.
function(_stw_cached result kind)
    if(STERNWAY_IMAGE_CACHE)
        set(${result} sh ${CMAKE_CURRENT_SOURCE_DIR}/cmake/cached.sh ${STERNWAY_IMAGE_CACHE} ${kind} PARENT_SCOPE)
    elseif(kind STREQUAL "nvcc")
        set(${result} sh ${CMAKE_CURRENT_SOURCE_DIR}/cmake/nvcc_checked.sh PARENT_SCOPE)
    else()
        set(${result} "" PARENT_SCOPE)
    endif()
endfunction()
_stw_cached(_nvcc_cached nvcc)
_stw_cached(_clang_cached clang)

# Adds the image FILE, made by a custom command of the caller, and the target image-FILE, which makes it alone. HIP's are
# embedded packed (cmake/image_rows/pack.c): the device code of NVIDIA's compilers is packed by them.
macro(_stw_image backend arch kind file)
    get_filename_component(_name ${file} NAME)
    set(_embedded ${file})
    if(${backend} STREQUAL "HIP")
        set(_embedded ${file}.packed)
        add_custom_command(OUTPUT ${_embedded} DEPENDS ${file} stw_image_pack COMMAND stw_image_pack ${file} ${_embedded}
            COMMENT "Packing ${_name}" VERBATIM)
    endif()
    if(_name MATCHES "^jagged")
        string(TOLOWER "stw_jagged_image_${backend}_${arch}_${kind}" _symbol)
        list(APPEND _jagged_words ${backend} ${arch} ${kind} ${_symbol} ${_embedded})
    elseif(_name MATCHES "^cp_")
        string(TOLOWER "stw_cp_image_${backend}_${arch}_${kind}" _symbol)
        list(APPEND _cp_words ${backend} ${arch} ${kind} ${_symbol} ${_embedded})
    else()
        string(TOLOWER "stw_image_${backend}_${arch}_${kind}" _symbol)
        list(APPEND _image_words ${backend} ${arch} ${kind} ${_symbol} ${_embedded})
    endif()
    list(APPEND _image_files ${_embedded})
    if(PROJECT_IS_TOP_LEVEL)
        add_custom_target(image-${_name} DEPENDS ${file})
    endif()
    get_filename_component(_name ${_embedded} NAME)
    string(APPEND _image_asm
        "__asm__(\".pushsection .rodata\\n.balign 256\\n\"\n"
        "        \".globl ${_symbol}_begin\\n.hidden ${_symbol}_begin\\n${_symbol}_begin:\\n\"\n"
        "        \".incbin \\\"${_name}\\\"\\n\"\n"
        "        \".globl ${_symbol}_end\\n.hidden ${_symbol}_end\\n${_symbol}_end:\\n\"\n"
        "        \".byte 0\\n.popsection\\n\");\n")
endmacro()

# Compressed, as the driver's own container: PTX shrinks to a tenth. nvcc writes no paths and no dates: two
# folders give the same bytes. _stw_nvcc_image(source arch kind gencode...); several codes of one arch in one word: nvcc
# runs its front end, minutes, for each word.
macro(_stw_nvcc_image source arch kind)
    _stw_wanted(_is_wanted ${arch} ${kind})
    if(_is_wanted)
        get_filename_component(_stem ${source} NAME_WE)
        string(TOLOWER ${_stem}.${kind}.fatbin _name)
        set(_output ${_images}/${_name})
        set(_gencodes ${ARGN})
        list(TRANSFORM _gencodes PREPEND -gencode=)
        if(STERNWAY_IMAGES_FROM AND EXISTS ${STERNWAY_IMAGES_FROM}/${_name})
            configure_file(${STERNWAY_IMAGES_FROM}/${_name} ${_output} COPYONLY)
        else()
            add_custom_command(OUTPUT ${_output} DEPENDS ${source} DEPFILE ${_output}.d
                COMMAND ${_nvcc_cached} ${STERNWAY_NVCC} -fatbin ${_gencodes} -Xfatbin -compress-all ${_compress_mode} -std=c++17 -O3 -Werror all-warnings
                    -I${CMAKE_CURRENT_SOURCE_DIR} -I${CMAKE_CURRENT_SOURCE_DIR}/include
                    -MD -MF ${_output}.d -MT ${_output} -o ${_output} ${source}
                COMMENT "Device image ${arch} ${kind}" VERBATIM)
        endif()
        _stw_image(CUDA ${arch} ${kind} ${_output})
    endif()
endmacro()

# Whether any word of what is wanted belongs to that list of archs, so that its compiler is looked for.
function(_stw_any_wanted result)
    string(REGEX REPLACE ":(cubin|ptx)" "" _archs "${_wanted}")
    set(${result} FALSE PARENT_SCOPE)
    foreach(_arch IN LISTS ARGN ITEMS all)
        if(_arch IN_LIST _archs)
            set(${result} TRUE PARENT_SCOPE)
        endif()
    endforeach()
endfunction()
_stw_any_wanted(_any_cuda ${STERNWAY_ARCHS_CUDA})
_stw_any_wanted(_any_hip ${STERNWAY_ARCHS_HIP})

# What this build leaves out, and why: `sternway info` and the texts of STW_E_NO_IMAGE name it.
set(STERNWAY_LEFT_OUT)
foreach(_backend CUDA HIP)
    if(NOT STERNWAY_${_backend})
        list(APPEND STERNWAY_LEFT_OUT "backend ${_backend} (STERNWAY_${_backend}=OFF)")
    endif()
endforeach()

if(STERNWAY_CUDA AND NOT _any_cuda)
    list(APPEND STERNWAY_LEFT_OUT "CUDA images (${_wanted_by})")
    message(STATUS "sternway CUDA images: none (${_wanted_by})")
elseif(STERNWAY_CUDA)
    find_program(STERNWAY_NVCC nvcc HINTS ENV CUDA_PATH ENV CUDA_HOME PATHS /usr/local/cuda
        ${CMAKE_CURRENT_SOURCE_DIR}/build/tools/cuda/nvidia/cu13 PATH_SUFFIXES bin
        DOC "nvcc, for the CUDA images")
    if(STERNWAY_NVCC)
        execute_process(COMMAND ${STERNWAY_NVCC} --version OUTPUT_VARIABLE _version ERROR_QUIET)
        string(REGEX MATCH "release ([0-9]+\\.[0-9]+)" _version "${_version}")
        set(STERNWAY_CUDA_RELEASE ${CMAKE_MATCH_1}) # told by `sternway info`: it decides which drivers take the images
        message(STATUS "sternway CUDA images: ${STERNWAY_NVCC} (CUDA ${STERNWAY_CUDA_RELEASE})")
        # A third less than nvcc's usual packing, for a minute of one core in all; releases before 13 pack with LZ4 alone.
        set(_compress_mode)
        if(STERNWAY_CUDA_RELEASE VERSION_GREATER_EQUAL 13)
            set(_compress_mode --compress-mode=size)
        endif()
        set(_source ${CMAKE_CURRENT_SOURCE_DIR}/backends/cuda/attn_bwd_sm80.cu)
        _stw_nvcc_image(${_source} sm80 CUBIN arch=compute_80,code=sm_80)
        # Newer GPUs, which have wider additions: PTX for all of them, and code for 9.0, which would take the driver a minute.
        _stw_nvcc_image(${_source} sm80 PTX arch=compute_90,code=[compute_90,sm_90])
        # Hopper's own main loop; the kernels around it are those above.
        _stw_nvcc_image(${CMAKE_CURRENT_SOURCE_DIR}/backends/cuda/attn_bwd_sm90.cu sm90 CUBIN arch=compute_90a,code=sm_90a)
        set(_source ${CMAKE_CURRENT_SOURCE_DIR}/backends/cuda/jagged_sm80.cu)
        _stw_nvcc_image(${_source} sm80 CUBIN arch=compute_80,code=sm_80)
        _stw_nvcc_image(${_source} sm80 PTX arch=compute_90,code=[compute_90,sm_90])
        # Hopper's own products; all other kernels are those above.
        _stw_nvcc_image(${CMAKE_CURRENT_SOURCE_DIR}/backends/cuda/jagged_sm90.cu sm90 CUBIN arch=compute_90a,code=sm_90a)
        set(_source ${CMAKE_CURRENT_SOURCE_DIR}/backends/cuda/cp_sm80.cu)
        _stw_nvcc_image(${_source} sm80 CUBIN arch=compute_80,code=sm_80)
        _stw_nvcc_image(${_source} sm80 PTX arch=compute_90,code=[compute_90,sm_90])
    elseif(_named)
        message(FATAL_ERROR "${_wanted_by}: no nvcc (STERNWAY_NVCC, CUDA_PATH, /usr/local/cuda, what bootstrap.sh fetches)")
    else()
        list(APPEND STERNWAY_LEFT_OUT "CUDA images (no nvcc was found)")
        message(WARNING "sternway: no nvcc (STERNWAY_NVCC, CUDA_PATH, /usr/local/cuda, what bootstrap.sh fetches): the CUDA backend is built "
            "without kernels and every CUDA context will end in STW_E_NO_IMAGE")
    endif()
endif()

# HIP code objects: plain clang is enough, no ROCm file is read. -munsafe-fp-atomics takes the add instruction of
# device memory, which workspaces are. -fno-slp-vectorize (behind -O, which means the contrary): pairs
# it makes of accumulators in memory stay in memory (clang 19). No paths get in: two folders give the same bytes.
set(STERNWAY_HIP_FLAGS -x hip --cuda-device-only --no-gpu-bundle-output -nogpulib -nogpuinc -mcode-object-version=4
    -fuse-cuid=none -munsafe-fp-atomics -std=c++17 -Wall -Wextra -Werror)

set(STERNWAY_ARCHS_NEWER gfx950) # clang 19 does not know them

# _stw_hip_compiler(arch): STERNWAY_HIP_COMPILER_<arch>, which makes a code object of an empty file; "": none, with
# its words in _words.
macro(_stw_hip_compiler arch)
    file(CONFIGURE OUTPUT ${_images}/empty.hip CONTENT "" @ONLY)
    set(STERNWAY_HIP_COMPILER_${arch})
    set(_compilers ${STERNWAY_HIP_COMPILER})
    if(${arch} IN_LIST STERNWAY_ARCHS_NEWER)
        list(APPEND _compilers ${STERNWAY_HIP_COMPILER_NEWER})
    endif()
    foreach(_compiler IN LISTS _compilers)
        if(_compiler AND NOT STERNWAY_HIP_COMPILER_${arch})
            execute_process(COMMAND ${_compiler} ${STERNWAY_HIP_FLAGS} --offload-arch=${arch}
                -c ${_images}/empty.hip -o ${_images}/empty.co RESULT_VARIABLE _failed OUTPUT_QUIET ERROR_VARIABLE _words)
            if(NOT _failed)
                set(STERNWAY_HIP_COMPILER_${arch} ${_compiler})
            endif()
        endif()
    endforeach()
endmacro()

# _stw_hip_image(source arch table): one code object, if it is there or a compiler knows the arch.
macro(_stw_hip_image source arch table)
    get_filename_component(_stem ${source} NAME_WE)
    set(_output ${_images}/${_stem}.${arch}.co)
    set(_depends -Xclang -dependency-file) # -MD does nothing here from clang 22 on
    set(_from ${STERNWAY_IMAGES_FROM}/${_stem}.${arch}.co)
    if(STERNWAY_IMAGES_FROM AND EXISTS ${_from})
        configure_file(${_from} ${_output} COPYONLY)
        _stw_image(HIP ${arch} CODE_OBJECT ${_output})
    elseif(STERNWAY_HIP_COMPILER_${arch})
        add_custom_command(OUTPUT ${_output} DEPENDS ${source} DEPFILE ${_output}.d
            COMMAND ${_clang_cached} ${STERNWAY_HIP_COMPILER_${arch}} ${STERNWAY_HIP_FLAGS} --offload-arch=${arch} -O3 -fno-slp-vectorize
                "-DSTW_VARIANT_TABLE=\"common/tuning/${table}.${arch}.def\""
                -I${CMAKE_CURRENT_SOURCE_DIR} -I${CMAKE_CURRENT_SOURCE_DIR}/include
                ${_depends} -Xclang ${_output}.d -Xclang -MT -Xclang ${_output} -c ${source} -o ${_output}
            COMMENT "Device image ${arch} of ${_stem}" VERBATIM)
        _stw_image(HIP ${arch} CODE_OBJECT ${_output})
    endif()
    if(STERNWAY_HIP_COMPILER_${arch})
        set(_text ${CMAKE_BINARY_DIR}/hip-sources/${_stem}.${arch}.hip)
        add_custom_command(OUTPUT ${_text} DEPENDS ${source} DEPFILE ${_text}.d
            COMMAND ${STERNWAY_HIP_COMPILER_${arch}} ${STERNWAY_HIP_FLAGS} --offload-arch=${arch} -E -P
                "-DSTW_VARIANT_TABLE=\"common/tuning/${table}.${arch}.def\""
                -I${CMAKE_CURRENT_SOURCE_DIR} -I${CMAKE_CURRENT_SOURCE_DIR}/include
                ${_depends} -Xclang ${_text}.d -Xclang -MT -Xclang ${_text} -o ${_text} ${source}
            COMMENT "HIP text ${arch}" VERBATIM)
        list(APPEND _hip_texts ${_text})
    endif()
endmacro()

if(STERNWAY_HIP AND NOT _any_hip)
    list(APPEND STERNWAY_LEFT_OUT "HIP images (${_wanted_by})")
    message(STATUS "sternway HIP images: none (${_wanted_by})")
elseif(STERNWAY_HIP)
    find_program(STERNWAY_HIP_COMPILER NAMES clang-19 clang amdclang++ hipcc HINTS ENV ROCM_PATH PATHS /opt/rocm
        PATH_SUFFIXES bin llvm/bin DOC "clang with the AMDGPU target, for the HIP images")
    find_program(STERNWAY_HIP_COMPILER_NEWER NAMES clang-22 DOC "clang for the HIP images of archs that clang 19 does not know")
    set(_of_archs "")
    foreach(_arch IN LISTS STERNWAY_ARCHS_HIP)
        _stw_hip_compiler(${_arch})
        list(APPEND _of_archs "${_arch} ${STERNWAY_HIP_COMPILER_${_arch}}")
    endforeach()
    if(STERNWAY_SANITIZE)
        list(APPEND STERNWAY_LEFT_OUT "HIP images (STERNWAY_SANITIZE)")
        message(STATUS "sternway HIP images: none, the sanitizers do not reach device code")
    elseif(STERNWAY_HIP_COMPILER OR STERNWAY_HIP_COMPILER_NEWER)
        list(JOIN _of_archs ", " _of_archs)
        message(STATUS "sternway HIP compilers: ${_of_archs}")
        foreach(_arch IN LISTS STERNWAY_ARCHS_HIP)
            _stw_wanted(_is_wanted ${_arch} code_object)
            if(_is_wanted)
                set(_from ${STERNWAY_IMAGES_FROM}/attn_bwd_cdna.${_arch}.co)
                if(NOT STERNWAY_HIP_COMPILER_${_arch} AND NOT (STERNWAY_IMAGES_FROM AND EXISTS ${_from}))
                    set(_missing "no compiler for ${_arch} (STERNWAY_HIP_COMPILER, STERNWAY_HIP_COMPILER_NEWER: clang-22 with lld-22)")
                    if(_named)
                        message(FATAL_ERROR "${_wanted_by}: ${_missing}: ${_words}")
                    endif()
                    list(APPEND STERNWAY_LEFT_OUT "${_arch} images (no clang was found that knows it)")
                    message(WARNING "sternway: ${_missing}, which gets no image: ${_words}")
                endif()
                _stw_hip_image(${CMAKE_CURRENT_SOURCE_DIR}/backends/hip/attn_bwd_cdna.hip ${_arch} attn_bwd)
                _stw_hip_image(${CMAKE_CURRENT_SOURCE_DIR}/backends/hip/jagged_cdna.hip ${_arch} jagged)
                _stw_hip_image(${CMAKE_CURRENT_SOURCE_DIR}/backends/hip/cp_cdna.hip ${_arch} jagged)
            endif()
        endforeach()
        # The kernels as one preprocessed file an arch, for other compilers and for reading.
        file(MAKE_DIRECTORY ${CMAKE_BINARY_DIR}/hip-sources)
        add_custom_target(hip-sources DEPENDS ${_hip_texts})
    elseif(_named)
        message(FATAL_ERROR "${_wanted_by}: no clang (STERNWAY_HIP_COMPILER)")
    else()
        list(APPEND STERNWAY_LEFT_OUT "HIP images (no clang was found)")
        message(WARNING "sternway: no clang (STERNWAY_HIP_COMPILER): the HIP backend is built without kernels and "
            "every HIP context will end in STW_E_NO_IMAGE")
    endif()
endif()

# generated/kernels.txt: the names of all kernels, from the preprocessor; no device compiler is needed.
set(_kernels backends/cuda/attn_bwd_sm80.cu sm80 __CUDA_ARCH__=800 - backends/cuda/attn_bwd_sm90.cu sm90 __CUDA_ARCH__=900 -
    backends/cuda/jagged_sm80.cu sm80 __CUDA_ARCH__=800 - backends/cuda/jagged_sm90.cu sm90 __CUDA_ARCH__=900 -
    backends/cuda/cp_sm80.cu sm80 __CUDA_ARCH__=800 -)
foreach(_arch IN LISTS STERNWAY_ARCHS_HIP)
    list(APPEND _kernels backends/hip/attn_bwd_cdna.hip ${_arch} __${_arch}__ common/tuning/attn_bwd.${_arch}.def
        backends/hip/jagged_cdna.hip ${_arch} __${_arch}__ common/tuning/jagged.${_arch}.def
        backends/hip/cp_cdna.hip ${_arch} __${_arch}__ -)
endforeach()
file(GLOB _kernel_sources CONFIGURE_DEPENDS common/device/* common/kernels/* common/params/* common/tuning/*.def
    backends/cuda/*.cu backends/cuda/*.h backends/cuda/*.inl backends/hip/*.hip backends/hip/*.h backends/hip/*.inl)
add_custom_command(OUTPUT ${CMAKE_BINARY_DIR}/generated/kernels.txt
    DEPENDS ${_kernel_sources} ${CMAKE_CURRENT_SOURCE_DIR}/cmake/kernel_names.cmake
    COMMAND ${CMAKE_COMMAND} -DCC=${CMAKE_C_COMPILER} -DSOURCE=${CMAKE_CURRENT_SOURCE_DIR}
        -DOUTPUT=${CMAKE_BINARY_DIR}/generated/kernels.txt "-DIMAGES=${_kernels}"
        -P ${CMAKE_CURRENT_SOURCE_DIR}/cmake/kernel_names.cmake
    COMMENT "Names of the kernels" VERBATIM)
add_custom_target(kernel_names ALL DEPENDS ${CMAKE_BINARY_DIR}/generated/kernels.txt)

# Archs that were not asked for.
foreach(_backend CUDA HIP)
    foreach(_arch IN LISTS STERNWAY_ARCHS_${_backend})
        if(STERNWAY_${_backend} AND _named AND NOT "${_wanted}" MATCHES "(^|;)${_arch}(:|;|$)" AND
           NOT "${STERNWAY_LEFT_OUT}" MATCHES "${_backend} images")
            list(APPEND STERNWAY_LEFT_OUT "${_arch} images (${_wanted_by})")
        endif()
    endforeach()
endforeach()
if(STERNWAY_LEFT_OUT)
    list(JOIN STERNWAY_LEFT_OUT ", " _words)
    set_source_files_properties(backends/gpu/image.c PROPERTIES COMPILE_DEFINITIONS "STW_LEFT_OUT=\"${_words}\"")
endif()

if(_image_files)
    file(CONFIGURE OUTPUT ${_images}/images.c CONTENT "${_image_asm}" @ONLY)
    target_sources(sternway_internal PRIVATE ${_images}/images.c)
    set_source_files_properties(${_images}/images.c PROPERTIES
        OBJECT_DEPENDS "${_image_files}" COMPILE_OPTIONS "-Wa,-I${_images};-g0")
    add_subdirectory(cmake/image_rows)
    add_custom_command(OUTPUT ${CMAKE_BINARY_DIR}/generated/images.def
        COMMAND stw_image_rows ${CMAKE_BINARY_DIR}/generated/images.def ${_image_words}
        DEPENDS stw_image_rows ${_image_files} COMMENT "Hashes of the device images" VERBATIM)
    add_custom_command(OUTPUT ${CMAKE_BINARY_DIR}/generated/jagged_images.def
        COMMAND stw_image_rows ${CMAKE_BINARY_DIR}/generated/jagged_images.def ${_jagged_words}
        DEPENDS stw_image_rows ${_image_files} COMMENT "Hashes of the jagged device images" VERBATIM)
    add_custom_command(OUTPUT ${CMAKE_BINARY_DIR}/generated/cp_images.def
        COMMAND stw_image_rows ${CMAKE_BINARY_DIR}/generated/cp_images.def ${_cp_words}
        DEPENDS stw_image_rows ${_image_files} COMMENT "Hashes of the device images of attention over ranks" VERBATIM)
    set_source_files_properties(${CMAKE_CURRENT_SOURCE_DIR}/backends/gpu/image.c TARGET_DIRECTORY sternway_internal PROPERTIES
        COMPILE_DEFINITIONS "STW_IMAGE_ROWS=\"images.def\";STW_JAGGED_IMAGE_ROWS=\"jagged_images.def\";STW_CP_IMAGE_ROWS=\"cp_images.def\""
        OBJECT_DEPENDS "${CMAKE_BINARY_DIR}/generated/images.def;${CMAKE_BINARY_DIR}/generated/jagged_images.def;${CMAKE_BINARY_DIR}/generated/cp_images.def")
endif()
