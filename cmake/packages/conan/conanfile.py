# SPDX-License-Identifier: MIT
# Conan 2 recipe of this tree: conan create cmake/packages/conan. cJSON, CMake, ninja and the compilers are the system's.
import os
import re

from conan import ConanFile
from conan.tools.cmake import CMake, CMakeToolchain, cmake_layout
from conan.tools.files import copy, load, rm, rmdir

required_conan_version = ">=2.0"
SOURCES = ("CMakeLists.txt", "LICENSE", "*.md", "backends/*", "cmake/*", "common/*", "dispatch/*", "docs/*", "examples/*", "include/*",
           "python/*", "tests/problem/README.md", "tools/*")


class SternwayConan(ConanFile):
    name = "sternway"
    description = "The backward pass of attention on NVIDIA's and AMD's GPUs and on CPUs, behind one C interface"
    license = "MIT"
    homepage = "https://sternway.invalid"
    topics = ("attention", "gradient", "cuda", "rocm")
    package_type = "library"
    settings = "os", "arch", "compiler", "build_type"
    options = {"shared": [True, False], "tools": [True, False], "archs": ["ANY"], "images_from": [None, "ANY"]}
    default_options = {"shared": True, "tools": False, "archs": "all", "images_from": None}

    @property
    def _tree(self):
        return os.path.abspath(os.path.join(self.recipe_folder, "../../.."))

    def set_version(self):
        self.version = re.search(r"project\(sternway VERSION ([0-9.]+)", load(self, os.path.join(self._tree, "CMakeLists.txt"))).group(1)

    def configure(self):
        self.settings.rm_safe("compiler.cppstd")
        self.settings.rm_safe("compiler.libcxx")

    def validate(self):
        if self.settings.os != "Linux" or self.settings.arch != "x86_64":
            from conan.errors import ConanInvalidConfiguration
            raise ConanInvalidConfiguration("Linux on x86-64 alone")

    def export_sources(self):
        for pattern in SOURCES:
            copy(self, pattern, self._tree, self.export_sources_folder)

    def layout(self):
        cmake_layout(self)

    def generate(self):
        toolchain = CMakeToolchain(self, generator="Ninja")
        words = {"TOOLS": bool(self.options.tools), "STATIC": not self.options.shared, "TESTS": False, "PYTHON": False,
                 "ARCHS": str(self.options.archs), "IMAGES_FROM": str(self.options.images_from or "")}
        toolchain.cache_variables.update({f"STERNWAY_{name}": value for name, value in words.items()})
        toolchain.generate()

    def build(self):
        cmake = CMake(self)
        cmake.configure()
        cmake.build()

    def package(self):
        CMake(self).install()
        for folder in ("lib/cmake", "lib/pkgconfig"):  # conan's generators make their own
            rmdir(self, os.path.join(self.package_folder, folder))
        if not self.options.shared:
            rm(self, "libsternway.so*", os.path.join(self.package_folder, "lib"))

    def package_info(self):
        self.cpp_info.set_property("cmake_file_name", "sternway")
        self.cpp_info.set_property("cmake_target_name", "sternway::sternway")
        self.cpp_info.set_property("pkg_config_name", "sternway")
        self.cpp_info.libs = ["sternway"]
        self.cpp_info.libdirs = ["lib"]
        if not self.options.shared:
            self.cpp_info.system_libs = ["m", "pthread", "dl"]
